//! One end of the seqpacket socket: sends and receives messages and descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

use crate::error::{LinkError, syscall_error};
use crate::frame::{self, Assembler, MAX_PACKET_BYTES, MessageKind, ProtocolError};
use crate::message::{CHUNKS_PER_MESSAGE, Message};

/// A peer that accepts no byte for this long is lost.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Descriptors that one receive can hold: more than any message carries, so that a surplus is detected.
const MAX_FDS: usize = CHUNKS_PER_MESSAGE + 1;

/// The sending half. Can be used in another thread than the receiving half.
#[derive(Clone, Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<OwnedFd>,
    assembler: Assembler,
    packet: Box<[u8]>,
    descriptors: Vec<OwnedFd>,
}

/// Splits a connected seqpacket socket. A send that takes longer than `patience` fails.
pub fn split(socket: OwnedFd, patience: Duration) -> Result<(Sender, Receiver), LinkError> {
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))
        .map_err(syscall_error("setsockopt(SO_SNDTIMEO)"))?;
    let socket = Arc::new(socket);
    // One byte more than the largest packet, so that a larger packet is detected.
    let packet = vec![0; MAX_PACKET_BYTES + 1].into_boxed_slice();
    let receiver = Receiver {
        socket: Arc::clone(&socket),
        assembler: Assembler::default(),
        packet,
        descriptors: Vec::new(),
    };
    Ok((Sender { socket }, receiver))
}

impl Sender {
    /// Sends `message`, with `descriptors` on its first packet.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        let kind = message.kind();
        let expected = message.descriptors();
        assert_eq!(descriptors.len(), expected, "{kind:?} carries {expected} descriptors");
        let payload = message.encode();
        for (header, part) in frame::split_payload(kind, &payload)? {
            let fds = if header.part == 0 { descriptors } else { &[] };
            self.send_packet(&header.encode(), part, fds)?;
        }
        Ok(())
    }

    fn send_packet(&self, head: &[u8], part: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(fds));
            assert!(fits, "room for {MAX_FDS} descriptors holds {}", fds.len());
        }
        let slices = [IoSlice::new(head), IoSlice::new(part)];
        loop {
            match sendmsg(&*self.socket, &slices, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Closed),
                Err(Errno::AGAIN) => return Err(LinkError::Timeout(SEND_TIMEOUT)),
                Err(source) => return Err(LinkError::Kernel { call: "sendmsg", source }),
            }
        }
    }

    /// Closes both directions: a receiver of this process wakes, and the peer reads the end of the stream.
    pub fn shutdown(&self) {
        // Fails only if the peer has already closed, which is the wanted state.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    /// Returns the socket, to poll it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Receiver {
    /// Returns the next message and its descriptors. Blocks.
    pub fn recv(&mut self) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        loop {
            let got = self.recv_packet()?;
            if let Some(kind) = self.assembler.push(&self.packet[..got])? {
                return self.decode_message(kind);
            }
        }
    }

    /// As [`Receiver::recv`], but fails if the message is not complete within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        let deadline = std::time::Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if !wait_readable(self.socket.as_fd(), left)? {
                return Err(LinkError::Timeout(limit));
            }
            let got = self.recv_packet()?;
            if let Some(kind) = self.assembler.push(&self.packet[..got])? {
                return self.decode_message(kind);
            }
        }
    }

    fn decode_message(&mut self, kind: MessageKind) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        let message = Message::decode(kind, self.assembler.payload())?;
        let descriptors = std::mem::take(&mut self.descriptors);
        let (got, expected) = (descriptors.len(), message.descriptors());
        if got != expected {
            return Err(ProtocolError::Descriptors { kind, got, expected }.into());
        }
        Ok((message, descriptors))
    }

    /// Reads one packet into the buffer and stores its descriptors.
    fn recv_packet(&mut self) -> Result<usize, LinkError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let answer = loop {
            let mut slices = [IoSliceMut::new(&mut self.packet)];
            match recvmsg(&*self.socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                answer => break answer,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.descriptors.extend(fds);
            }
        }
        let received = match answer {
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            answer => answer.map_err(syscall_error("recvmsg"))?,
        };
        if received.bytes == 0 {
            return Err(LinkError::Closed);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            let got = received.bytes;
            return Err(ProtocolError::Oversized { got, limit: MAX_PACKET_BYTES }.into());
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MAX_FDS {
            let got = self.descriptors.len();
            return Err(
                ProtocolError::Descriptors { kind: MessageKind::Model, got, expected: MAX_FDS }.into()
            );
        }
        Ok(received.bytes)
    }
}

/// Whether `fd` becomes readable (or its peer closes) within `limit`.
pub fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, LinkError> {
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(source) => return Err(LinkError::Kernel { call: "poll", source }),
        }
    }
}

/// Returns once the peer of `socket` has closed its end or exited.
pub fn wait_hang_up(socket: impl AsFd) {
    // Interrupted, or the kernel is short of memory: ask again.
    while !poll_hang_up(socket.as_fd(), None) {}
}

/// Whether the peer of `socket` has closed its end or exited. Messages that it sent before may still be unread.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    poll_hang_up(socket.as_fd(), Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
}

/// With no requested events, poll reports only that the peer closed, never data.
fn poll_hang_up(socket: BorrowedFd<'_>, limit: Option<&Timespec>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::empty())], limit).is_ok_and(|ready| ready > 0)
}

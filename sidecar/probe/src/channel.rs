//! Messages and descriptors between the probe's processes: JSON over a seqpacket socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Maximum message size in bytes: below a socket's default buffer size.
const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// Maximum of descriptors in a message.
pub const MAX_FDS: usize = 128;

/// One end of the channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Creates a channel and returns both ends.
    pub fn pair() -> Result<(Channel, OwnedFd), Error> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(Error::kernel("socketpair"))?;
        Ok((Channel { socket: ours }, theirs))
    }

    /// Wraps the socket of an end.
    pub fn from_socket(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// Sends `message` and copies of `fds`.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than 128 KiB, or the kernel's error.
    ///
    /// # Panics
    /// With more than [`MAX_FDS`] descriptors.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Error::TooLong { limit: MAX_MESSAGE_BYTES });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fits = fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "at most {MAX_FDS} descriptors with a message");
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(source) => return Err(Error::Kernel { call: "sendmsg", source }),
            }
        }
    }

    /// Receives the next message and its descriptors within `limit`; `None` if the other end is closed.
    pub fn recv<T: DeserializeOwned>(&self, limit: Duration) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        if !self.wait_readable(limit)? {
            return Err(Error::Timeout { what: "another process of the probe".into(), limit });
        }
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Err(Errno::CONNRESET) => return Ok(None),
            got => got.map_err(Error::kernel("recvmsg"))?,
        };
        // The kernel truncated the message: the received part is not the message, even if it is valid JSON.
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::TooLong { limit: MAX_MESSAGE_BYTES });
        }
        let got = got.bytes;
        let fds = ancillary.drain().filter_map(rights).flatten().collect();
        if got == 0 { Ok(None) } else { Ok(Some((serde_json::from_slice(&bytes[..got])?, fds))) }
    }

    /// Closes the sending direction.
    pub fn close(&self) {
        // Fails only if the other end is already closed.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn wait_readable(&self, limit: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(source) => return Err(Error::Kernel { call: "poll", source }),
            }
        }
    }
}

fn rights(message: RecvAncillaryMessage<'_>) -> Option<Vec<OwnedFd>> {
    match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn oversized_message_is_refused_by_both_ends() {
        let (ours, theirs) = Channel::pair().expect("a socket");
        let long = "x".repeat(MAX_MESSAGE_BYTES - 2);
        ours.send(&long, &[]).expect("two quotes more are just not too long");
        let theirs = Channel::from_socket(theirs);
        let (received, _) = theirs.recv::<String>(SOON).expect("it was sent").expect("it is there");
        assert_eq!(received, long);
        assert!(matches!(ours.send(&(long + "x"), &[]), Err(Error::TooLong { .. })));
        // Another program may send more; the first part would be valid JSON.
        let more = format!("1{}", " ".repeat(MAX_MESSAGE_BYTES));
        rustix::net::send(&ours.socket, more.as_bytes(), SendFlags::empty()).expect("the socket takes it");
        assert!(matches!(theirs.recv::<u64>(SOON), Err(Error::TooLong { .. })));
    }
}

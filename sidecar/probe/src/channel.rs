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

/// Longest message, bytes: below what a socket's default buffer takes.
const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// Descriptors of one message at most.
pub const MAX_FDS: usize = 128;

/// One end.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Two ends.
    pub fn pair() -> Result<(Channel, OwnedFd), Error> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(Error::kernel("socketpair"))?;
        Ok((Channel { socket: ours }, theirs))
    }

    /// The end that this descriptor is.
    pub fn from_socket(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// Sends `message` and copies of `fds`.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than 128 KiB, or the kernel's.
    ///
    /// # Panics
    /// If they are more than [`MOST_FDS`].
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Error::TooLong { limit: MAX_MESSAGE_BYTES });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fits = fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "at most {MAX_FDS} descriptors beside a message");
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(source) => return Err(Error::Kernel { call: "sendmsg", source }),
            }
        }
    }

    /// The next message with its descriptors, within `limit`; none when the other end is gone.
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
        // What did not fit is gone: the rest is not what was said, also when it is JSON.
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::TooLong { limit: MAX_MESSAGE_BYTES });
        }
        let got = got.bytes;
        let fds = ancillary.drain().filter_map(rights).flatten().collect();
        if got == 0 { Ok(None) } else { Ok(Some((serde_json::from_slice(&bytes[..got])?, fds))) }
    }

    /// Tells the other end that nothing more comes.
    pub fn close(&self) {
        // Fails only when the other end is gone already.
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
        let (heard, _) = theirs.recv::<String>(SOON).expect("it was sent").expect("it is there");
        assert_eq!(heard, long);
        assert!(matches!(ours.send(&(long + "x"), &[]), Err(Error::TooLong { .. })));
        // Another program may send more; the first part of it would be good JSON.
        let more = format!("1{}", " ".repeat(MAX_MESSAGE_BYTES));
        rustix::net::send(&ours.socket, more.as_bytes(), SendFlags::empty()).expect("the socket takes it");
        assert!(matches!(theirs.recv::<u64>(SOON), Err(Error::TooLong { .. })));
    }
}

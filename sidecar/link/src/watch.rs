//! The engine's supervisor watches the sidecar: the worker sends it the control page and a pidfd of the sidecar.
//!
//! A sidecar whose scheduler hangs keeps memory that its peers need and streams that its clients wait for. The engine's
//! supervisor ends it, and the sidecar's own supervisor restarts it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::control::ControlPage;
use crate::error::{LinkError, syscall_error};
use crate::frame::{MessageKind, ProtocolError};
use crate::hang::{HangDetector, WatchedProcess};
use crate::process_exit::PeerProcess;

/// Interval between two checks of the sidecar.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A sidecar whose scheduler has not run for this long is hung. The scheduler runs at least once a second, and may wait
/// 5 s for the tables and 5 s for an engine that accepts no message.
pub const SIDECAR_HANG_TIMEOUT: Duration = Duration::from_secs(12);

/// The control page and a pidfd of the sidecar.
const DESCRIPTORS: usize = 2;

/// Worker: sends the sidecar's control page and pidfd to its supervisor, over `socket`.
///
/// # Errors
/// The supervisor has exited.
pub fn send_watch(
    socket: BorrowedFd<'_>,
    control: &ControlPage,
    sidecar: BorrowedFd<'_>,
) -> Result<(), LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [control.fd(), sidecar];
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(fits, "room for {DESCRIPTORS} descriptors holds them");
    let sent = sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL);
    sent.map(drop).map_err(syscall_error("sendmsg"))
}

/// Supervisor: returns the watch that its worker has sent over `socket`, if any.
///
/// # Errors
/// The message does not carry a control page and a pidfd.
pub fn recv_watch(socket: BorrowedFd<'_>) -> Result<Option<SidecarWatch>, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut byte = [0];
    match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
        Ok(received) if received.bytes == 0 => return Ok(None),
        Ok(_) => {}
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(syscall_error("recvmsg")(error)),
    }
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = fds.flatten().collect();
    let got = descriptors.len();
    let [control, sidecar]: [OwnedFd; DESCRIPTORS] = descriptors
        .try_into()
        .map_err(|_| ProtocolError::Descriptors { kind: MessageKind::Model, got, expected: DESCRIPTORS })?;
    Ok(Some(SidecarWatch::new(ControlPage::open_any_layers(control)?, PeerProcess::new(sidecar))))
}

/// Result of a check of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStatus {
    /// The scheduler runs, or has not started.
    Running,
    /// The scheduler has been silent for this long, at least [`SIDECAR_HANG_TIMEOUT`].
    Hung(Duration),
    /// The process has exited.
    Dead,
}

/// A sidecar, as seen by its engine's supervisor.
#[derive(Debug)]
pub struct SidecarWatch {
    page: ControlPage,
    process: PeerProcess,
    watched_process: WatchedProcess,
    hang_detector: HangDetector,
}

impl SidecarWatch {
    fn new(page: ControlPage, process: PeerProcess) -> SidecarWatch {
        let silence = HangDetector::new(Instant::now(), page.heartbeats(), 2 * CHECK_INTERVAL);
        let watched = WatchedProcess::new(process.pidfd());
        SidecarWatch { page, process, watched_process: watched, hang_detector: silence }
    }

    /// Checks the sidecar. Must be called every [`CHECK_INTERVAL`].
    ///
    /// # Errors
    /// The wait for the pidfd failed.
    pub fn check(&mut self, now: Instant) -> Result<WatchStatus, LinkError> {
        if self.process.wait_exit(Duration::ZERO)? {
            return Ok(WatchStatus::Dead);
        }
        let beats = self.page.heartbeats();
        let silent = self.hang_detector.check(now, beats, &self.watched_process);
        Ok(if beats > 0 && silent >= SIDECAR_HANG_TIMEOUT {
            WatchStatus::Hung(silent)
        } else {
            WatchStatus::Running
        })
    }

    /// Kills the sidecar.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&self) -> Result<(), LinkError> {
        self.process.kill()
    }
}

impl AsFd for SidecarWatch {
    /// Readable once the sidecar has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// Starts a process in place of a sidecar; returns it, its page and the supervisor's watch.
    fn sidecar() -> (Child, ControlPage, SidecarWatch) {
        let child = Command::new("sleep").arg("30").spawn().unwrap();
        let page = ControlPage::create(2).unwrap();
        let (worker, supervisor) = UnixStream::pair().unwrap();
        assert!(recv_watch(supervisor.as_fd()).unwrap().is_none(), "nothing was shown yet");
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        send_watch(worker.as_fd(), &page, pidfd.as_fd()).unwrap();
        let watch = recv_watch(supervisor.as_fd()).unwrap().expect("it was shown");
        drop(worker);
        assert!(recv_watch(supervisor.as_fd()).unwrap().is_none(), "a worker that ended shows nothing more");
        (child, page, watch)
    }

    /// Checks twice a second over `seconds` of a simulated clock.
    fn check_for(watch: &mut SidecarWatch, begun: Instant, seconds: std::ops::Range<u64>) -> WatchStatus {
        let moments =
            (2 * seconds.start + 1..=2 * seconds.end).map(|half| begun + half as u32 * CHECK_INTERVAL);
        moments.map(|now| watch.check(now).unwrap()).last().expect("a look")
    }

    #[test]
    fn sidecar_without_heartbeats_is_hung_after_limit() {
        let (mut child, page, mut watch) = sidecar();
        let begun = Instant::now();
        assert_eq!(
            check_for(&mut watch, begun, 0..30),
            WatchStatus::Running,
            "it loads: its scheduler has not begun"
        );
        page.heartbeat();
        assert_eq!(check_for(&mut watch, begun, 30..39), WatchStatus::Running);
        page.heartbeat();
        assert_eq!(check_for(&mut watch, begun, 39..48), WatchStatus::Running);
        assert!(matches!(check_for(&mut watch, begun, 48..88), WatchStatus::Hung(_)));
        watch.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watch.check(begun).unwrap(), WatchStatus::Dead);
    }
}

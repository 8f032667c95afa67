//! How the supervisor of an engine watches the sidecar: the worker hands on the control page and a pidfd of the sidecar.
//!
//! A sidecar whose scheduler does not run keeps memory that its neighbours need and streams that its clients wait for. Its
//! engine's supervisor ends it; its own supervisor starts it again.

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

/// How often a supervisor looks at the sidecar.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A sidecar whose scheduler has not run for this long is hung. It runs once a second at least, and may wait 5 s for the tables
/// and 5 s for an engine that takes no message.
pub const SIDECAR_HANG_TIMEOUT: Duration = Duration::from_secs(12);

/// The control page and a pidfd of the sidecar.
const DESCRIPTORS: usize = 2;

/// Worker: shows the sidecar to its supervisor, at the other end of `socket`.
///
/// # Errors
/// The supervisor is gone.
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

/// Supervisor: what its worker has shown at the other end of `socket`, if it has.
///
/// # Errors
/// Something else than a control page and a pidfd came.
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

/// What a look at the sidecar found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStatus {
    /// Its scheduler runs, or has not begun to.
    Running,
    /// Its scheduler has not run for this long, as far as it counts, which is longer than [`SIDECAR_LIMIT`].
    Hung(Duration),
    /// The process is dead.
    Dead,
}

/// A sidecar, as its engine's supervisor sees it.
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

    /// To be called every [`LOOK_EVERY`].
    ///
    /// # Errors
    /// The pidfd cannot be asked.
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

    /// Ends the sidecar.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&self) -> Result<(), LinkError> {
        self.process.kill()
    }
}

impl AsFd for SidecarWatch {
    /// Readable once the sidecar is dead.
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

    /// A process that stands for a sidecar, its page, and the supervisor's view of both.
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

    /// Looks twice a second, over seconds of a clock of the test's own.
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

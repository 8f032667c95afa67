//! The thread that ends this process after its sidecar exits, even inside a step.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};

use super::exit_code::EXIT_SIDECAR_GONE;

/// Time for an idle worker to read a last message (`Bye`) and exit by itself. Well below the limit of 100 ms.
const EXIT_GRACE: Duration = Duration::from_millis(40);

/// Starts the thread, which watches `socket`.
pub(super) fn start(socket: BorrowedFd<'_>) -> anyhow::Result<()> {
    let socket = socket.try_clone_to_owned().context("watched socket")?;
    let watch = move || {
        wait_for_end(&socket);
        std::thread::sleep(EXIT_GRACE);
        // Skip destructors and exit handlers: a step may be running, and other tenants may use the memory by now.
        signal_hook::low_level::exit(i32::from(EXIT_SIDECAR_GONE));
    };
    std::thread::Builder::new().name("sidecar-watch".to_owned()).spawn(watch).context("watcher thread")?;
    Ok(())
}

/// Blocks until the peer closes its end.
fn wait_for_end(socket: &OwnedFd) {
    loop {
        // With no requested events, poll reports only that the peer closed, never data.
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        if poll(&mut fds, None).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

//! The thread that ends this process when its sidecar is gone, even inside a step.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};

use super::EXIT_SIDECAR_GONE;

/// What an idle worker gets to read a last message (`Bye`) and end by itself. Well below the 100 ms allowed.
const EXIT_GRACE: Duration = Duration::from_millis(40);

/// Watches `socket` from now on.
pub(super) fn start(socket: BorrowedFd<'_>) -> anyhow::Result<()> {
    let socket = socket.try_clone_to_owned().context("watched socket")?;
    let watch = move || {
        wait_for_end(&socket);
        std::thread::sleep(EXIT_GRACE);
        // No destructors, no exit handlers: a step may be running, and memory is the sidecar's neighbours' now.
        signal_hook::low_level::exit(i32::from(EXIT_SIDECAR_GONE));
    };
    std::thread::Builder::new().name("sidecar-watch".to_owned()).spawn(watch).context("watcher thread")?;
    Ok(())
}

/// Returns when the peer has closed its end.
fn wait_for_end(socket: &OwnedFd) {
    loop {
        // No events asked for: only the end of the peer is reported, never data.
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        if poll(&mut fds, None).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

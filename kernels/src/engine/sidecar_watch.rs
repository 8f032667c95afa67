//! The thread that ends this process after its sidecar exits, even inside a step.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use sluice_link::socket::wait_hang_up;

use super::exit_code::EXIT_SIDECAR_GONE;

/// Time for an idle worker to read a last message (`Bye`) and exit by itself. Well below the limit of 100 ms.
const EXIT_GRACE: Duration = Duration::from_millis(40);

/// Starts the thread, which watches `socket`.
pub(super) fn start(socket: BorrowedFd<'_>) -> anyhow::Result<()> {
    let socket = socket.try_clone_to_owned().context("watched socket")?;
    let watch = move || {
        wait_hang_up(&socket);
        std::thread::sleep(EXIT_GRACE);
        // Skip destructors and exit handlers: a step may be running, and other tenants may use the memory by now.
        signal_hook::low_level::exit(i32::from(EXIT_SIDECAR_GONE));
    };
    std::thread::Builder::new().name("sidecar-watch".to_owned()).spawn(watch).context("watcher thread")?;
    Ok(())
}

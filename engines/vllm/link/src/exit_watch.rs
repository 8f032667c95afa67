//! The thread that ends this process after its sidecar, even inside a pass.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use sluice_link::socket::wait_hang_up;

use crate::failure::Failure;

/// Time for the process to read a last message and exit by itself. Well below the limit of 100 ms.
const EXIT_GRACE: Duration = Duration::from_millis(40);

/// Starts the thread, which watches `socket`.
pub(crate) fn start(socket: BorrowedFd<'_>, status: i32) -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::Memory(format!("the watcher's thread: {error}"));
    let socket: OwnedFd = socket.try_clone_to_owned().map_err(refused)?;
    let watch = move || {
        wait_hang_up(&socket);
        std::thread::sleep(EXIT_GRACE);
        // SAFETY: ends the process without exit handlers and destructors: a pass may run in another thread, and other
        // tenants may use the memory by now.
        unsafe { libc::_exit(status) }
    };
    std::thread::Builder::new().name("sidecar-watch".to_owned()).spawn(watch).map_err(refused)?;
    Ok(())
}

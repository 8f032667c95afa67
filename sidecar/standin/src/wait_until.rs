//! [`wait_until`].

use std::time::Duration;

/// Polls `done` until it returns `true` or `given_up` does. Waits are short in passing tests, so it yields at first and
/// sleeps only later.
pub fn wait_until(
    given_up: &(dyn Fn() -> bool + Sync),
    mut done: impl FnMut() -> Result<bool, u32>,
) -> Result<(), u32> {
    let mut tries = 0_u32;
    while !done()? {
        if given_up() {
            return Ok(());
        }
        tries = tries.saturating_add(1);
        if tries < 200 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

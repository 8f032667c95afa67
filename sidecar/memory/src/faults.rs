//! Faults that tests switch on: each breaks one promise, so that a test can show that it would notice.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What goes wrong. The default: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The copy with this number from now on (1 = the next) fails after its first chunk, a swap after its first block.
    pub fail_copy: Option<u64>,
    /// Each chunk of a copy takes this much longer, and each block of a swap.
    pub chunk_delay: Duration,
    /// A byte of every slot is flipped after its copy.
    pub flip_slot_byte: bool,
    /// In the block that comes from the host tier with this number from now on (1 = the next) every byte is inverted.
    pub corrupt_block: Option<u64>,
    /// Copies do not wait for the reader that they name.
    pub skip_after_wait: bool,
    /// So many further `Create` actions find no memory.
    pub fail_creates: u32,
    /// The chunks of a loan are unmapped here and released so long after their bytes are promised. Zero: before, as it
    /// must be.
    pub early_earmark: Duration,
}

/// Faults that the owner changes while worker threads look at them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFaults(Arc<Mutex<Faults>>);

impl SharedFaults {
    pub(crate) fn set(&self, faults: Faults) {
        *self.lock() = faults;
    }

    pub(crate) fn current(&self) -> Faults {
        self.lock().clone()
    }

    /// Counts one copy; true when it is the one to fail.
    pub(crate) fn should_fail_copy(&self) -> bool {
        let mut faults = self.lock();
        let left = faults.fail_copy.map(|left| left.saturating_sub(1));
        faults.fail_copy = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// Counts blocks that came from the host tier; which of these is the one to spoil.
    pub(crate) fn corrupt_index(&self, blocks: usize) -> Option<usize> {
        let mut faults = self.lock();
        let number = faults.corrupt_block.filter(|number| *number > 0)?;
        let past = number.saturating_sub(blocks as u64);
        faults.corrupt_block = Some(past).filter(|past| *past > 0);
        (past == 0).then_some(number as usize - 1)
    }

    /// Waits as long as a chunk or block is to take longer.
    pub(crate) fn delay(&self) {
        let slow = self.current().chunk_delay;
        if !slow.is_zero() {
            std::thread::sleep(slow);
        }
    }

    /// Counts one creation; true when it is to fail.
    pub(crate) fn should_fail_create(&self) -> bool {
        let mut faults = self.lock();
        let fails = faults.fail_creates > 0;
        faults.fail_creates = faults.fail_creates.saturating_sub(1);
        fails
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().expect("no holder of the faults panics")
    }
}

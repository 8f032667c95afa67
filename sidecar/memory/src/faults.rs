//! Faults that tests inject. Each breaks one guarantee, so that a test can show that it detects the
//! violation.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Injected faults. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The copy with this number from now on (1 = the next) fails after its first chunk, a swap after its
    /// first block.
    pub fail_copy: Option<u64>,
    /// Additional time for each chunk of a copy and each block of a swap.
    pub chunk_delay: Duration,
    /// Flip a byte of every slot after its copy.
    pub flip_slot_byte: bool,
    /// Invert every byte of the block with this number that is copied from the host tier from now on (1 = the
    /// next).
    pub corrupt_layer_block: Option<u64>,
    /// Copies do not wait for their reader.
    pub skip_after_wait: bool,
    /// Number of further `Create` actions that find no memory.
    pub fail_creates: u32,
    /// Time after the earmark at which the chunks of a loan are released, while they may still be mapped
    /// here. Zero: before the earmark, which is correct.
    pub early_earmark: Duration,
}

/// Faults that the owner changes while worker threads read them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFaults(Arc<Mutex<Faults>>);

impl SharedFaults {
    pub(crate) fn set(&self, faults: Faults) {
        *self.lock() = faults;
    }

    pub(crate) fn current(&self) -> Faults {
        self.lock().clone()
    }

    /// Counts one copy. Returns true if it must fail.
    pub(crate) fn should_fail_copy(&self) -> bool {
        let mut faults = self.lock();
        let left = faults.fail_copy.map(|left| left.saturating_sub(1));
        faults.fail_copy = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// Counts blocks from the host tier. Returns the index of the one to corrupt.
    pub(crate) fn corrupt_index(&self, layer_blocks: usize) -> Option<usize> {
        let mut faults = self.lock();
        let number = faults.corrupt_layer_block.filter(|number| *number > 0)?;
        let past = number.saturating_sub(layer_blocks as u64);
        faults.corrupt_layer_block = Some(past).filter(|past| *past > 0);
        (past == 0).then_some(number as usize - 1)
    }

    /// Sleeps for the additional time of a chunk or block.
    pub(crate) fn delay(&self) {
        let slow = self.current().chunk_delay;
        if !slow.is_zero() {
            std::thread::sleep(slow);
        }
    }

    /// Counts one creation. Returns true if it must fail.
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

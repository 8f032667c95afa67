//! Operations of streams on words of memory.

use std::sync::atomic::Ordering;

use crate::abi::{BatchOperation, code};
use crate::address_space::{half_word, word};
use crate::wait_until::wait_until;

/// An operation on one word.
#[derive(Clone, Copy)]
pub struct WordOperation {
    pub action: WordAction,
    pub address: u64,
    pub value: u64,
    /// Whether the word has 64 bits rather than 32.
    pub is_wide: bool,
}

/// What is done with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordAction {
    /// Waits until the word matches the value: at least (0, circular), equal (1), a common bit (2), a bit clear in both
    /// (3).
    Wait(u32),
    Write,
}

impl WordOperation {
    /// A wait, with the flags of the driver.
    pub fn wait(address: u64, value: u64, flags: u32, is_wide: bool) -> Result<Self, u32> {
        // CU_STREAM_WAIT_VALUE_FLUSH is 1 << 30: the device cannot flush remote writes.
        if flags > 3 {
            return Err(if flags >> 30 == 0 { code::INVALID_VALUE } else { code::NOT_SUPPORTED });
        }
        Self { action: WordAction::Wait(flags), address, value, is_wide }.checked()
    }

    /// A write, with the flags of the driver: 1 leaves out a barrier, which changes nothing here.
    pub fn write(address: u64, value: u64, flags: u32, is_wide: bool) -> Result<Self, u32> {
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        Self { action: WordAction::Write, address, value, is_wide }.checked()
    }

    /// Converts from the driver's form.
    pub fn from_batch(operation: &BatchOperation) -> Result<Self, u32> {
        let BatchOperation { address, value, flags, .. } = *operation;
        match operation.operation {
            // A value of 32 bits takes the first half of its field.
            1 => Self::wait(address, value & 0xffff_ffff, flags, false),
            2 => Self::write(address, value & 0xffff_ffff, flags, false),
            4 => Self::wait(address, value, flags, true),
            5 => Self::write(address, value, flags, true),
            _ => Err(code::NOT_SUPPORTED),
        }
    }

    /// Converts to the driver's form.
    pub fn to_batch(self) -> BatchOperation {
        let (narrow, flags) = match self.action {
            WordAction::Wait(flags) => (1, flags),
            WordAction::Write => (2, 0),
        };
        let operation = if self.is_wide { narrow + 3 } else { narrow };
        BatchOperation {
            operation,
            padding: 0,
            address: self.address,
            value: self.value,
            flags,
            rest: [0; 5],
        }
    }

    /// Runs it. A wait ends early when `given_up` returns `true`.
    pub fn run(self, given_up: &(dyn Fn() -> bool + Sync)) -> Result<(), u32> {
        let Self { address, value, .. } = self;
        match (self.action, self.is_wide) {
            (WordAction::Write, true) => word(address, |word| word.store(value, Ordering::Release)),
            (WordAction::Write, false) => {
                half_word(address, |word| word.store(value as u32, Ordering::Release))
            }
            (WordAction::Wait(flags), true) => wait_until(given_up, || {
                word(address, |word| is_satisfied(word.load(Ordering::Acquire), value, flags))
            }),
            (WordAction::Wait(flags), false) => wait_until(given_up, || {
                half_word(address, |word| {
                    is_satisfied_narrow(word.load(Ordering::Acquire), value as u32, flags)
                })
            }),
        }
    }

    fn checked(self) -> Result<Self, u32> {
        let alignment = if self.is_wide { 8 } else { 4 };
        if self.address != 0 && self.address.is_multiple_of(alignment) {
            Ok(self)
        } else {
            Err(code::INVALID_VALUE)
        }
    }
}

fn is_satisfied(word: u64, value: u64, flags: u32) -> bool {
    match flags {
        0 => word.wrapping_sub(value).cast_signed() >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => (word | value) != u64::MAX,
    }
}

fn is_satisfied_narrow(word: u32, value: u32, flags: u32) -> bool {
    match flags {
        0 => word.wrapping_sub(value).cast_signed() >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => (word | value) != u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::{is_satisfied, is_satisfied_narrow};

    #[test]
    fn a_wait_compares_as_the_driver_documents_it() {
        assert!(is_satisfied(5, 5, 0) && is_satisfied(6, 5, 0) && !is_satisfied(4, 5, 0));
        assert!(is_satisfied(1, u64::MAX, 0), "at least, on a circle");
        assert!(is_satisfied(5, 5, 1) && !is_satisfied(6, 5, 1));
        assert!(is_satisfied(6, 2, 2) && !is_satisfied(4, 2, 2));
        assert!(is_satisfied(5, 2, 3) && !is_satisfied(!2, 2, 3));
    }

    #[test]
    fn a_word_of_32_bits_has_a_circle_of_its_own() {
        assert!(is_satisfied_narrow(1, u32::MAX, 0) && !is_satisfied(1, u32::MAX.into(), 0));
        assert!(is_satisfied_narrow(5, 2, 3) && !is_satisfied_narrow(!2, 2, 3));
    }
}

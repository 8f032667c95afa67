//! Places in memory: the space that an instruction names, and the one that an address is in.

use crate::fault::Space;

/// The space that an instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Named {
    Global = 0,
    Shared = 1,
    Param = 2,
    Local = 3,
    Generic = 4,
}

impl Named {
    /// Out of the lowest bits of `Instruction::detail`.
    #[inline(always)]
    pub fn of(detail: u32) -> Named {
        match detail & 7 {
            0 => Named::Global,
            1 => Named::Shared,
            2 => Named::Param,
            3 => Named::Local,
            _ => Named::Generic,
        }
    }
}

/// A place in a state space: an offset, or an address of global memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Where {
    pub space: Space,
    pub address: u64,
}

//! A decoded instruction: what it does to 32 lanes, and the numbers of its operands.

use crate::lanes::{Lanes, Slot};

/// What an instruction does to the lanes of `Lanes::mask`.
///
/// # Safety
/// The instruction belongs to the kernel whose registers the lanes have, so that every slot is below their count.
pub(crate) type Execute = unsafe fn(&mut Lanes, &Instruction);

/// How the instruction changes which lanes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// The next instruction follows, and nothing can go wrong.
    Plain,
    /// The next instruction follows, or a fault.
    Faulting,
    /// All lanes that the mask in `e` names take part together.
    Collective,
    /// To the instruction with number `value`.
    Branch,
    /// To the entry of table `value` with index `a`.
    BranchTable,
    /// The lanes end.
    Exit,
    /// A barrier of the block.
    Barrier,
    /// The launch ends with a fault.
    Trap,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub execute: Execute,
    pub flow: Flow,
    /// Whether lanes run where the guard is false.
    pub negated: bool,
    /// Predicate of the lanes that run, or `NONE`.
    pub guard: Slot,
    /// Destination.
    pub d: Slot,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
    /// Fourth source; the member mask of a collective.
    pub e: Slot,
    /// Registers of vectors and matrices.
    pub list: [Slot; 14],
    /// An offset, a size or a target.
    pub value: u64,
    /// Details that the operation knows.
    pub detail: u32,
}

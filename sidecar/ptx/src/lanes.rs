//! The 32 lanes of a warp as an instruction sees them.

use crate::fault::FaultKind;
pub(crate) use crate::slots::{LANES, NONE, Slot};
use crate::view::BlockView;

/// One value of each lane.
pub(crate) type Vector<T> = [T; LANES];

/// The registers of one warp and what its block shares, while some lanes execute an instruction.
pub(crate) struct Lanes<'a> {
    registers: *mut u32,
    predicates: *mut u32,
    /// The lanes that execute.
    pub mask: u32,
    /// At a collective instruction, the lanes of the warp that have not ended.
    pub alive: u32,
    /// What went wrong, and in which lane.
    pub fault: Option<Box<(FaultKind, usize)>>,
    /// Memory and what it is checked with.
    pub view: BlockView<'a>,
}

/// A value that a register can hold: how it is stored there.
pub(crate) trait Lane: Copy {
    type Stored: Copy + Default;
    fn read(stored: Self::Stored) -> Self;
    fn stored(self) -> Self::Stored;
}

macro_rules! lanes {
    ($($T:ty, $Stored:ty, $read:expr, $stored:expr;)*) => { $(
        impl Lane for $T {
            type Stored = $Stored;
            #[inline(always)]
            fn read(stored: $Stored) -> $T { ($read)(stored) }
            #[inline(always)]
            fn stored(self) -> $Stored { ($stored)(self) }
        }
    )* };
}
lanes! {
    u8, u32, |v| v as u8, u32::from;
    i8, u32, |v| v as i8, |v| v as u8 as u32;
    u16, u32, |v| v as u16, u32::from;
    i16, u32, |v| v as i16, |v| v as u16 as u32;
    u32, u32, |v| v, |v| v;
    i32, u32, |v| v as i32, |v| v as u32;
    f32, u32, f32::from_bits, f32::to_bits;
    u64, u64, |v| v, |v| v;
    i64, u64, |v| v as i64, |v| v as u64;
    f64, u64, f64::from_bits, f64::to_bits;
}

impl<'a> Lanes<'a> {
    /// # Safety
    /// `registers` has 32 words for each slot of the kernel and `predicates` one for each predicate, and this is the
    /// only use of them as long as the result lives.
    pub unsafe fn new(registers: *mut u32, predicates: *mut u32, view: BlockView<'a>) -> Self {
        Lanes { registers, predicates, mask: 0, alive: 0, fault: None, view }
    }

    /// The values of a register.
    ///
    /// # Safety
    /// `slot` is a register of the kernel, as wide as `T` is stored.
    #[inline(always)]
    pub unsafe fn get<T: Lane>(&self, slot: Slot) -> Vector<T::Stored> {
        // SAFETY: the caller's promise; registers are aligned for u32, and pairs are read unaligned.
        unsafe { self.registers.add(slot as usize * LANES).cast::<Vector<T::Stored>>().read_unaligned() }
    }

    /// The value of one lane.
    ///
    /// # Safety
    /// As for [`Self::get`]; `lane` is below 32.
    #[inline(always)]
    pub unsafe fn get_lane<T: Lane>(&self, slot: Slot, lane: usize) -> T {
        // SAFETY: the caller's promise.
        let stored = unsafe {
            self.registers.add(slot as usize * LANES).cast::<T::Stored>().add(lane).read_unaligned()
        };
        T::read(stored)
    }

    /// Sets a register in the lanes of the mask.
    ///
    /// # Safety
    /// As for [`Self::get`].
    #[inline(always)]
    pub unsafe fn put<T: Lane>(&mut self, slot: Slot, values: &Vector<T::Stored>) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.registers.add(slot as usize * LANES).cast::<Vector<T::Stored>>();
            if self.mask == u32::MAX {
                to.write_unaligned(*values);
                return;
            }
            let mut merged = to.read_unaligned();
            for lane in 0..LANES {
                merged[lane] = if self.mask >> lane & 1 != 0 { values[lane] } else { merged[lane] };
            }
            to.write_unaligned(merged);
        }
    }

    /// Sets a register in one lane.
    ///
    /// # Safety
    /// As for [`Self::get_lane`].
    #[inline(always)]
    pub unsafe fn put_lane<T: Lane>(&mut self, slot: Slot, lane: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe {
            self.registers
                .add(slot as usize * LANES)
                .cast::<T::Stored>()
                .add(lane)
                .write_unaligned(value.stored());
        }
    }

    /// The lanes in which a predicate is true.
    ///
    /// # Safety
    /// `slot` is a predicate of the kernel.
    #[inline(always)]
    pub unsafe fn predicate(&self, slot: Slot) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { *self.predicates.add(slot as usize) }
    }

    /// Sets a predicate in the lanes of the mask, if it is not [`NONE`].
    ///
    /// # Safety
    /// `slot` is a predicate of the kernel or `NONE`.
    #[inline(always)]
    pub unsafe fn put_predicate(&mut self, slot: Slot, lanes: u32) {
        if slot == NONE {
            return;
        }
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *self.predicates.add(slot as usize) };
        *to = (*to & !self.mask) | (lanes & self.mask);
    }

    /// Notes a fault of lane `lane`. The first one of an instruction counts.
    #[cold]
    pub fn fail(&mut self, kind: FaultKind, lane: usize) {
        self.fault.get_or_insert_with(|| Box::new((kind, lane)));
    }

    /// Numbers of the lanes of the mask.
    #[inline(always)]
    pub fn lanes(&self) -> Bits {
        Bits(self.mask)
    }
}

/// The numbers of the bits that are set, from the lowest.
#[derive(Clone, Copy)]
pub(crate) struct Bits(pub u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lowest = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}

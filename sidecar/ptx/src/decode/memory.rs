//! Loads, stores, atomic operations, copies, fences and conversions of addresses.

use super::{Decoded, Decoder};
use crate::instruction::{Flow, Instruction};
use crate::lanes::{NONE, Slot};
use crate::operation::binary;
use crate::ops::{access, atomics, collective, copies, moves};
use crate::place::Named;
use crate::scope::Symbol;
use crate::statement::{Operand, Statement};
use crate::types::{Ty, Width};
use crate::windows::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

/// Hints to caches, which change nothing here.
const HINTS: [&str; 17] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_last",
];

/// An address operand.
struct Address {
    slot: Slot,
    offset: u64,
    /// Whether its register has 64 bits.
    wide: bool,
    /// Whether it is a variable, the same for all lanes.
    constant: Option<u64>,
}

impl Decoder<'_> {
    pub(super) fn memory(&mut self, s: &mut Statement) -> Decoded {
        match s.name {
            "ld" | "ldu" => self.access(s, false),
            "st" => self.access(s, true),
            "atom" => self.atomic(s, true),
            "red" => self.atomic(s, false),
            "cp" => self.copy(s),
            "cvta" => self.convert_address(s),
            "isspacep" => self.is_space(s),
            "prefetch" | "prefetchu" => {
                s.take_one(&["global", "local"]);
                s.take_one(&["L1", "L2", "L2::evict_last", "L2::evict_normal"]);
                s.finish(1)?;
                self.address(s, 0)?;
                Ok(Some(self.blank()))
            }
            "membar" | "fence" => {
                s.take("proxy");
                s.take_one(&["sc", "acq_rel", "async"]);
                s.take_one(&["cta", "gl", "sys", "gpu", "cluster"]);
                s.finish(0)?;
                Ok(Some(self.plain(moves::memory_fence())))
            }
            "nanosleep" => {
                s.take("u32");
                s.finish(1)?;
                self.source(s, 0, Ty::U32)?;
                Ok(Some(self.plain(collective::nothing())))
            }
            _ => Ok(None),
        }
    }

    fn space(s: &mut Statement) -> Named {
        match s.take_one(&["global", "shared::cta", "shared", "param", "local", "const"]) {
            Some("shared" | "shared::cta") => Named::Shared,
            Some("param") => Named::Param,
            Some("local") => Named::Local,
            // Constants have addresses of their own among those of global memory.
            Some(_) => Named::Global,
            None => Named::Generic,
        }
    }

    fn address(&mut self, s: &Statement, number: usize) -> Result<Address, String> {
        let (base, offset) = s.address(number)?;
        if let Some((width, slot)) = self.scope.register(base) {
            let wide = width == Width::W64;
            if !wide && width != Width::W32 {
                return Err(format!("{base} as an address"));
            }
            return Ok(Address { slot, offset: offset as u64, wide, constant: None });
        }
        let constant = match self.scope.symbols.get(base) {
            Some(Symbol::Param(at)) => Some(at.wrapping_add(offset as u64)),
            _ => None,
        };
        let slot = self.scope.source(&Operand::Name(base), Ty::U64, &[])?;
        Ok(Address { slot, offset: offset as u64, wide: true, constant })
    }

    fn access(&mut self, s: &mut Statement, store: bool) -> Decoded {
        let ty = s.take_type()?;
        let space = Self::space(s);
        let count = match s.take_one(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        };
        let order = s.take_one(&["volatile", "relaxed", "acquire", "release", "weak"]);
        s.take_one(&["cta", "gpu", "sys", "cluster"]);
        while s.take_one(&HINTS).is_some() {}
        s.finish(2)?;
        if ty == Ty::Pred || ty.bytes() * count > 16 {
            return Err("a vector of this size".into());
        }
        let (place, value) = if store { (0, 1) } else { (1, 0) };
        let registers = s.list(value)?;
        if registers.len() as u64 != count {
            return Err(format!("{} registers, not {count}", registers.len()));
        }
        let address = self.address(s, place)?;
        let mut i = Instruction { flow: Flow::Faulting, a: address.slot, b: count as u32, ..self.blank() };
        i.detail = space as u32
            | match order {
                Some("acquire") => access::ACQUIRE | access::STRONG,
                Some("release") => access::RELEASE | access::STRONG,
                Some("volatile" | "relaxed") => access::STRONG,
                _ => 0,
            };
        if ty.is_signed() && !store {
            i.detail |= access::SIGNED;
        }
        for (k, operand) in registers.iter().enumerate() {
            let width = self.width_of(operand).unwrap_or(ty.width());
            if (ty.width() == Width::W64 && width != Width::W64) || (ty.bytes() == 4 && width == Width::W16) {
                return Err("a register that is smaller than the type".into());
            }
            i.list[k] = match store {
                true => self.scope.source(operand, ty, &[width])?,
                false => self.register(operand, width)?,
            };
            i.detail |= u32::from(width == Width::W64) << (access::WIDE + k as u32);
            // A 16-bit register keeps its value zero-extended; what is loaded with a sign is cut again.
            if width == Width::W16 && ty == Ty::S8 && !store {
                return Err("ld.s8 into a register of 16 bits".into());
            }
            if width == Width::W16 {
                i.detail &= !access::SIGNED;
            }
        }
        i.value = address.offset;
        let operation = match (space, address.constant) {
            (Named::Param, Some(at)) if !store => {
                i.value = at;
                access::param(ty.bytes())
            }
            (Named::Param, _) if store => return Err("a store to parameters".into()),
            _ => access::access(store, ty.bytes(), address.wide),
        };
        i.execute = self.pick(operation);
        Ok(Some(i))
    }

    fn width_of(&self, operand: &Operand) -> Option<Width> {
        match operand {
            Operand::Name(name) => self.scope.register(name).map(|found| found.0),
            _ => None,
        }
    }

    fn atomic(&mut self, s: &mut Statement, returns: bool) -> Decoded {
        let ty = s.take_type()?;
        let space = Self::space(s);
        s.take_one(&["relaxed", "acquire", "release", "acq_rel"]);
        s.take_one(&["cta", "gpu", "sys", "cluster"]);
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let name = s.take_one(&names).ok_or("which atomic operation?")?;
        let first = usize::from(returns);
        s.finish(first + if name == "cas" { 3 } else { 2 })?;
        let address = self.address(s, first)?;
        let operation = atomics::atomic(name, ty, address.wide).ok_or("an atomic operation of this type")?;
        let d = if returns { self.destination(s, 0, ty)? } else { NONE };
        let b = self.source(s, first + 1, ty)?;
        let c = if name == "cas" { self.source(s, first + 2, ty)? } else { NONE };
        let (a, value, detail) = (address.slot, address.offset, space as u32);
        Ok(Some(Instruction { flow: Flow::Faulting, d, a, b, c, value, detail, ..self.plain(operation) }))
    }

    fn copy(&mut self, s: &mut Statement) -> Decoded {
        if !s.take("async") {
            return Err("only cp.async is known".into());
        }
        let faulting = Instruction { flow: Flow::Faulting, ..self.blank() };
        if s.take("commit_group") {
            s.finish(0)?;
            return Ok(Some(self.plain(copies::commit())));
        }
        if s.take("wait_all") {
            s.finish(0)?;
            return Ok(Some(Instruction { detail: 1, execute: self.pick(copies::wait()), ..faulting }));
        }
        if s.take("wait_group") {
            s.finish(1)?;
            let value = Self::immediate(s, 0)?;
            return Ok(Some(Instruction { value, execute: self.pick(copies::wait()), ..faulting }));
        }
        let whole = s.take_one(&["ca", "cg"]).ok_or("cp.async.ca or cp.async.cg")? == "cg";
        if !(s.take("shared") || s.take("shared::cta")) || !s.take("global") {
            return Err("cp.async goes from global to shared memory".into());
        }
        s.take_one(&["L2::64B", "L2::128B", "L2::256B"]);
        let partial = s.operands.len() == 4;
        s.finish(if partial { 4 } else { 3 })?;
        let (to, from) = (self.address(s, 0)?, self.address(s, 1)?);
        let bytes = Self::immediate(s, 2)?;
        if !matches!(bytes, 4 | 8 | 16) || (whole && bytes != 16) || to.wide || !from.wide {
            return Err("a copy of this size, or addresses of this size".into());
        }
        let b = if partial { self.source(s, 3, Ty::U32)? } else { NONE };
        let mut i = Instruction { a: to.slot, c: from.slot, b, value: bytes, ..faulting };
        i.list[0] = to.offset as u32;
        i.list[1] = i32::try_from(from.offset as i64).map_err(|_| "an offset beyond 32 bits")? as u32;
        i.execute = self.pick(copies::start_copy());
        Ok(Some(i))
    }

    /// Addresses of a space to generic ones, and back.
    fn convert_address(&mut self, s: &mut Statement) -> Decoded {
        let back = s.take("to");
        let window = match s.take_one(&["global", "const", "shared::cta", "shared", "local", "param"]) {
            Some("global" | "const") => 0,
            Some("shared" | "shared::cta") => SHARED_WINDOW,
            Some("local") => LOCAL_WINDOW,
            Some(_) => PARAM_WINDOW,
            None => return Err("cvta of which space?".into()),
        };
        if !s.take("u64") {
            return Err("addresses have 64 bits".into());
        }
        s.finish(2)?;
        let (d, a) = (self.destination(s, 0, Ty::U64)?, self.source(s, 1, Ty::U64)?);
        let b = self.scope.literal(window, Ty::U64)?;
        let operation = match back {
            true => binary(|a: u64, b: u64| a.wrapping_sub(b)),
            false => binary(|a: u64, b: u64| a.wrapping_add(b)),
        };
        Ok(Some(Instruction { d, a, b, ..self.plain(operation) }))
    }

    fn is_space(&mut self, s: &mut Statement) -> Decoded {
        let (first, last) = match s.take_one(&["global", "shared", "local", "param"]) {
            Some("shared") => (SHARED_WINDOW, LOCAL_WINDOW),
            Some("local") => (LOCAL_WINDOW, PARAM_WINDOW),
            Some("param") => (PARAM_WINDOW, crate::windows::MODULE_WINDOW),
            Some(_) => (0, SHARED_WINDOW),
            None => return Err("isspacep of which space?".into()),
        };
        s.finish(2)?;
        let (d, a) = (self.destination(s, 0, Ty::Pred)?, self.source(s, 1, Ty::U64)?);
        // Windows are as long as their first address, or start at zero: compared by the bits above.
        let b = self.scope.literal(first | (last - first - 1), Ty::U64)?;
        let operation = crate::operation::compare(|a: u64, b: u64| a >> 60 == b >> 60);
        Ok(Some(Instruction { d, a, b, ..self.plain(operation) }))
    }
}

//! Moves, and instructions of whole warps and blocks.

use super::{Decoded, Decoder};
use crate::barriers::{AND, ARRIVE, COUNT, NOT, OR};
use crate::instruction::{Flow, Instruction};
use crate::lanes::NONE;
use crate::operation::unary;
use crate::ops::{collective, matrix, moves};
use crate::place::Named;
use crate::statement::{Operand, Statement};
use crate::types::{Ty, Width};

impl Decoder<'_> {
    pub(super) fn moves(&mut self, s: &mut Statement) -> Decoded {
        if s.name != "mov" {
            return Ok(None);
        }
        let ty = s.take_type()?;
        s.finish(2)?;
        match (s.operand(0)?, s.operand(1)?) {
            (Operand::List(parts), _) => {
                let (count, bits) = parts_of(ty, parts.len())?;
                let width = if bits == 32 { Width::W32 } else { Width::W16 };
                let mut i = Instruction { a: self.source(s, 1, ty)?, b: count, detail: bits, ..self.blank() };
                for (k, part) in parts.iter().enumerate() {
                    i.list[k] = if *part == Operand::Name("_") { NONE } else { self.register(part, width)? };
                }
                i.execute = self.pick(moves::unpack(ty.width() == Width::W64));
                Ok(Some(i))
            }
            (_, Operand::List(parts)) => {
                let (count, bits) = parts_of(ty, parts.len())?;
                let part_ty = if bits == 32 { Ty::B32 } else { Ty::B16 };
                let mut i =
                    Instruction { d: self.destination(s, 0, ty)?, b: count, detail: bits, ..self.blank() };
                for (k, part) in parts.iter().enumerate() {
                    i.list[k] = self.scope.source(part, part_ty, &[part_ty.width()])?;
                }
                i.execute = self.pick(moves::pack(ty.width() == Width::W64));
                Ok(Some(i))
            }
            _ if ty == Ty::Pred => self.move_predicate(s),
            (_, Operand::Name(name)) if name.starts_with('%') && clock(name).is_some() => {
                let (detail, value, wide) = clock(name).ok_or("a clock")?;
                let wide_ty = ty.width() == Width::W64;
                if wide != wide_ty {
                    return Err(format!("{name} has another size"));
                }
                let d = self.destination(s, 0, ty)?;
                Ok(Some(Instruction { d, detail, value, ..self.plain(moves::clock(wide)) }))
            }
            _ => {
                let operation = match ty.width() {
                    Width::W64 => unary(|a: u64| a),
                    _ => unary(|a: u32| a),
                };
                self.arithmetic(s, operation, &[ty, ty])
            }
        }
    }

    fn move_predicate(&mut self, s: &Statement) -> Decoded {
        let d = self.destination(s, 0, Ty::Pred)?;
        let mut i = Instruction { d, ..self.plain(moves::predicates()) };
        match s.operand(1)? {
            operand @ Operand::Name(name) => match crate::statement::integer(name) {
                Some(value) => {
                    i.detail = moves::SET;
                    i.value = if value != 0 { u64::from(u32::MAX) } else { 0 };
                }
                None => {
                    i.detail = moves::COPY;
                    i.a = self.predicate(operand)?;
                }
            },
            Operand::Minus(_) => {
                i.detail = moves::SET;
                i.value = u64::from(u32::MAX);
            }
            other => return Err(format!("operand {other:?} as a predicate")),
        }
        Ok(Some(i))
    }

    pub(super) fn warp(&mut self, s: &mut Statement) -> Decoded {
        match s.name {
            "bar" | "barrier" => self.barrier(s),
            "shfl" => self.shuffle(s),
            "vote" => self.vote(s),
            "match" => self.matches(s),
            "redux" => self.reduce(s),
            "activemask" => {
                s.take("b32");
                s.finish(1)?;
                let d = self.destination(s, 0, Ty::B32)?;
                Ok(Some(Instruction { d, ..self.plain(collective::active_mask()) }))
            }
            "ldmatrix" => self.load_matrix(s),
            "mma" => self.multiply(s),
            _ => Ok(None),
        }
    }

    fn barrier(&mut self, s: &mut Statement) -> Decoded {
        if s.take("warp") {
            if !s.take("sync") {
                return Err("bar.warp.sync".into());
            }
            s.finish(1)?;
            let e = self.source(s, 0, Ty::U32)?;
            return Ok(Some(Instruction {
                flow: Flow::Collective,
                e,
                ..self.plain(collective::warp_barrier())
            }));
        }
        s.take("cta");
        s.take("aligned");
        let kind = s.take_one(&["sync", "arrive", "red"]).ok_or("which barrier?")?;
        let mut i = Instruction { flow: Flow::Barrier, ..self.blank() };
        let mut next = 0;
        if kind == "red" {
            let what = s.take_one(&["popc", "and", "or"]).ok_or("which reduction?")?;
            i.detail = match what {
                "popc" => COUNT,
                "and" => AND,
                _ => OR,
            };
            s.take(if what == "popc" { "u32" } else { "pred" });
            i.d = self.destination(s, 0, if what == "popc" { Ty::U32 } else { Ty::Pred })?;
            i.c = match s.operands.last() {
                Some(Operand::Not(name)) => {
                    i.detail |= NOT;
                    self.predicate(&Operand::Name(name))?
                }
                Some(other) => self.predicate(other)?,
                None => NONE,
            };
            next = 1;
        } else if kind == "arrive" {
            i.detail = ARRIVE;
        }
        let sources = s.operands.len() - next - usize::from(kind == "red").min(s.operands.len() - next);
        i.a = self.source(s, next, Ty::U32)?;
        match (sources, kind) {
            (1, "arrive") => return Err("bar.arrive needs a count".into()),
            (1, _) => {}
            (2, _) => i.b = self.source(s, next + 1, Ty::U32)?,
            _ => return Err("a barrier with these operands".into()),
        }
        s.finish(s.operands.len())?;
        Ok(Some(i))
    }

    fn shuffle(&mut self, s: &mut Statement) -> Decoded {
        if !s.take("sync") {
            return Err("only shfl.sync is known".into());
        }
        s.take("b32");
        let mode = s.take_one(&["up", "down", "bfly", "idx"]).unwrap_or("");
        let operation = collective::shuffle(mode).ok_or("which shuffle?")?;
        s.finish(5)?;
        let mut i = Instruction { flow: Flow::Collective, ..self.plain(operation) };
        match s.operand(0)? {
            Operand::Pair(d, p) => {
                i.d = self.register(&Operand::Name(d), Width::W32)?;
                i.list[0] = if *p == "_" { NONE } else { self.register(&Operand::Name(p), Width::Pred)? };
            }
            other => i.d = self.register(other, Width::W32)?,
        }
        i.a = self.source(s, 1, Ty::B32)?;
        i.b = self.source(s, 2, Ty::U32)?;
        i.c = self.source(s, 3, Ty::U32)?;
        i.e = self.source(s, 4, Ty::U32)?;
        Ok(Some(i))
    }

    fn vote(&mut self, s: &mut Statement) -> Decoded {
        if !s.take("sync") {
            return Err("only vote.sync is known".into());
        }
        let kind = s.take_one(&["all", "any", "uni", "ballot"]).ok_or("which vote?")?;
        let (detail, ty) = match kind {
            "all" => (collective::VOTE_ALL, Ty::Pred),
            "any" => (collective::VOTE_ANY, Ty::Pred),
            "uni" => (collective::VOTE_UNIFORM, Ty::Pred),
            _ => (collective::VOTE_BALLOT, Ty::B32),
        };
        s.take(if ty == Ty::Pred { "pred" } else { "b32" });
        s.finish(3)?;
        let mut i = Instruction { flow: Flow::Collective, detail, ..self.plain(collective::vote()) };
        i.d = self.destination(s, 0, ty)?;
        i.a = match s.operand(1)? {
            Operand::Not(name) => {
                i.detail |= collective::VOTE_NOT;
                self.predicate(&Operand::Name(name))?
            }
            other => self.predicate(other)?,
        };
        i.e = self.source(s, 2, Ty::U32)?;
        Ok(Some(i))
    }

    fn matches(&mut self, s: &mut Statement) -> Decoded {
        let all = s.take_one(&["any", "all"]).ok_or("match.any or match.all")? == "all";
        if !s.take("sync") {
            return Err("only match.sync is known".into());
        }
        let ty = s.take_type()?;
        s.finish(3)?;
        let operation = collective::matches(all, ty.width() == Width::W64);
        let mut i = Instruction { flow: Flow::Collective, ..self.plain(operation) };
        match s.operand(0)? {
            Operand::Pair(d, p) if all => {
                i.d = self.register(&Operand::Name(d), Width::W32)?;
                i.c = self.register(&Operand::Name(p), Width::Pred)?;
            }
            other => i.d = self.register(other, Width::W32)?,
        }
        i.a = self.source(s, 1, ty)?;
        i.e = self.source(s, 2, Ty::U32)?;
        Ok(Some(i))
    }

    fn reduce(&mut self, s: &mut Statement) -> Decoded {
        if !s.take("sync") {
            return Err("only redux.sync is known".into());
        }
        let ty = s.take_type()?;
        let name = s.take_one(&["add", "min", "max", "and", "or", "xor"]).ok_or("which reduction?")?;
        let full = match (name, ty) {
            ("min" | "max", Ty::U32) => format!("{name}.u32"),
            ("min" | "max", Ty::S32) => format!("{name}.s32"),
            ("add", Ty::U32 | Ty::S32) | ("and" | "or" | "xor", Ty::B32) => name.to_string(),
            _ => return Err("a reduction of this type".into()),
        };
        let found = collective::REDUCTIONS.iter().position(|(name, _)| *name == full);
        let detail = found.ok_or("which reduction?")? as u32;
        s.finish(3)?;
        let d = self.destination(s, 0, ty)?;
        let (a, e) = (self.source(s, 1, ty)?, self.source(s, 2, Ty::U32)?);
        Ok(Some(Instruction { flow: Flow::Collective, d, a, e, detail, ..self.plain(collective::reduce()) }))
    }

    fn load_matrix(&mut self, s: &mut Statement) -> Decoded {
        let count = match s.take_one(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return Err("how many matrices?".into()),
        };
        let transposed = s.take("trans");
        let named = s.take("sync") & s.take("aligned") & s.take("m8n8") & s.take("b16");
        if !named || !(s.take("shared") || s.take("shared::cta")) {
            return Err("only ldmatrix.sync.aligned.m8n8.shared.b16 is known".into());
        }
        s.finish(2)?;
        let registers = s.list(0)?;
        if registers.len() != count {
            return Err(format!("{} registers, not {count}", registers.len()));
        }
        let (base, offset) = s.address(1)?;
        let (wide, a) = match self.scope.register(base) {
            Some((width, slot)) => (width == Width::W64, slot),
            None => (false, self.scope.source(&Operand::Name(base), Ty::U32, &[])?),
        };
        let mut i = Instruction {
            flow: Flow::Collective,
            a,
            b: count as u32,
            e: self.scope.literal(u64::from(u32::MAX), Ty::U32)?,
            value: offset as u64,
            detail: Named::Shared as u32,
            ..self.plain(matrix::load_matrix(transposed, wide))
        };
        for (k, register) in registers.iter().enumerate() {
            i.list[k] = self.register(register, Width::W32)?;
        }
        Ok(Some(i))
    }

    fn multiply(&mut self, s: &mut Statement) -> Decoded {
        let shape = s.take_one(&["m16n8k16", "m16n8k8"]).ok_or("mma of this shape")?;
        let named = s.take("sync") & s.take("aligned") & s.take("row") & s.take("col") & s.take("f32");
        let ty = s.take_one(&["bf16", "f16", "tf32"]).unwrap_or("");
        if !named || !s.take(ty) || !s.take("f32") {
            return Err("only mma.sync.aligned.row.col with f32 sums is known".into());
        }
        let (operation, a, b) = matrix::multiply(shape, ty).ok_or("mma of this shape and type")?;
        s.finish(4)?;
        let mut i = Instruction { flow: Flow::Collective, ..self.plain(operation) };
        i.e = self.scope.literal(u64::from(u32::MAX), Ty::U32)?;
        let (d, a_registers, b_registers, c) = (s.list(0)?, s.list(1)?, s.list(2)?, s.list(3)?);
        if d.len() != 4 || a_registers.len() != a || b_registers.len() != b || c.len() != 4 {
            return Err("another number of registers".into());
        }
        for (k, register) in d.iter().enumerate() {
            i.list[k] = self.register(register, Width::W32)?;
        }
        for (k, register) in a_registers.iter().chain(&b_registers).enumerate() {
            i.list[4 + k] = self.scope.source(register, Ty::B32, &[Width::W32])?;
        }
        let sources = c.iter().map(|register| self.scope.source(register, Ty::F32, &[Width::W32]));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        (i.a, i.b, i.c, i.d) = (sources[0], sources[1], sources[2], sources[3]);
        Ok(Some(i))
    }
}

/// Into how many parts of how many bits a value of type `ty` is split.
fn parts_of(ty: Ty, count: usize) -> Result<(u32, u32), String> {
    match (ty.width(), count) {
        (Width::W64, 2) => Ok((2, 32)),
        (Width::W64, 4) => Ok((4, 16)),
        (Width::W32, 2) => Ok((2, 16)),
        _ => Err("a vector of this size".into()),
    }
}

/// A register that shows a clock: which, how far to shift it, and whether it has 64 bits.
fn clock(name: &str) -> Option<(u32, u64, bool)> {
    Some(match name {
        "%globaltimer" => (moves::GLOBAL_TIMER, 0, true),
        "%globaltimer_lo" => (moves::GLOBAL_TIMER, 0, false),
        "%globaltimer_hi" => (moves::GLOBAL_TIMER, 32, false),
        "%clock64" => (moves::CLOCK, 0, true),
        "%clock" => (moves::CLOCK, 0, false),
        "%clock_hi" => (moves::CLOCK, 32, false),
        _ => return None,
    })
}

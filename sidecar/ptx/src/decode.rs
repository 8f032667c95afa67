//! Instructions out of statements: each family takes the modifiers that it knows, and an unknown modifier is an error.

mod convert;
mod float;
mod half;
mod integer;
mod logic;
mod memory;
mod warp;

use crate::instruction::{Flow, Instruction};
use crate::lanes::{NONE, Slot};
use crate::operation::Operation;
use crate::ops::collective;
use crate::scope::Scope;
use crate::statement::{Operand, Statement};
use crate::types::{Ty, Width};

/// Decodes one statement.
pub(crate) struct Decoder<'s> {
    scope: &'s mut Scope,
    vectors: bool,
}

/// What a family makes of a statement: `None` if the opcode is not one of its own.
type Decoded = Result<Option<Instruction>, String>;

impl<'s> Decoder<'s> {
    pub fn new(scope: &'s mut Scope, vectors: bool) -> Self {
        Decoder { scope, vectors }
    }

    /// The instruction, and the label or table that it branches to.
    pub fn decode<'a>(
        mut self,
        mut statement: Statement<'a>,
    ) -> Result<(Instruction, Option<&'a str>), String> {
        let mut target = None;
        let s = &mut statement;
        let mut instruction = match s.name {
            "bra" => {
                s.take("uni");
                s.finish(1)?;
                target = Some(label(s, 0)?);
                Instruction { flow: Flow::Branch, ..self.blank() }
            }
            "brx" => {
                if !s.take("idx") {
                    return Err("only brx.idx is known".into());
                }
                s.take("uni");
                s.finish(2)?;
                target = Some(label(s, 1)?);
                Instruction { flow: Flow::BranchTable, a: self.source(s, 0, Ty::U32)?, ..self.blank() }
            }
            "ret" | "exit" => {
                s.take("uni");
                s.finish(0)?;
                self.exit()
            }
            "trap" | "brkpt" => {
                s.finish(0)?;
                Instruction { flow: Flow::Trap, ..self.blank() }
            }
            _ => self.family(s)?,
        };
        if let Some((name, negated)) = statement.guard {
            let Some((Width::Pred, slot)) = self.scope.register(name) else {
                return Err(format!("{name} is not a predicate"));
            };
            (instruction.guard, instruction.negated) = (slot, negated);
        }
        Ok((instruction, target))
    }

    fn family(&mut self, s: &mut Statement) -> Result<Instruction, String> {
        let families = [
            Self::memory,
            Self::moves,
            Self::warp,
            Self::logic,
            Self::convert,
            Self::half,
            Self::float,
            Self::integer,
        ];
        for family in families {
            if let Some(found) = family(self, s)? {
                return Ok(found);
            }
        }
        Err("unknown instruction, or not of this type".into())
    }

    /// An instruction that does nothing.
    fn blank(&self) -> Instruction {
        Instruction {
            execute: self.pick(collective::nothing()),
            flow: Flow::Plain,
            negated: false,
            guard: NONE,
            d: NONE,
            a: NONE,
            b: NONE,
            c: NONE,
            e: NONE,
            list: [NONE; 14],
            value: 0,
            detail: 0,
        }
    }

    /// The end of all lanes.
    pub fn exit(&self) -> Instruction {
        Instruction { flow: Flow::Exit, ..self.blank() }
    }

    fn pick(&self, operation: Operation) -> crate::instruction::Execute {
        if self.vectors { operation.vector } else { operation.portable }
    }

    fn plain(&self, operation: Operation) -> Instruction {
        Instruction { execute: self.pick(operation), ..self.blank() }
    }

    /// `d, a`, `d, a, b` and so on, with one type for each operand.
    fn arithmetic(&mut self, s: &Statement, operation: Operation, types: &[Ty]) -> Decoded {
        s.finish(types.len())?;
        let mut slots = [NONE; 5];
        slots[0] = self.destination(s, 0, types[0])?;
        for (number, ty) in types.iter().enumerate().skip(1) {
            slots[number] = self.source(s, number, *ty)?;
        }
        let [d, a, b, c, e] = slots;
        Ok(Some(Instruction { d, a, b, c, e, ..self.plain(operation) }))
    }

    /// The slot of a source operand.
    fn source(&mut self, s: &Statement, number: usize, ty: Ty) -> Result<Slot, String> {
        self.scope.source(s.operand(number)?, ty, &[ty.width()])
    }

    /// The slot of a destination register.
    fn destination(&mut self, s: &Statement, number: usize, ty: Ty) -> Result<Slot, String> {
        self.register(s.operand(number)?, ty.width())
    }

    /// The slot of a register that is written; `_` is one that is never read.
    fn register(&mut self, operand: &Operand, width: Width) -> Result<Slot, String> {
        match operand {
            Operand::Name("_") => self.scope.allocate(width, 1),
            Operand::Name(name) => match self.scope.register(name) {
                Some((found, slot)) if found == width => Ok(slot),
                Some(_) => Err(format!("{name} has another size than the type")),
                None => Err(format!("{name} is not a register")),
            },
            other => Err(format!("operand {other:?} as a destination")),
        }
    }

    /// The slot of a predicate that is read.
    fn predicate(&self, operand: &Operand) -> Result<Slot, String> {
        match operand {
            Operand::Name(name) => match self.scope.register(name) {
                Some((Width::Pred, slot)) => Ok(slot),
                _ => Err(format!("{name} is not a predicate")),
            },
            other => Err(format!("operand {other:?} as a predicate")),
        }
    }

    /// Two predicates that are written, as `p|q`, or one.
    fn predicates(&mut self, operand: &Operand) -> Result<(Slot, Slot), String> {
        match operand {
            Operand::Pair(p, q) => {
                let p = self.register(&Operand::Name(p), Width::Pred)?;
                Ok((p, self.register(&Operand::Name(q), Width::Pred)?))
            }
            other => Ok((self.register(other, Width::Pred)?, NONE)),
        }
    }

    /// A number that must be known when the kernel is parsed.
    fn immediate(s: &Statement, number: usize) -> Result<u64, String> {
        match s.operand(number)? {
            Operand::Name(text) => {
                crate::statement::integer(text).ok_or_else(|| format!("{text} is not a number"))
            }
            other => Err(format!("operand {other:?} is not a number")),
        }
    }
}

fn label<'a>(s: &Statement<'a>, number: usize) -> Result<&'a str, String> {
    match s.operand(number)? {
        Operand::Name(name) => Ok(name),
        other => Err(format!("operand {other:?} as a label")),
    }
}

//! Names of a kernel: registers, constants, special registers and variables, each with its slot or address.

use std::collections::HashMap;

use crate::lanes::Slot;
use crate::statement::{Operand, number};
use crate::types::{Ty, Width};

/// A register whose value is known before the first instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Special {
    /// Thread in its block, by dimension.
    Tid(u8),
    /// Threads of a block.
    Ntid(u8),
    /// Block in its grid.
    Ctaid(u8),
    /// Blocks of the grid.
    Nctaid(u8),
    Laneid,
    Warpid,
    Nwarpid,
    /// There is one multiprocessor.
    Zero,
    One,
    /// Lanes equal to, below, up to, above, and from this one.
    LanemaskEq,
    LanemaskLt,
    LanemaskLe,
    LanemaskGt,
    LanemaskGe,
    DynamicSharedBytes,
    TotalSharedBytes,
    /// Where dynamic shared memory begins.
    DynamicSharedStart,
}

impl Special {
    fn parse(name: &str) -> Option<Special> {
        let dimension = |name: &str| match name {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        if let Some((name, d)) = name.split_once('.') {
            let d = dimension(d)?;
            return match name {
                "%tid" => Some(Special::Tid(d)),
                "%ntid" => Some(Special::Ntid(d)),
                "%ctaid" => Some(Special::Ctaid(d)),
                "%nctaid" => Some(Special::Nctaid(d)),
                _ => None,
            };
        }
        Some(match name {
            "%laneid" => Special::Laneid,
            "%warpid" => Special::Warpid,
            "%nwarpid" => Special::Nwarpid,
            "%smid" => Special::Zero,
            "%nsmid" => Special::One,
            "%lanemask_eq" => Special::LanemaskEq,
            "%lanemask_lt" => Special::LanemaskLt,
            "%lanemask_le" => Special::LanemaskLe,
            "%lanemask_gt" => Special::LanemaskGt,
            "%lanemask_ge" => Special::LanemaskGe,
            "%dynamic_smem_size" => Special::DynamicSharedBytes,
            "%total_smem_size" => Special::TotalSharedBytes,
            _ => return None,
        })
    }
}

/// What a variable's name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Symbol {
    /// An offset in shared memory.
    Shared(u64),
    /// Shared memory of the module: a place is made in each kernel that names it.
    ModuleShared { bytes: u64, align: u64 },
    /// Dynamic shared memory.
    DynamicShared,
    /// An offset in the parameters.
    Param(u64),
    /// An offset in the local memory of a thread.
    Local(u64),
    /// The address of a variable of the module.
    Module(u64),
}

/// A slot that holds one value from the start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Constant {
    Word(u32),
    Wide(u64),
    Special(Special),
    /// A special value as 64 bits.
    WideSpecial(Special),
}

struct Range {
    prefix: String,
    width: Width,
    first: Slot,
    count: u32,
}

/// The names that a kernel has, and how much memory they take.
#[derive(Default)]
pub(crate) struct Scope {
    scopes: Vec<HashMap<String, (Width, Slot)>>,
    ranges: Vec<Range>,
    pub slots: u32,
    pub predicates: u32,
    pub constants: HashMap<Constant, Slot>,
    pub symbols: HashMap<String, Symbol>,
    pub shared_bytes: u64,
    pub local_bytes: u64,
    pub uses_dynamic_shared: bool,
}

impl Scope {
    pub fn new(symbols: HashMap<String, Symbol>) -> Self {
        Scope { scopes: vec![HashMap::new()], symbols, ..Scope::default() }
    }

    /// A brace opens.
    pub fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    /// A brace closes. Returns whether one was open.
    pub fn close(&mut self) -> bool {
        self.scopes.pop();
        !self.scopes.is_empty()
    }

    /// Declares one register, or `count` of them with numbers after their prefix.
    pub fn declare(&mut self, width: Width, name: &str, count: Option<u32>) -> Result<(), String> {
        let first = self.allocate(width, count.unwrap_or(1))?;
        if let Some(count) = count {
            self.ranges.push(Range { prefix: name.to_string(), width, first, count });
            return Ok(());
        }
        let scope = self.scopes.last_mut().ok_or("a register outside of a kernel")?;
        scope.insert(name.to_string(), (width, first));
        Ok(())
    }

    /// New slots for `count` values.
    pub fn allocate(&mut self, width: Width, count: u32) -> Result<Slot, String> {
        let each = if width == Width::W64 { 2 } else { 1 };
        let total = if width == Width::Pred { &mut self.predicates } else { &mut self.slots };
        let first = *total;
        let end = count.checked_mul(each).and_then(|more| first.checked_add(more));
        *total = end.filter(|end| *end <= 1 << 20).ok_or("more registers than a kernel may have")?;
        Ok(first)
    }

    pub fn register(&self, name: &str) -> Option<(Width, Slot)> {
        if let Some(found) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Some(*found);
        }
        let digits = name.rfind(|c: char| !c.is_ascii_digit())? + 1;
        let (prefix, number) = (name.get(..digits)?, name.get(digits..)?.parse::<u32>().ok()?);
        let range = self.ranges.iter().rev().find(|range| range.prefix == prefix && number < range.count)?;
        let each = if range.width == Width::W64 { 2 } else { 1 };
        Some((range.width, range.first + number * each))
    }

    pub fn constant(&mut self, constant: Constant) -> Result<Slot, String> {
        if let Some(slot) = self.constants.get(&constant) {
            return Ok(*slot);
        }
        let wide = matches!(constant, Constant::Wide(_) | Constant::WideSpecial(_));
        let slot = self.allocate(if wide { Width::W64 } else { Width::W32 }, 1)?;
        self.constants.insert(constant, slot);
        Ok(slot)
    }

    /// The slot of a number of type `ty`.
    pub fn literal(&mut self, bits: u64, ty: Ty) -> Result<Slot, String> {
        self.constant(match ty.width() {
            Width::Pred => return Err("a number as a predicate".into()),
            Width::W16 if ty.bytes() == 1 => Constant::Word(bits as u8 as u32),
            Width::W16 => Constant::Word(bits as u16 as u32),
            Width::W32 => Constant::Word(bits as u32),
            Width::W64 => Constant::Wide(bits),
        })
    }

    /// The slot of a source operand of type `ty`: a register of any width of `widths`, or a constant.
    pub fn source(&mut self, operand: &Operand, ty: Ty, widths: &[Width]) -> Result<Slot, String> {
        match operand {
            Operand::Name(name) => {
                if let Some((width, slot)) = self.register(name) {
                    let fits = widths.contains(&width);
                    return if fits {
                        Ok(slot)
                    } else {
                        Err(format!("{name} has another size than the type"))
                    };
                }
                if let Some(bits) = number(name, ty) {
                    return self.literal(bits, ty);
                }
                if let Some(special) = Special::parse(name) {
                    return self.special(special, ty);
                }
                let symbol = *self.symbols.get(*name).ok_or_else(|| format!("unknown name {name}"))?;
                self.symbol(name, symbol, ty)
            }
            Operand::Minus(digits) => {
                let bits = number(digits, ty).ok_or_else(|| format!("the number -{digits}"))?;
                let negated = match ty {
                    Ty::F32 => bits ^ 1 << 31,
                    Ty::F64 => bits ^ 1 << 63,
                    _ => bits.wrapping_neg(),
                };
                self.literal(negated, ty)
            }
            other => Err(format!("operand {other:?}")),
        }
    }

    fn special(&mut self, special: Special, ty: Ty) -> Result<Slot, String> {
        match ty.width() {
            Width::W32 => self.constant(Constant::Special(special)),
            Width::W64 => self.constant(Constant::WideSpecial(special)),
            _ => Err("a special register has 32 bits".into()),
        }
    }

    /// The slot of a variable's address.
    pub fn symbol(&mut self, name: &str, symbol: Symbol, ty: Ty) -> Result<Slot, String> {
        let value = match symbol {
            Symbol::DynamicShared => {
                self.uses_dynamic_shared = true;
                return self.special(Special::DynamicSharedStart, ty);
            }
            Symbol::ModuleShared { bytes, align } => {
                let offset = self.shared(bytes, align);
                self.symbols.insert(name.to_string(), Symbol::Shared(offset));
                offset
            }
            Symbol::Shared(value) | Symbol::Param(value) | Symbol::Local(value) | Symbol::Module(value) => {
                value
            }
        };
        match ty.width() {
            Width::W64 => self.literal(value, Ty::U64),
            Width::W32 if value <= u64::from(u32::MAX) => self.literal(value, Ty::U32),
            _ => Err(format!("the address of {name} does not fit")),
        }
    }

    /// Makes room in static shared memory.
    pub fn shared(&mut self, bytes: u64, align: u64) -> u64 {
        let offset = self.shared_bytes.next_multiple_of(align.max(1));
        self.shared_bytes = offset + bytes;
        offset
    }

    /// Makes room in the local memory of a thread.
    pub fn local(&mut self, bytes: u64, align: u64) -> u64 {
        let offset = self.local_bytes.next_multiple_of(align.max(1));
        self.local_bytes = offset + bytes;
        offset
    }
}

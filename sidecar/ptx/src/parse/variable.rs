//! Variables of modules and kernels, and parameters: their type, size and alignment.

use super::parser::Parser;
use crate::parse_error::ParseError;
use crate::statement::integer;
use crate::types::Ty;

/// More bytes of variables than a module or a kernel can have are refused, so that no number overflows.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// A variable as it is declared.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) ty: Ty,
    pub(super) align: u64,
    pub(super) bytes: u64,
    /// `name[]`
    pub(super) unsized_array: bool,
}

impl<'a> Parser<'a> {
    /// `.align 4 .b8 name[16]`
    pub(super) fn variable(&mut self) -> Result<Variable<'a>, ParseError> {
        let mut align = None;
        let mut word = self.tokens.expect_word()?;
        let mut vector = 1;
        loop {
            match word {
                ".align" => align = Some(self.size()?),
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ => break,
            }
            word = self.tokens.expect_word()?;
        }
        let ty = word.strip_prefix('.').and_then(Ty::parse).filter(|ty| *ty != Ty::Pred);
        let ty = ty.ok_or_else(|| self.tokens.error(format!("type {word}")))?;
        let name = self.tokens.expect_word()?;
        let (mut bytes, mut unsized_array) = (ty.bytes() * vector, false);
        while self.tokens.take_mark('[') {
            if self.tokens.take_mark(']') {
                unsized_array = true;
                continue;
            }
            bytes = bytes.saturating_mul(self.size()?);
            self.tokens.expect_mark(']')?;
        }
        let align = align.unwrap_or(ty.bytes() * vector);
        if bytes > MOST_BYTES || !align.is_power_of_two() || align > 4096 {
            return Err(self.tokens.error("a variable of this size or alignment"));
        }
        Ok(Variable { name, ty, align, bytes, unsized_array })
    }

    pub(super) fn size(&mut self) -> Result<u64, ParseError> {
        let word = self.tokens.expect_word()?;
        integer(word)
            .filter(|value| *value <= MOST_BYTES)
            .ok_or_else(|| self.tokens.error(format!("the size {word}")))
    }
}

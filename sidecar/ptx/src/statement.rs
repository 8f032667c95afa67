//! One instruction of PTX as text: opcode, modifiers and operands.

use crate::lex::{Token, Tokens};
use crate::parse_error::ParseError;
use crate::types::Ty;

/// An operand as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operand<'a> {
    /// A register, a special register, a variable, a label or a number, with its sign.
    Name(&'a str),
    /// A number below zero, without its sign.
    Minus(&'a str),
    /// A negated predicate.
    Not(&'a str),
    /// `p|q`
    Pair(&'a str, &'a str),
    /// `{a, b}`
    List(Vec<Operand<'a>>),
    /// `[base+offset]`
    Address(&'a str, i64),
}

/// An instruction as it is written.
pub(crate) struct Statement<'a> {
    /// The predicate before it, and whether it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The first word of the opcode.
    pub name: &'a str,
    modifiers: Vec<(&'a str, bool)>,
    pub operands: Vec<Operand<'a>>,
}

impl<'a> Statement<'a> {
    /// Reads an instruction up to its semicolon.
    pub fn read(tokens: &mut Tokens<'a>) -> Result<Self, ParseError> {
        let mut guard = None;
        if tokens.take_mark('@') {
            let negated = tokens.take_mark('!');
            guard = Some((tokens.expect_word()?, negated));
        }
        let opcode = tokens.expect_word()?;
        let mut words = opcode.split('.');
        let name = words.next().unwrap_or("");
        let modifiers = words.map(|word| (word, false)).collect();
        let mut operands = Vec::new();
        while !tokens.take_mark(';') {
            if !operands.is_empty() {
                tokens.expect_mark(',')?;
            }
            operands.push(operand(tokens, 0)?);
        }
        Ok(Statement { guard, name, modifiers, operands })
    }

    /// Takes modifier `word` if it is there.
    pub fn take(&mut self, word: &str) -> bool {
        match self.modifiers.iter_mut().find(|(found, used)| *found == word && !used) {
            Some(modifier) => {
                modifier.1 = true;
                true
            }
            None => false,
        }
    }

    /// Takes the first of `words` that is there.
    pub fn take_one<'w>(&mut self, words: &[&'w str]) -> Option<&'w str> {
        words.iter().copied().find(|word| self.take(word))
    }

    /// Takes the last type.
    pub fn take_type(&mut self) -> Result<Ty, String> {
        for (word, used) in self.modifiers.iter_mut().rev() {
            if let (false, Some(ty)) = (*used, Ty::parse(word)) {
                *used = true;
                return Ok(ty);
            }
        }
        Err("a type is missing".into())
    }

    /// That every modifier was taken, and that there are as many operands.
    pub fn finish(&self, operands: usize) -> Result<(), String> {
        if let Some((word, _)) = self.modifiers.iter().find(|(_, used)| !used) {
            return Err(format!("unknown modifier .{word}"));
        }
        if self.operands.len() != operands {
            return Err(format!("{} operands, not {operands}", self.operands.len()));
        }
        Ok(())
    }

    pub fn operand(&self, number: usize) -> Result<&Operand<'a>, String> {
        self.operands.get(number).ok_or_else(|| format!("operand {} is missing", number + 1))
    }

    /// The members of a list, or the operand alone.
    pub fn list(&self, number: usize) -> Result<Vec<Operand<'a>>, String> {
        Ok(match self.operand(number)? {
            Operand::List(all) => all.clone(),
            other => vec![other.clone()],
        })
    }

    /// Base and offset of an address.
    pub fn address(&self, number: usize) -> Result<(&'a str, i64), String> {
        match self.operand(number)? {
            Operand::Address(base, offset) => Ok((base, *offset)),
            _ => Err(format!("operand {} is not an address", number + 1)),
        }
    }
}

/// Lists hold no lists, so depth 2 is an error.
fn operand<'a>(tokens: &mut Tokens<'a>, depth: u32) -> Result<Operand<'a>, ParseError> {
    if tokens.take_mark('[') {
        return address(tokens);
    }
    if depth == 0 && tokens.take_mark('{') {
        let mut all = Vec::new();
        while !tokens.take_mark('}') {
            if !all.is_empty() {
                tokens.expect_mark(',')?;
            }
            all.push(operand(tokens, depth + 1)?);
        }
        return Ok(Operand::List(all));
    }
    if tokens.take_mark('-') {
        return Ok(Operand::Minus(tokens.expect_word()?));
    }
    if tokens.take_mark('!') {
        return Ok(Operand::Not(tokens.expect_word()?));
    }
    let word = tokens.expect_word()?;
    if tokens.take_mark('|') {
        return Ok(Operand::Pair(word, tokens.expect_word()?));
    }
    Ok(Operand::Name(word))
}

fn address<'a>(tokens: &mut Tokens<'a>) -> Result<Operand<'a>, ParseError> {
    let base = tokens.expect_word()?;
    let mut offset = 0;
    if matches!(tokens.peek(), Some(Token::Mark('+' | '-'))) {
        tokens.take_mark('+');
        let negative = tokens.take_mark('-');
        let word = tokens.expect_word()?;
        let value = integer(word).and_then(|value| i64::try_from(value).ok());
        let value = value.ok_or_else(|| tokens.error(format!("offset {word}")))?;
        offset = if negative { -value } else { value };
    }
    tokens.expect_mark(']')?;
    Ok(Operand::Address(base, offset))
}

/// A whole number without a sign.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('U').unwrap_or(text);
    match digits.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&digits[2..], 16).ok(),
        Some("0b" | "0B") => u64::from_str_radix(&digits[2..], 2).ok(),
        _ => digits.parse().ok(),
    }
}

/// The bits of a number without a sign, as a value of type `ty`.
pub(crate) fn number(text: &str, ty: Ty) -> Option<u64> {
    let hex = |prefix: [&str; 2], digits: usize| {
        let rest = text.strip_prefix(prefix[0]).or(text.strip_prefix(prefix[1]))?;
        if rest.len() == digits { u64::from_str_radix(rest, 16).ok() } else { None }
    };
    match ty {
        Ty::F32 | Ty::F64 => {
            let single = hex(["0f", "0F"], 8).map(|bits| f64::from(f32::from_bits(bits as u32)));
            let double = hex(["0d", "0D"], 16).map(f64::from_bits);
            let plain =
                || text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.parse::<f64>().ok())?;
            if let (Ty::F32, Some(bits)) = (ty, hex(["0f", "0F"], 8)) {
                return Some(bits);
            }
            let value = single.or(double).or_else(plain)?;
            Some(if ty == Ty::F32 { u64::from((value as f32).to_bits()) } else { value.to_bits() })
        }
        _ => hex(["0f", "0F"], 8).or(hex(["0d", "0D"], 16)).or(integer(text)),
    }
}

//! Modules out of PTX text: directives and variables. Kernels are read in `kernel`, instructions in [`crate::decode`].

mod kernel;
mod parser;
mod variable;

use std::collections::HashMap;
use std::sync::Arc;

use crate::image::Image;
use crate::lex::{Token, Tokens};
use crate::module::Module;
use crate::operation::has_vectors;
use crate::parse_error::ParseError;
use crate::scope::Symbol;
use crate::statement::{integer, number};
use crate::types::Ty;
use crate::windows::MODULE_WINDOW;
use parser::Parser;
use variable::MOST_BYTES;

impl Module {
    /// Parses a PTX text.
    ///
    /// # Errors
    /// What the interpreter does not know, down to a modifier, is an error here and never ignored at run time.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        parse(text, has_vectors())
    }

    /// As [`Self::parse`], but the kernels use no vector instructions that the machine may have beyond its baseline. They
    /// compute the same bits more slowly; a test compares both.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_portable(text: &str) -> Result<Module, ParseError> {
        parse(text, false)
    }
}

/// Parses `text`; instructions are in their vector form if `vectors`.
fn parse(text: &str, vectors: bool) -> Result<Module, ParseError> {
    let mut parser = Parser {
        tokens: Tokens::of(text)?,
        module: Module {
            version: String::new(),
            target: String::new(),
            kernels: Vec::new(),
            files: Vec::new(),
        },
        symbols: HashMap::new(),
        image: Vec::new(),
        vectors,
    };
    while let Some(token) = parser.tokens.peek() {
        let Token::Word(word) = token else { return Err(parser.tokens.error("a directive expected")) };
        parser.directive(word)?;
    }
    let image = Arc::new(Image::new(&parser.image));
    for kernel in &mut parser.module.kernels {
        kernel.image = Arc::clone(&image);
    }
    Ok(parser.module)
}

impl<'a> Parser<'a> {
    /// A directive outside of kernels.
    fn directive(&mut self, word: &'a str) -> Result<(), ParseError> {
        let line = self.tokens.line();
        self.tokens.advance();
        match word {
            ".version" => self.module.version = self.tokens.expect_word()?.to_string(),
            ".target" => {
                self.module.target = self.tokens.expect_word()?.to_string();
                self.tokens.skip_line(line);
            }
            ".address_size" => {
                if self.tokens.expect_word()? != "64" {
                    return Err(self.tokens.error("addresses have 64 bits"));
                }
            }
            ".file" => self.file(line)?,
            ".section" => self.skip_braces()?,
            ".visible" | ".weak" => {}
            ".extern" => self.external()?,
            ".entry" => self.kernel()?,
            ".const" | ".global" => self.module_variable()?,
            ".shared" => {
                let variable = self.variable()?;
                self.tokens.expect_mark(';')?;
                let symbol = Symbol::ModuleShared { bytes: variable.bytes, align: variable.align };
                self.symbols.insert(variable.name.to_string(), symbol);
            }
            other => return Err(self.tokens.error(format!("unknown directive {other}"))),
        }
        Ok(())
    }

    fn file(&mut self, line: u32) -> Result<(), ParseError> {
        let number = integer(self.tokens.expect_word()?).and_then(|number| u32::try_from(number).ok());
        let (Some(number), Some(Token::Text(name))) = (number, self.tokens.peek()) else {
            return Err(self.tokens.error("a file has a number and a name"));
        };
        self.module.files.push((number, name.to_string()));
        self.tokens.skip_line(line);
        Ok(())
    }

    /// `.extern .shared` is dynamic shared memory. Functions may be declared; to call one is an error.
    fn external(&mut self) -> Result<(), ParseError> {
        match self.tokens.expect_word()? {
            ".shared" => {
                let variable = self.variable()?;
                self.symbols.insert(variable.name.to_string(), Symbol::DynamicShared);
                self.tokens.expect_mark(';')
            }
            ".func" => {
                while !self.tokens.take_mark(';') {
                    if self.tokens.advance().is_none() {
                        return Err(self.tokens.error("a declaration without an end"));
                    }
                }
                Ok(())
            }
            other => Err(self.tokens.error(format!("unknown external {other}"))),
        }
    }

    /// Reads over braces and what stands between them.
    fn skip_braces(&mut self) -> Result<(), ParseError> {
        let mut depth = 0;
        loop {
            match self.tokens.advance() {
                Some(Token::Mark('{')) => depth += 1,
                Some(Token::Mark('}')) if depth == 1 => return Ok(()),
                Some(Token::Mark('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.tokens.error("braces without an end")),
            }
        }
    }

    fn module_variable(&mut self) -> Result<(), ParseError> {
        let variable = self.variable()?;
        let mut values = Vec::new();
        if self.tokens.take_mark('=') {
            if self.tokens.take_mark('{') {
                while !self.tokens.take_mark('}') {
                    if !values.is_empty() {
                        self.tokens.expect_mark(',')?;
                    }
                    values.push(self.initial_value(variable.ty)?);
                }
            } else {
                values.push(self.initial_value(variable.ty)?);
            }
        }
        self.tokens.expect_mark(';')?;
        let start = (self.image.len() as u64).next_multiple_of(variable.align);
        let each = variable.ty.bytes() as usize;
        let bytes = if variable.unsized_array { (values.len() * each) as u64 } else { variable.bytes };
        if values.len() * each > bytes as usize || start + bytes > MOST_BYTES {
            return Err(self.tokens.error("more values than the variable has"));
        }
        self.image.resize(start as usize, 0);
        self.image.extend(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(each)));
        self.image.resize((start + bytes) as usize, 0);
        self.symbols.insert(variable.name.to_string(), Symbol::Module(MODULE_WINDOW + start));
        Ok(())
    }

    fn initial_value(&mut self, ty: Ty) -> Result<u64, ParseError> {
        let negative = self.tokens.take_mark('-');
        let word = self.tokens.expect_word()?;
        let bits = number(word, ty).ok_or_else(|| self.tokens.error(format!("the value {word}")))?;
        Ok(match (negative, ty) {
            (false, _) => bits,
            (true, Ty::F32) => bits ^ 1 << 31,
            (true, Ty::F64) => bits ^ 1 << 63,
            (true, _) => bits.wrapping_neg(),
        })
    }
}

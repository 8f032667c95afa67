//! Kernels: parameters, limits, and bodies of declarations, labels and instructions.

use std::collections::HashMap;
use std::sync::Arc;

use super::parser::Parser;
use super::variable::MOST_BYTES;
use crate::decode::Decoder;
use crate::instruction::{Flow, Instruction};
use crate::lex::Token;
use crate::module::{Kernel, Origin, Param};
use crate::parse_error::ParseError;
use crate::scope::{Scope, Symbol};
use crate::statement::{Statement, integer};
use crate::traffic::SourceLine;
use crate::types::Ty;

/// A kernel while its body is read.
struct Body<'a> {
    scope: Scope,
    code: Vec<Instruction>,
    origins: Vec<Origin>,
    labels: HashMap<&'a str, u32>,
    /// Branches whose targets are not known yet.
    branches: Vec<(usize, &'a str)>,
    /// Branches through tables.
    table_branches: Vec<(usize, &'a str)>,
    tables: Vec<(&'a str, Vec<&'a str>)>,
    source: SourceLine,
}

impl<'a> Parser<'a> {
    pub(super) fn kernel(&mut self) -> Result<(), ParseError> {
        let name = self.tokens.expect_word()?.to_string();
        let mut scope = Scope::new(self.symbols.clone());
        let (params, param_bytes) = self.params(&mut scope)?;
        let max_threads = self.limits()?;
        self.tokens.expect_mark('{')?;
        let mut body = Body {
            scope,
            code: Vec::new(),
            origins: Vec::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
            table_branches: Vec::new(),
            tables: Vec::new(),
            source: SourceLine::default(),
        };
        while !self.tokens.take_mark('}') {
            self.body_item(&mut body)?;
        }
        let tables = self.link(&mut body)?;
        // A body may end without `ret`.
        let end = Decoder::new(&mut body.scope, self.vectors).exit();
        body.code.push(end);
        body.origins.push(Origin { line: self.tokens.line(), text: "}".into(), source: body.source });
        let scope = body.scope;
        if scope.shared_bytes > MOST_BYTES || scope.local_bytes > MOST_BYTES {
            return Err(self.tokens.error("more memory than a kernel can have"));
        }
        self.module.kernels.push(Kernel {
            name,
            params,
            param_bytes,
            static_shared_bytes: scope.shared_bytes as u32,
            uses_dynamic_shared: scope.uses_dynamic_shared,
            max_threads,
            local_bytes: scope.local_bytes.next_multiple_of(16),
            slots: scope.slots,
            predicates: scope.predicates,
            constants: scope.constants.into_iter().collect(),
            code: body.code,
            origins: body.origins,
            tables,
            image: Arc::default(),
        });
        Ok(())
    }

    fn params(&mut self, scope: &mut Scope) -> Result<(Vec<Param>, usize), ParseError> {
        let (mut params, mut end) = (Vec::new(), 0);
        if !self.tokens.take_mark('(') {
            return Ok((params, end));
        }
        while !self.tokens.take_mark(')') {
            if !params.is_empty() {
                self.tokens.expect_mark(',')?;
            }
            if self.tokens.expect_word()? != ".param" {
                return Err(self.tokens.error(".param expected"));
            }
            let variable = self.variable()?;
            let offset = usize::next_multiple_of(end, variable.align as usize);
            end = offset + variable.bytes as usize;
            scope.symbols.insert(variable.name.to_string(), Symbol::Param(offset as u64));
            let (bytes, align) = (variable.bytes as usize, variable.align as usize);
            params.push(Param { name: variable.name.to_string(), offset, bytes, align });
        }
        Ok((params, end))
    }

    /// The directives between parameters and body. Returns the largest block.
    fn limits(&mut self) -> Result<Option<u32>, ParseError> {
        let mut max_threads = None;
        while let Some(Token::Word(word)) = self.tokens.peek() {
            self.tokens.advance();
            match word {
                ".maxntid" | ".reqntid" => {
                    let mut product = self.size()?;
                    while self.tokens.take_mark(',') {
                        product = product.saturating_mul(self.size()?);
                    }
                    let product =
                        u32::try_from(product).map_err(|_| self.tokens.error("a block of this size"))?;
                    max_threads = Some(product);
                }
                ".minnctapersm" | ".maxnreg" => {
                    self.size()?;
                }
                other => return Err(self.tokens.error(format!("unknown directive {other}"))),
            }
        }
        Ok(max_threads)
    }

    /// A declaration, a label, a brace or an instruction.
    fn body_item(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        let (line, start) = (self.tokens.line(), self.tokens.position());
        match self.tokens.peek() {
            None => return Err(self.tokens.error("a kernel without an end")),
            Some(Token::Mark('{')) => return self.scope(body),
            Some(Token::Word(word)) if self.tokens.peek_second() == Some(Token::Mark(':')) => {
                self.tokens.advance();
                self.tokens.advance();
                if self.tokens.peek() == Some(Token::Word(".branchtargets")) {
                    return self.table(word, body);
                }
                if body.labels.insert(word, body.code.len() as u32).is_some() {
                    return Err(self.tokens.error(format!("label {word} is there twice")));
                }
                return Ok(());
            }
            Some(Token::Word(word)) if word.starts_with('.') => {
                self.tokens.advance();
                return self.body_directive(word, line, body);
            }
            _ => {}
        }
        let statement = Statement::read(&mut self.tokens)?;
        let text = self.tokens.text_since(start).split_whitespace().collect::<Vec<_>>().join(" ");
        let at = body.code.len();
        let decoded = Decoder::new(&mut body.scope, self.vectors).decode(statement);
        let (instruction, target) =
            decoded.map_err(|reason| ParseError { line, statement: text.clone(), reason })?;
        if let Some(target) = target {
            let table = instruction.flow == Flow::BranchTable;
            if table { &mut body.table_branches } else { &mut body.branches }.push((at, target));
        }
        body.code.push(instruction);
        body.origins.push(Origin { line, text, source: body.source });
        Ok(())
    }

    /// A scope within a kernel, as inline assembly opens one. Scopes nest, and the parser's stack is not deep: a loop.
    fn scope(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        let mut depth = 0;
        loop {
            if self.tokens.take_mark('{') {
                depth += 1;
                body.scope.open();
            } else if self.tokens.take_mark('}') {
                depth -= 1;
                if !body.scope.close() {
                    return Err(self.tokens.error("a brace that was not opened"));
                }
                if depth == 0 {
                    return Ok(());
                }
            } else {
                self.body_item(body)?;
            }
        }
    }

    fn body_directive(&mut self, word: &'a str, line: u32, body: &mut Body<'a>) -> Result<(), ParseError> {
        match word {
            ".reg" => return self.registers(body),
            ".shared" | ".local" => {
                let variable = self.variable()?;
                self.tokens.expect_mark(';')?;
                let symbol = match word {
                    ".shared" => Symbol::Shared(body.scope.shared(variable.bytes, variable.align)),
                    _ => Symbol::Local(body.scope.local(variable.bytes, variable.align)),
                };
                body.scope.symbols.insert(variable.name.to_string(), symbol);
            }
            ".loc" => {
                let mut number =
                    || integer(self.tokens.expect_word().ok()?).and_then(|n| u32::try_from(n).ok());
                let (Some(file), Some(source)) = (number(), number()) else {
                    return Err(self.tokens.error("a file and a line expected"));
                };
                body.source = SourceLine { file, line: source };
                self.tokens.skip_line(line);
            }
            ".pragma" => {
                self.tokens.advance();
                self.tokens.expect_mark(';')?;
            }
            other => return Err(self.tokens.error(format!("unknown directive {other}"))),
        }
        Ok(())
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        let word = self.tokens.expect_word()?;
        let ty = word.strip_prefix('.').and_then(Ty::parse);
        let width = ty.map(Ty::width).ok_or_else(|| self.tokens.error(format!("type {word}")))?;
        loop {
            let name = self.tokens.expect_word()?;
            let mut count = None;
            if self.tokens.take_mark('<') {
                count = Some(self.size()?.min(u64::from(u32::MAX)) as u32);
                self.tokens.expect_mark('>')?;
            }
            body.scope.declare(width, name, count).map_err(|reason| self.tokens.error(reason))?;
            if self.tokens.take_mark(';') {
                return Ok(());
            }
            self.tokens.expect_mark(',')?;
        }
    }

    /// `name: .branchtargets a, b;`
    fn table(&mut self, name: &'a str, body: &mut Body<'a>) -> Result<(), ParseError> {
        self.tokens.advance();
        let mut targets = vec![self.tokens.expect_word()?];
        while self.tokens.take_mark(',') {
            targets.push(self.tokens.expect_word()?);
        }
        self.tokens.expect_mark(';')?;
        body.tables.push((name, targets));
        Ok(())
    }

    /// Puts the numbers of instructions into branches, and returns the tables of `brx.idx`.
    fn link(&self, body: &mut Body<'a>) -> Result<Vec<Vec<u32>>, ParseError> {
        let no_label = |at: usize, name: &str| ParseError {
            line: body.origins[at].line,
            statement: body.origins[at].text.clone(),
            reason: format!("no label {name}"),
        };
        for (at, name) in &body.branches {
            let target = body.labels.get(name).ok_or_else(|| no_label(*at, name))?;
            body.code[*at].value = u64::from(*target);
        }
        let mut tables = Vec::new();
        for (at, name) in &body.table_branches {
            let table = body.tables.iter().find(|(found, _)| found == name);
            let (_, targets) = table.ok_or_else(|| no_label(*at, name))?;
            let numbers =
                targets.iter().map(|name| body.labels.get(name).copied().ok_or_else(|| no_label(*at, name)));
            body.code[*at].value = tables.len() as u64;
            tables.push(numbers.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(tables)
    }
}

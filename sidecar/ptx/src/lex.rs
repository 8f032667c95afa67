//! PTX text to tokens, each with its line.

use crate::parse_error::ParseError;

/// One token of PTX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token<'a> {
    /// A name, a register, an opcode with its modifiers, a directive with its dot, or a number.
    Word(&'a str),
    /// What stands between quotes.
    Text(&'a str),
    /// One character of punctuation.
    Mark(char),
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub token: Token<'a>,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// Bytes of the text before the token.
    pub start: usize,
    /// Bytes of the text up to its end.
    pub end: usize,
}

/// Tokens of a text, read in order.
pub(crate) struct Tokens<'a> {
    text: &'a str,
    all: Vec<Placed<'a>>,
    next: usize,
}

impl<'a> Tokens<'a> {
    pub fn of(text: &'a str) -> Result<Self, ParseError> {
        Ok(Tokens { text, all: split(text)?, next: 0 })
    }

    pub fn peek(&self) -> Option<Token<'a>> {
        self.all.get(self.next).map(|placed| placed.token)
    }

    /// The token after the next one.
    pub fn peek_second(&self) -> Option<Token<'a>> {
        self.all.get(self.next + 1).map(|placed| placed.token)
    }

    pub fn advance(&mut self) -> Option<Token<'a>> {
        let token = self.peek()?;
        self.next += 1;
        Some(token)
    }

    /// Line of the next token, or of the last one at the end.
    pub fn line(&self) -> u32 {
        self.all.get(self.next).or(self.all.last()).map_or(1, |placed| placed.line)
    }

    /// Number of the next token, for [`Self::text_since`].
    pub fn position(&self) -> usize {
        self.next
    }

    /// The text from the token with number `position` up to the last token read.
    pub fn text_since(&self, position: usize) -> &'a str {
        let last = self.next.saturating_sub(1);
        match (self.all.get(position), self.all.get(last)) {
            (Some(first), Some(last)) if position < self.next => &self.text[first.start..last.end],
            _ => "",
        }
    }

    pub fn take_mark(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.next += usize::from(found);
        found
    }

    pub fn expect_mark(&mut self, mark: char) -> Result<(), ParseError> {
        if self.take_mark(mark) {
            return Ok(());
        }
        Err(self.error(format!("`{mark}` expected")))
    }

    pub fn expect_word(&mut self) -> Result<&'a str, ParseError> {
        match self.advance() {
            Some(Token::Word(word)) => Ok(word),
            _ => {
                self.next = self.next.saturating_sub(1);
                Err(self.error("a name or number expected"))
            }
        }
    }

    /// Reads over all tokens of line `line`.
    pub fn skip_line(&mut self, line: u32) {
        while self.all.get(self.next).is_some_and(|placed| placed.line == line) {
            self.next += 1;
        }
    }

    /// An error at the next token.
    pub fn error(&self, reason: impl Into<String>) -> ParseError {
        let statement = self.text.lines().nth(self.line() as usize - 1).unwrap_or("").trim().to_string();
        ParseError { line: self.line(), statement, reason: reason.into() }
    }
}

fn split(text: &str) -> Result<Vec<Placed<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let (mut all, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let fail = |reason: &str| ParseError { line, statement: String::new(), reason: reason.into() };
        let token = match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").ok_or_else(|| fail("a comment without an end"))?;
                line += text[at..at + 2 + end].matches('\n').count() as u32;
                at += end + 4;
                continue;
            }
            b'"' => {
                let end = text[at + 1..].find('"').ok_or_else(|| fail("a text without an end"))?;
                at += end + 2;
                Token::Text(&text[start + 1..at - 1])
            }
            byte if is_word(byte) => {
                at += word_length(&bytes[at..]);
                Token::Word(&text[start..at])
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            byte if byte.is_ascii() => {
                at += 1;
                Token::Mark(char::from(byte))
            }
            _ => return Err(fail("a character that is not ASCII")),
        };
        all.push(Placed { token, line, start, end: at });
        if let Token::Text(inner) = token {
            line += inner.matches('\n').count() as u32;
        }
    }
    Ok(all)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Bytes of the word at the start of `bytes`. Two colons belong to it, as in `L2::128B`; one ends a label.
fn word_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        if is_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}

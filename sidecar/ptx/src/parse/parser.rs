//! What is read so far.

use std::collections::HashMap;

use crate::lex::Tokens;
use crate::module::Module;
use crate::scope::Symbol;

/// A text while it is read.
pub(super) struct Parser<'a> {
    pub(super) tokens: Tokens<'a>,
    pub(super) module: Module,
    /// Variables of the module.
    pub(super) symbols: HashMap<String, Symbol>,
    /// Bytes of its variables.
    pub(super) image: Vec<u8>,
    pub(super) vectors: bool,
}

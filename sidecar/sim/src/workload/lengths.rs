//! [`Lengths`].

/// Lengths of one request, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Prompt tokens, at least 1.
    pub prompt: u32,
    /// Output tokens, at least 1.
    pub output: u32,
}

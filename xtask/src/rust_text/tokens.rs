//! Words and punctuation of blanked source.

/// A word or a single other byte of blanked source, as a byte range.
pub type Token = std::ops::Range<usize>;

/// The tokens of `blanked` in their order.
pub fn tokens(blanked: &str) -> Vec<Token> {
    let bytes = blanked.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
        let end = at + length.max(1);
        if !bytes[at].is_ascii_whitespace() {
            tokens.push(at..end);
        }
        at = end;
    }
    tokens
}

/// Whether `byte` may be part of an identifier. Bytes of other alphabets count as such.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

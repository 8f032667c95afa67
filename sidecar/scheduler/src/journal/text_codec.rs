//! Writes and reads lists of integers as text, the journal's only encoding.

use core::fmt;

/// A list of words to write.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u64>);

impl Encoder {
    /// Appends one word.
    pub fn put(&mut self, word: impl Into<u64>) -> &mut Self {
        self.0.push(word.into());
        self
    }

    /// Appends a float as its bits.
    pub fn put_f32(&mut self, value: f32) -> &mut Self {
        self.put(value.to_bits())
    }

    /// Appends an optional word: 0, or 1 and the word.
    pub fn put_option(&mut self, word: Option<u64>) -> &mut Self {
        match word {
            None => self.put(0u64),
            Some(word) => self.put(1u64).put(word),
        }
    }

    /// Appends a list: its length, then each item.
    pub fn put_list<T>(&mut self, items: &[T], put: impl Fn(&mut Self, &T)) -> &mut Self {
        self.put(items.len() as u64);
        items.iter().for_each(|item| put(self, item));
        self
    }
}

impl fmt::Display for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, word) in self.0.iter().enumerate() {
            write!(f, "{}{word}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Reads words from a text.
#[derive(Debug)]
pub struct Reader<'a>(core::str::SplitWhitespace<'a>);

impl<'a> Reader<'a> {
    /// Returns a reader of `text`.
    pub fn new(text: &'a str) -> Self {
        Reader(text.split_whitespace())
    }

    /// Reads one word.
    pub fn u64(&mut self) -> Result<u64, String> {
        let word = self.0.next().ok_or("a word is missing")?;
        word.parse().map_err(|_| format!("`{word}` is not a valid word"))
    }

    /// Reads one word that must fit the type.
    pub fn int<T: TryFrom<u64>>(&mut self) -> Result<T, String> {
        let word = self.u64()?;
        T::try_from(word).map_err(|_| format!("{word} is too large"))
    }

    /// Reads a boolean.
    pub fn bool(&mut self) -> Result<bool, String> {
        Ok(self.u64()? != 0)
    }

    /// Reads a float.
    pub fn f32(&mut self) -> Result<f32, String> {
        Ok(f32::from_bits(self.int()?))
    }

    /// Reads an optional word.
    pub fn option(&mut self) -> Result<Option<u64>, String> {
        Ok(if self.bool()? { Some(self.u64()?) } else { None })
    }

    /// Reads a list. Memory grows with the items read, so a length beyond the text fails at the first missing word.
    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let length = self.u64()?;
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Fails if words remain.
    pub fn end(&mut self) -> Result<(), String> {
        match self.0.next() {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` is an extra word")),
        }
    }
}

/// Returns the code of a variant: its index in `all`.
pub fn code_of<T: PartialEq>(all: &[T], one: &T) -> u64 {
    all.iter().position(|each| each == one).expect("every variant is listed") as u64
}

/// Reads a code. Returns its variant.
pub fn by_code<T: Copy>(all: &[T], r: &mut Reader<'_>) -> Result<T, String> {
    let code: usize = r.int()?;
    all.get(code).copied().ok_or(format!("{code} is not a variant"))
}

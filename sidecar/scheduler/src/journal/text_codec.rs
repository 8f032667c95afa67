//! Lists of integers as text: the whole of the journal's encoding.

use core::fmt;

/// Words being written.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u64>);

impl Encoder {
    /// One word.
    pub fn put(&mut self, word: impl Into<u64>) -> &mut Self {
        self.0.push(word.into());
        self
    }

    /// A float by its bits.
    pub fn put_f32(&mut self, value: f32) -> &mut Self {
        self.put(value.to_bits())
    }

    /// An optional word: 0, or 1 and the word.
    pub fn put_option(&mut self, word: Option<u64>) -> &mut Self {
        match word {
            None => self.put(0u64),
            Some(word) => self.put(1u64).put(word),
        }
    }

    /// A list: its length, then each item.
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

/// Words being read.
#[derive(Debug)]
pub struct Reader<'a>(core::str::SplitWhitespace<'a>);

impl<'a> Reader<'a> {
    /// Reads `text`.
    pub fn new(text: &'a str) -> Self {
        Reader(text.split_whitespace())
    }

    /// One word.
    pub fn u64(&mut self) -> Result<u64, String> {
        let word = self.0.next().ok_or("a word is missing")?;
        word.parse().map_err(|_| format!("`{word}` is no word"))
    }

    /// One word that fits a smaller type.
    pub fn int<T: TryFrom<u64>>(&mut self) -> Result<T, String> {
        let word = self.u64()?;
        T::try_from(word).map_err(|_| format!("{word} is too large"))
    }

    /// A truth value.
    pub fn bool(&mut self) -> Result<bool, String> {
        Ok(self.u64()? != 0)
    }

    /// A float.
    pub fn f32(&mut self) -> Result<f32, String> {
        Ok(f32::from_bits(self.int()?))
    }

    /// An optional word.
    pub fn option(&mut self) -> Result<Option<u64>, String> {
        Ok(if self.bool()? { Some(self.u64()?) } else { None })
    }

    /// A list. A length beyond the words that are left fails at the first missing word, before any memory is taken for it.
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

    /// Nothing may be left.
    pub fn end(&mut self) -> Result<(), String> {
        match self.0.next() {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` is left over")),
        }
    }
}

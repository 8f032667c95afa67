//! The result of a step: rows of logits in the activation arena.

/// One row of logits and the scratch space for sampling it.
#[derive(Debug)]
pub struct LogitRow<'a> {
    /// Logits by token id (f32).
    pub logits: &'a mut [f32],
    /// One word per token of the vocabulary; the content is unspecified.
    pub scratch: &'a mut [u32],
}

/// Rows of logits in batch order, with ascending positions within a sequence.
#[derive(Debug)]
pub struct LogitsView<'a> {
    logits: &'a mut [f32],
    scratch: &'a mut [u32],
    vocab: usize,
}

impl<'a> LogitsView<'a> {
    /// Creates a view of `logits.len() / vocab` rows.
    ///
    /// # Panics
    /// If the slices differ in length or do not hold whole rows.
    pub fn new(logits: &'a mut [f32], scratch: &'a mut [u32], vocab: usize) -> Self {
        assert_eq!(logits.len(), scratch.len(), "logits and scratch must have the same rows");
        assert_eq!(logits.len() % vocab, 0, "logits must be whole rows");
        LogitsView { logits, scratch, vocab }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.logits.len() / self.vocab
    }

    /// Returns row `row`, read-only.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab..(row + 1) * self.vocab]
    }

    /// Returns all rows with their scratch space, for sampling.
    pub fn into_rows(self) -> impl ExactSizeIterator<Item = LogitRow<'a>> {
        let rows = self.logits.chunks_exact_mut(self.vocab).zip(self.scratch.chunks_exact_mut(self.vocab));
        rows.map(|(logits, scratch)| LogitRow { logits, scratch })
    }
}

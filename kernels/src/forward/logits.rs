//! The step's result: rows of logits in the activation arena.

/// One row of logits with the scratch that sampling it needs.
#[derive(Debug)]
pub struct LogitRow<'a> {
    /// Logits by token id (f32).
    pub logits: &'a mut [f32],
    /// Uninitialised in meaning (any bits): as many words as the vocabulary has tokens.
    pub scratch: &'a mut [u32],
}

/// Rows of logits, in batch order, positions ascending within a sequence.
#[derive(Debug)]
pub struct LogitsView<'a> {
    logits: &'a mut [f32],
    scratch: &'a mut [u32],
    vocab: usize,
}

impl<'a> LogitsView<'a> {
    /// A view of `logits.len() / vocab` rows.
    ///
    /// # Panics
    /// When the two slices are not whole rows of equal number.
    pub fn new(logits: &'a mut [f32], scratch: &'a mut [u32], vocab: usize) -> Self {
        assert_eq!(logits.len(), scratch.len(), "logits and scratch must have the same rows");
        assert_eq!(logits.len() % vocab, 0, "logits must be whole rows");
        LogitsView { logits, scratch, vocab }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.logits.len() / self.vocab
    }

    /// Row `row`, read only.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab..(row + 1) * self.vocab]
    }

    /// All rows with their scratch, for sampling.
    pub fn rows_mut(&mut self) -> impl ExactSizeIterator<Item = LogitRow<'_>> {
        let rows = self.logits.chunks_exact_mut(self.vocab).zip(self.scratch.chunks_exact_mut(self.vocab));
        rows.map(|(logits, scratch)| LogitRow { logits, scratch })
    }
}

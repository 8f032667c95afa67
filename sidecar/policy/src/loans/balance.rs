//! What a tenant may hold: its share, what it borrowed and what it lent, in chunks.

/// The balance of a tenant's share and loans, in chunks.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// Chunks that may exist without a loan. Above the assigned share while a share that fell is being released.
    share: u32,
    /// The share rose: its new chunks are still to be created.
    growing: bool,
    borrowed: u32,
    lent: u32,
}

impl Balance {
    /// A balance without loans.
    pub fn new(share: u32) -> Balance {
        Balance { share, growing: false, borrowed: 0, lent: 0 }
    }

    /// Chunks that may exist now.
    pub fn budget(&self) -> u32 {
        self.share + self.borrowed - self.lent
    }

    /// Chunks that may exist without a loan.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// Chunks of peers that are here.
    pub fn borrowed(&self) -> u32 {
        self.borrowed
    }

    /// Chunks of the share that peers have.
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// The share rose and its new chunks are still to be created.
    pub fn is_growing(&self) -> bool {
        self.growing
    }

    /// As [`Balance::is_growing`]; the growth counts as handled from now on.
    pub fn take_growth(&mut self) -> bool {
        core::mem::take(&mut self.growing)
    }

    /// Another share was assigned. A larger one holds at once; a smaller one is reached as memory is released.
    pub fn assign(&mut self, share: u32) {
        self.growing |= share > self.share;
        self.share = self.share.max(share);
    }

    /// Chunks beyond the assigned share.
    pub fn excess(&self, assigned: u32) -> u32 {
        self.share - assigned
    }

    /// Releases chunks that were never created.
    pub fn release_uncreated(&mut self, chunks: u32) {
        self.share -= chunks;
    }

    /// Chunks went back to the device. The share may have risen again before: then they are created again.
    pub fn on_released(&mut self, chunks: u32, assigned: u32) {
        let left = self.share - chunks;
        self.growing |= left < assigned;
        self.share = left.max(assigned);
    }

    /// Peers have these chunks now.
    pub fn on_lent(&mut self, chunks: u32) {
        self.lent += chunks;
    }

    /// A loan of this tenant ended.
    ///
    /// # Panics
    /// If less was lent.
    pub fn on_lent_returned(&mut self, chunks: u32) {
        self.lent -= chunks;
    }

    /// Chunks of peers are here now.
    pub fn on_borrowed(&mut self, chunks: u32) {
        self.borrowed += chunks;
    }

    /// Borrowed chunks went back.
    pub fn on_repaid(&mut self, chunks: u32) {
        self.borrowed -= chunks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_the_share_with_loans() {
        let mut balance = Balance::new(40);
        balance.on_borrowed(5);
        balance.on_lent(7);
        assert_eq!(balance.budget(), 38);
        balance.on_lent_returned(7);
        balance.on_repaid(5);
        assert_eq!(balance.budget(), 40);
    }

    #[test]
    fn larger_share_holds_at_once_and_smaller_one_when_it_is_released() {
        let mut balance = Balance::new(40);
        balance.assign(30);
        assert_eq!((balance.share(), balance.excess(30), balance.is_growing()), (40, 10, false));
        balance.on_released(4, 30);
        assert_eq!((balance.share(), balance.is_growing()), (36, false));
        balance.release_uncreated(6);
        assert_eq!(balance.excess(30), 0);
        balance.assign(50);
        assert_eq!((balance.share(), balance.take_growth(), balance.take_growth()), (50, true, false));
    }

    #[test]
    fn released_chunks_are_recreated_after_share_rise() {
        let mut balance = Balance::new(40);
        balance.on_released(4, 40);
        assert_eq!((balance.share(), balance.is_growing()), (40, true));
    }
}

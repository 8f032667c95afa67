//! How many extents an engine is asked to give back in one hold.

/// The next order to retire extents. How many chunks are missing is known only once KV has made way, so orders double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retirement {
    next: u32,
    is_exhausted: bool,
}

impl Default for Retirement {
    fn default() -> Self {
        Retirement { next: 1, is_exhausted: false }
    }
}

impl Retirement {
    /// Extents that the next order asks for.
    pub fn asks_for(self) -> u32 {
        self.next
    }

    /// The engine has answered with this number of extents.
    pub fn on_retired(&mut self, extents: u32) {
        self.is_exhausted = extents < self.next;
        self.next = self.next.saturating_mul(2);
    }

    /// The engine gave back fewer extents than it was asked for: it has no others, and nothing more is asked for.
    pub fn is_exhausted(self) -> bool {
        self.is_exhausted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_double_until_the_engine_gives_fewer() {
        let mut retirement = Retirement::default();
        let mut asked = Vec::new();
        for given in [1, 2, 3] {
            assert!(!retirement.is_exhausted());
            asked.push(retirement.asks_for());
            retirement.on_retired(given);
        }
        assert_eq!((asked, retirement.is_exhausted()), (vec![1, 2, 4], true));
    }
}

//! How many extents an engine is asked to give back in one hold.

/// The orders to retire extents in one hold. How many chunks a peer is owed is known only once KV has made way, so after
/// the first order extents are asked for one by one: no request is preempted for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retirement {
    asked: u32,
    is_exhausted: bool,
}

impl Retirement {
    /// Extents that the next order asks for. `known` extents are due by what is known, perhaps none.
    pub fn asks_for(&mut self, known: u32) -> u32 {
        self.asked = if self.asked == 0 { known.max(1) } else { 1 };
        self.asked
    }

    /// The engine has answered with this number of extents.
    pub fn on_retired(&mut self, extents: u32) {
        self.is_exhausted = extents < self.asked;
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
    fn first_order_asks_for_what_is_known_and_later_ones_for_one_each() {
        let mut retirement = Retirement::default();
        let mut asked = Vec::new();
        for given in [3, 1, 0] {
            assert!(!retirement.is_exhausted());
            asked.push(retirement.asks_for(3));
            retirement.on_retired(given);
        }
        assert_eq!((asked, retirement.is_exhausted()), (vec![3, 1, 1], true));
    }

    #[test]
    fn one_extent_is_asked_for_if_nothing_is_known() {
        assert_eq!(Retirement::default().asks_for(0), 1);
    }
}

//! The rule that keeps a lender at its floor: every check of a loan asks it.

/// Chunks that a lender can lend: its share, less what it has lent or promised, above its floor. Borrowed chunks are
/// never lent: these are returned instead.
pub fn chunks_above_floor(share: u32, given: u32, floor: u32) -> u32 {
    share.saturating_sub(given).saturating_sub(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_keeps_its_floor_whatever_it_has_given() {
        assert_eq!([0, 5, 6, 7, 10, 11].map(|given| chunks_above_floor(10, given, 4)), [6, 1, 0, 0, 0, 0]);
        assert_eq!(chunks_above_floor(10, 4, 0), 6, "a sleeping tenant lends its floor too");
    }
}

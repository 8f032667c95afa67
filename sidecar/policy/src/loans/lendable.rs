//! What a tenant can lend now: a decision over numbers.

use crate::peers::loan_denied::LoanDenied;

/// What decides about a loan to a peer, in chunks where no other unit is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LendFacts {
    /// Most layers that may move or be lent. `None`: the policy keeps its weights, and nothing is lent.
    pub max_moving: Option<u16>,
    /// Layers without memory of their own.
    pub displaced: usize,
    /// The tenant is loaded, neither falls asleep nor wakes, restores no layers and releases no share.
    pub is_settled: bool,
    /// The tenant holds the time slice, or has work where there are none.
    pub is_active: bool,
    /// The tenant waits for a loan itself.
    pub borrows: bool,
    /// Chunks above the floor that are neither lent nor promised.
    pub above_floor: u32,
    /// Vacant chunks, unused cache, and layers whose copies hide.
    pub idle: u32,
    /// Chunks that are promised to peers.
    pub promised: u32,
}

impl LendFacts {
    /// Chunks that can be lent now, at least one.
    ///
    /// # Errors
    /// Why nothing can be lent.
    pub fn lendable(self) -> Result<u32, LoanDenied> {
        let Some(max_moving) = self.max_moving else { return Err(LoanDenied::NotTraded) };
        if !self.is_settled {
            return Err(LoanDenied::Busy);
        }
        if self.is_active && self.borrows {
            return Err(LoanDenied::Active);
        }
        match self.idle.saturating_sub(self.promised).min(self.above_floor) {
            0 if self.above_floor == 0 => Err(LoanDenied::AtFloor),
            0 if self.is_active => Err(LoanDenied::Active),
            0 if self.displaced >= usize::from(max_moving) => Err(LoanDenied::AtCap),
            0 => Err(LoanDenied::Nothing),
            chunks => Ok(chunks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: LendFacts = LendFacts {
        max_moving: Some(4),
        displaced: 0,
        is_settled: true,
        is_active: false,
        borrows: false,
        above_floor: 10,
        idle: 6,
        promised: 2,
    };

    #[test]
    fn idle_chunks_that_are_not_promised_are_lent_down_to_the_floor() {
        assert_eq!(IDLE.lendable(), Ok(4));
        assert_eq!(LendFacts { above_floor: 3, ..IDLE }.lendable(), Ok(3));
        assert_eq!(LendFacts { above_floor: 0, ..IDLE }.lendable(), Err(LoanDenied::AtFloor));
    }

    #[test]
    fn a_tenant_that_borrows_lends_nothing_while_it_is_active() {
        let borrows = LendFacts { borrows: true, ..IDLE };
        assert_eq!(LendFacts { is_active: true, ..borrows }.lendable(), Err(LoanDenied::Active));
        assert_eq!(borrows.lendable(), Ok(4));
    }

    #[test]
    fn refusal_names_its_reason() {
        let nothing = LendFacts { idle: 2, ..IDLE };
        assert_eq!(nothing.lendable(), Err(LoanDenied::Nothing));
        assert_eq!(LendFacts { displaced: 4, ..nothing }.lendable(), Err(LoanDenied::AtCap));
        assert_eq!(LendFacts { is_active: true, ..nothing }.lendable(), Err(LoanDenied::Active));
        assert_eq!(LendFacts { is_settled: false, ..IDLE }.lendable(), Err(LoanDenied::Busy));
        assert_eq!(LendFacts { max_moving: None, ..IDLE }.lendable(), Err(LoanDenied::NotTraded));
    }
}

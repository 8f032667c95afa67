//! The parts that decisions about loans read, and the questions about share, loans and debts. They change nothing.

use super::Loans;
use super::audit::LoanAudit;
use crate::chunks::Chunks;
use crate::cost::LayoutSearch;
use crate::kv::Kv;
use crate::orders::Orders;
use crate::peers::loan_denied::LoanDenied;
use crate::sleep::Sleep;

/// Share, loans and debts of a tenant, in chunks.
#[derive(Clone, Copy, Debug)]
pub struct LoanView<'a> {
    pub(crate) loans: &'a Loans,
    pub(crate) orders: &'a Orders,
    pub(crate) chunks: &'a Chunks,
    pub(crate) kv: &'a Kv,
    pub(crate) sleep: &'a Sleep,
    /// Layouts, with the sizes and the costs that they follow from.
    pub(crate) layouts: LayoutSearch<'a>,
    /// Every layer was loaded once.
    pub(crate) loaded: bool,
    /// It is loaded, and the backend works ([`crate::memory_manager::StatusView::is_loaded`]).
    pub(crate) is_loaded: bool,
    /// The backend failed within the back-off.
    pub(crate) in_backoff: bool,
}

impl LoanView<'_> {
    /// Chunks that may exist now: the share, plus borrowed and minus lent ones.
    pub fn budget_chunks(&self) -> u32 {
        self.loans.balance.budget()
    }

    /// Chunks that the tenant may hold without a loan. While a share that fell is being released, this is more than the
    /// assigned share ([`LoanView::releasing_chunks`]).
    pub fn share_chunks(&self) -> u32 {
        self.loans.balance.share()
    }

    /// Chunks of peers that are here.
    pub fn borrowed_chunks(&self) -> u32 {
        self.loans.balance.borrowed()
    }

    /// Chunks of the share that peers have.
    pub fn lent_chunks(&self) -> u32 {
        self.loans.balance.lent()
    }

    /// Chunks that are being created or released: the backend can be ahead of the memory manager by this number.
    pub fn moving_chunks(&self) -> u32 {
        self.orders.pending().moving_chunks()
    }

    /// Chunks of the share that the tenant wants and peers still hold.
    pub fn expected_chunks(&self) -> u32 {
        self.missing_floor_chunks().unwrap_or(0) + self.loans.recreation.held_by_peers()
    }

    /// Chunks that the tenant never lends, except while it sleeps.
    pub fn floor_chunks(&self) -> u32 {
        self.layouts.sizes.floor
    }

    /// Chunks that it does not lend now.
    pub fn unlent_floor_chunks(&self) -> u32 {
        self.limits().floor
    }

    /// Whether the tenant is active.
    pub fn active(&self) -> bool {
        self.loans.is_active()
    }

    /// Lent layers wait for their loans.
    pub fn awaits_loans(&self) -> bool {
        self.loans.awaits_loans()
    }

    /// A return or a release of share is due: no step begins before it is made, unless the backend keeps failing.
    #[inline]
    pub fn has_debt(&self) -> bool {
        self.share_to_release() > 0 || self.loans.outgoing.has_return()
    }

    /// Chunks that could be lent without hurting a request: free chunks, unused cache, and, while the tenant is
    /// inactive, its last weight layers. Never below the floor, and never borrowed chunks: these are returned instead.
    /// Under a policy that does not reclaim weights partitions are fixed and nothing is lent.
    pub fn lendable_chunks(&self) -> u32 {
        self.lendable().unwrap_or(0)
    }

    /// As [`LoanView::lendable_chunks`], at least one. The rule that keeps a tenant at its floor is
    /// `chunks_above_floor` in `peers/loans/floor.rs`. This function asks it first; the loan book asks it again with
    /// its own figures ([`crate::peers::loans::LoanError::BelowFloor`]).
    ///
    /// # Errors
    /// Why nothing can be lent now.
    pub fn lendable(&self) -> Result<u32, LoanDenied> {
        self.lend_facts().lendable()
    }

    /// Chunks that the next step lacks and peers may have. The step waits until they arrive or
    /// [`LoanControl::on_borrow_denied`](crate::loan_negotiator::LoanControl::on_borrow_denied).
    pub fn borrow_request(&self) -> Option<u32> {
        self.loans.borrow_request()
    }

    /// The useful size of a loan where at most `max` chunks can be had: enough for as many requests of the step as the
    /// loan and the tenant's own layers cover, less what whole own layers give in any case. 0 if it would not help.
    pub fn useful_loan_size(&self, max: u32) -> u32 {
        self.loans.useful_loan_size(max, self.own_chunks(), self.layouts.sizes.largest_slab())
    }

    /// Lent layers are being restored: their memory is here.
    pub fn can_restore_layers(&self) -> bool {
        self.wants_layers() && !self.awaits_loans()
    }

    /// A transition that must happen, such as one for a return, found too few chunks to free at a boundary: the
    /// scheduler pauses or preempts a request and calls the boundary again.
    pub fn debt_lacks_room(&self) -> bool {
        self.loans.lacks_room()
    }

    /// The tenant has work and lent layers are absent.
    pub fn wants_layers(&self) -> bool {
        self.is_loaded && self.should_restore_layers()
    }

    /// The loans as they were counted, for [`LoanNegotiator::check`](crate::loan_negotiator::LoanNegotiator::check).
    pub fn audit(&self) -> LoanAudit {
        self.loans.audit(self.orders.pending())
    }

    /// Chunks of the share that are still to be released.
    pub fn releasing_chunks(&self) -> u32 {
        self.loans.balance.excess(self.layouts.sizes.share)
    }

    /// Nothing is due for a peer or for the share.
    pub(crate) fn is_settled(&self) -> bool {
        self.releasing_chunks() == 0 && !self.loans.balance.is_growing() && !self.has_step()
    }

    /// Chunks that peers hold and that the floor would lack within the assigned share.
    pub fn over_lent_chunks(&self) -> u32 {
        let (loans, limits) = (&self.loans, self.limits());
        match loans.balance.lent() {
            0 => 0,
            lent => loans.over_lent(self.orders.pending(), limits).min(lent),
        }
    }

    /// Chunks without which the tenant cannot start and which peers hold, such as its former instances. None once it
    /// has them.
    pub fn missing_floor_chunks(&self) -> Option<u32> {
        self.loans.awaits_floor().then(|| self.missing_floor())
    }
}

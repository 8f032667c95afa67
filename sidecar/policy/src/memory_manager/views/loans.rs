//! Share, loans and debts of a tenant.

use crate::loans::audit::LoanAudit;
use crate::loans::lendable::LendFacts;
use crate::memory_manager::{MemoryManager, TransferKind};
use crate::params::{Bounds, Params};
use crate::peers::loan_denied::LoanDenied;

/// Share, loans and debts of a tenant, in chunks.
#[derive(Clone, Copy, Debug)]
pub struct LoanView<'a> {
    pub(in crate::memory_manager) manager: &'a MemoryManager,
}

impl LoanView<'_> {
    /// Chunks that may exist now: the share, plus borrowed and minus lent ones.
    pub fn budget_chunks(&self) -> u32 {
        self.manager.loans.budget()
    }

    /// Chunks that the tenant may hold without a loan. While a share that fell is being released, this is more than the
    /// assigned share ([`LoanView::releasing_chunks`]).
    pub fn share_chunks(&self) -> u32 {
        self.manager.loans.share()
    }

    /// Chunks of peers that are here.
    pub fn borrowed_chunks(&self) -> u32 {
        self.manager.loans.borrowed()
    }

    /// Chunks of the share that peers have.
    pub fn lent_chunks(&self) -> u32 {
        self.manager.loans.lent()
    }

    /// Chunks that are being created or released: the backend can be ahead of the memory manager by this number.
    pub fn moving_chunks(&self) -> u32 {
        self.manager.orders.pending.moving_chunks()
    }

    /// Chunks of the share that the tenant wants and peers still hold.
    pub fn expected_chunks(&self) -> u32 {
        self.missing_floor_chunks().unwrap_or(0) + self.manager.loans.held_by_peers()
    }

    /// Chunks that the tenant never lends, except while it sleeps.
    pub fn floor_chunks(&self) -> u32 {
        self.manager.sizes.floor
    }

    /// Chunks that it does not lend now.
    pub fn unlent_floor_chunks(&self) -> u32 {
        self.manager.share_limits().floor
    }

    /// Whether the tenant is active.
    pub fn active(&self) -> bool {
        self.manager.loans.is_active()
    }

    /// Lent layers wait for their loans.
    pub fn awaits_loans(&self) -> bool {
        self.manager.loans.awaits_loans()
    }

    /// A return or a release of share is due: no step begins before it is made, unless the backend keeps failing.
    pub fn has_debt(&self) -> bool {
        self.manager.share_to_release() > 0 || self.manager.loans.owes_peers()
    }

    /// Chunks that could be lent without hurting a request: free chunks, unused cache, and, while the tenant is
    /// inactive, its last weight layers. Never below the floor, and never borrowed chunks: these are returned instead.
    /// Under a policy that does not reclaim weights partitions are fixed and nothing is lent.
    pub fn lendable_chunks(&self) -> u32 {
        self.lendable().unwrap_or(0)
    }

    /// As [`LoanView::lendable_chunks`], at least one. This is the rule that keeps a tenant at its floor; the loan
    /// book checks its own figures again ([`crate::peers::loans::LoanError::BelowFloor`]); this rule refuses first.
    ///
    /// # Errors
    /// Why nothing can be lent now.
    pub fn lendable(&self) -> Result<u32, LoanDenied> {
        let (loans, pending) = (&self.manager.loans, &self.manager.orders.pending);
        let facts = LendFacts {
            max_moving: self.manager.sizes.movable_m,
            displaced: self.manager.displaced_layers(),
            is_settled: self.manager.status().is_loaded()
                && self.manager.sleep.is_settled()
                && !self.manager.should_restore_layers()
                && self.releasing_chunks() == 0,
            is_active: loans.is_active(),
            borrows: self.borrow_request().is_some(),
            above_floor: loans.chunks_above_floor(pending, self.unlent_floor_chunks()),
            idle: self.manager.vacant_chunks()
                + self.manager.kv.idle_chunks_above(self.manager.sizes.kv_guaranteed)
                + self.manager.lendable_layers().hidden_chunks(),
            promised: loans.outgoing_chunks(pending, TransferKind::Lend),
        };
        facts.lendable()
    }

    /// Chunks that the next step lacks and peers may have. The step waits until they arrive or
    /// [`LoanControl::on_borrow_denied`](crate::loan_negotiator::LoanControl::on_borrow_denied).
    pub fn borrow_request(&self) -> Option<u32> {
        self.manager.loans.borrow_request()
    }

    /// The useful size of a loan where at most `max` chunks can be had: enough for as many requests of the step as the
    /// loan and the tenant's own layers cover, less what whole own layers give in any case. 0 if it would not help.
    pub fn useful_loan_size(&self, max: u32) -> u32 {
        self.manager.loans.useful_loan_size(max, self.manager.own_chunks(), self.manager.sizes.largest_slab())
    }

    /// The tenant has work and lent layers are absent.
    pub fn wants_layers(&self) -> bool {
        self.manager.status().is_loaded() && self.manager.should_restore_layers()
    }

    /// The loans as they were counted, for [`LoanNegotiator::check`](crate::loan_negotiator::LoanNegotiator::check).
    pub fn audit(&self) -> LoanAudit {
        self.manager.loans.audit(&self.manager.orders.pending)
    }

    /// The share and the cap that were set last.
    pub fn bounds(&self) -> Bounds {
        let Params { share_chunks, remap_cap_permille, .. } = self.manager.params;
        Bounds { share_chunks, remap_cap_permille }
    }

    /// Chunks of the share that are still to be released.
    pub fn releasing_chunks(&self) -> u32 {
        self.manager.loans.releasing_chunks(self.manager.sizes.share)
    }

    /// Chunks that peers hold and that the floor would lack within the assigned share.
    pub fn over_lent_chunks(&self) -> u32 {
        let (loans, limits) = (&self.manager.loans, self.manager.share_limits());
        match loans.lent() {
            0 => 0,
            lent => loans.over_lent(&self.manager.orders.pending, limits).min(lent),
        }
    }

    /// Chunks without which the tenant cannot start and which peers hold, such as its former instances. None once it
    /// has them.
    pub fn missing_floor_chunks(&self) -> Option<u32> {
        self.manager.loans.awaits_floor().then(|| self.manager.missing_floor())
    }
}

//! What a negotiator asks of the tenant whose loans it trades.

use alloc::vec::Vec;

use crate::action::{Action, Earmark};
use crate::loans::{TransferKind, TransferResult};
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::peers::victim::NextUseEstimate;
use crate::reason::Reason;

/// What the tenant holds and waits for now. Counts are chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanState {
    /// Chunks that it may hold without a loan.
    pub share: u32,
    /// Chunks that it does not lend now.
    pub floor: u32,
    /// Chunks of the share that it wants and peers still hold.
    pub expected: u32,
    /// Chunks that peers hold and that the floor would lack within the assigned share.
    pub over_lent: u32,
    /// It holds the time slice, or has work where there are none.
    pub is_active: bool,
    /// It is loaded, and every layer has memory.
    pub is_whole: bool,
    /// It has work, and lent layers are absent.
    pub wants_layers: bool,
    /// An action is pending that no step may run with.
    pub is_blocked: bool,
    /// How its next use of memory is predicted.
    pub next_use: NextUseEstimate,
}

/// The loans of a tenant, as its [`LoanNegotiator`](super::LoanNegotiator) sees and changes them.
/// [`MemoryManager::loans_mut`](crate::memory_manager::MemoryManager::loans_mut) returns them.
pub trait LoanControl {
    /// What the tenant holds and waits for now.
    fn state(&self) -> LoanState;

    /// Chunks that the next step lacks and peers may have.
    fn borrow_request(&self) -> Option<u32>;

    /// The useful size of a loan where at most `max` chunks can be had; 0 if it would not help.
    fn useful_loan_size(&self, max: u32) -> u32;

    /// Chunks that could be lent without hurting a request, at least one.
    ///
    /// # Errors
    /// Why nothing can be lent now.
    fn lendable(&self) -> Result<u32, LoanDenied>;

    /// Chunks of this return that are queued or under way.
    fn debt_chunks(&self, earmark: Earmark) -> u32;

    /// The loan of this name is under way.
    fn is_lending(&self, nonce: Nonce) -> bool;

    /// Counts a decision about a peer.
    fn count(&mut self, reason: Reason);

    /// Peers have nothing: the policy's next step is tried, until the next boundary.
    fn on_borrow_denied(&mut self);

    /// Lent layers wait while the loans are being revoked (`true`), or are restored into the memory at hand (`false`).
    fn set_awaits_loans(&mut self, waits: bool);

    /// Queues a transfer to a peer. Its result comes by [`LoanControl::take_transfer_results`].
    ///
    /// # Panics
    /// If a loan would take the tenant below its floor, or a return is larger than what was borrowed: the caller has
    /// checked.
    fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind);

    /// The borrower no longer waits for this loan. Returns false if the loan can no longer be cancelled: its result
    /// comes.
    fn cancel_loan(&mut self, earmark: Earmark) -> bool;

    /// A peer has earmarked chunks for this tenant, as a loan or as a return: they are created here.
    ///
    /// # Panics
    /// If more is returned than was lent.
    fn accept(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind, out: &mut Vec<Action>);

    /// Results of transfers since the last call.
    fn take_transfer_results(&mut self) -> Vec<TransferResult>;

    /// A borrower exited, and its chunks are the device's: they may be created again.
    ///
    /// # Panics
    /// If fewer were lent.
    fn recover_share(&mut self, chunks: u32);

    /// Borrowed chunks to return now: they were not needed for a while, after own layers were restored. Without
    /// requests that is all of them: a loan does not serve an unused cache.
    fn unused_loan(&mut self) -> u32;
}

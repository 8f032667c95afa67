//! What is on its way between a tenant and its neighbours.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::action::Earmark;
use crate::digest::mix;
use crate::reason::Reason;
use crate::revert::Hysteresis;

/// Whether a transfer may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// The neighbour asks: it gets what can go without hurting a request.
    Lend,
    /// The memory is the neighbour's: it gets it, and requests are paused or preempted for it if need be.
    Return,
}

impl TransferKind {
    pub(super) fn reason(self) -> Reason {
        match self {
            TransferKind::Lend => Reason::Lend,
            TransferKind::Return => Reason::Repay,
        }
    }
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferResult {
    /// The chunks are earmarked for the neighbour.
    Granted {
        /// The promise.
        earmark: Earmark,
        /// How many.
        chunks: u32,
        /// As what.
        claim: TransferKind,
    },
    /// A loan found no room, the GPU's ledger was full, or the backend failed; nothing went.
    Refused {
        /// The promise that was not made.
        earmark: Earmark,
        /// How many.
        chunks: u32,
        /// As what.
        claim: TransferKind,
    },
    /// The neighbour's chunks are this tenant's now.
    Accepted {
        /// The promise that was kept.
        earmark: Earmark,
        /// How many.
        chunks: u32,
    },
    /// The neighbour's bytes are this tenant's now, and the device has no memory to make chunks of them.
    NotBacked {
        /// The promise that was kept.
        earmark: Earmark,
        /// How many.
        chunks: u32,
    },
    /// The neighbour's promise did not hold.
    NotAccepted {
        /// The promise.
        earmark: Earmark,
    },
}

/// Chunks that are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutgoingTransfer {
    pub earmark: Earmark,
    pub chunks: u32,
    pub claim: TransferKind,
}

/// What a tenant may hold, and what is on its way to or from neighbours.
#[derive(Clone, Debug)]
pub(super) struct LoanState {
    /// Chunks that may exist without a neighbour. More than the sizes say while a share that fell is being given up.
    pub share: u32,
    /// The share rose: what it gained is to be created.
    pub is_share_growing: bool,
    pub borrowed: u32,
    pub lent: u32,
    /// Holds the turn, or has work where there are no turns.
    pub active: bool,
    /// Requests wait or run, and there is an engine for them.
    pub busy: bool,
    /// Layers that were lent are not brought back yet: their lender's revocation is under way.
    pub awaits_loans: bool,
    pub outgoing_transfers: VecDeque<OutgoingTransfer>,
    /// Chunks to create once the device has them again.
    pub chunks_to_recreate: u32,
    /// Most chunks to create at a time: halved while the ledger refuses.
    pub recreate_piece: u32,
    /// The ledger has refused some of them: neighbours still hold them.
    pub is_recreate_refused: bool,
    /// No chunk is created before this boundary.
    pub recreate_at: u64,
    /// Not even the floor is free at first: neighbours hold it.
    pub awaits_floor: bool,
    /// What must go has no room: a request has to be paused or preempted.
    pub is_blocked: bool,
    /// It has no room, and no request is left to make some: layers go for it, whatever their way back costs.
    pub forces_reclaim: bool,
    /// Neighbours can be asked.
    pub can_borrow: bool,
    /// Chunks that neighbours may have and with which ever more of a step's requests fit, in the order of their admission:
    /// rising, the last for all that can; empty where no step lacks any.
    pub borrow_sizes: Vec<u32>,
    /// They said no since the last boundary.
    pub is_borrow_denied: bool,
    /// Boundaries at which borrowed chunks were not needed.
    pub borrow_hysteresis: Hysteresis,
    /// Boundaries without a request, while chunks are borrowed.
    pub idle_boundaries: u32,
    pub transfer_results: Vec<TransferResult>,
}

impl LoanState {
    pub fn new(share: u32, calm: Hysteresis) -> LoanState {
        LoanState {
            share,
            is_share_growing: false,
            borrowed: 0,
            lent: 0,
            active: true,
            busy: false,
            awaits_loans: false,
            outgoing_transfers: VecDeque::new(),
            chunks_to_recreate: 0,
            recreate_piece: u32::MAX,
            is_recreate_refused: false,
            recreate_at: 0,
            awaits_floor: false,
            is_blocked: false,
            forces_reclaim: false,
            can_borrow: false,
            borrow_sizes: Vec::new(),
            is_borrow_denied: false,
            borrow_hysteresis: calm,
            idle_boundaries: 0,
            transfer_results: Vec::new(),
        }
    }

    /// A number that differs when anything here does, but for what was told.
    pub fn digest_word(&self) -> u64 {
        let flags = u64::from(self.is_share_growing) << 5
            | u64::from(self.forces_reclaim) << 4
            | u64::from(self.awaits_floor) << 3
            | u64::from(self.active) << 2
            | u64::from(self.awaits_loans) << 1
            | u64::from(self.is_blocked);
        let words = [
            self.share,
            self.borrowed,
            self.lent,
            self.chunks_to_recreate,
            self.outgoing_transfers.len() as u32,
        ];
        words.into_iter().fold(flags, |word, next| mix(word ^ u64::from(next)))
    }

    pub fn budget(&self) -> u32 {
        self.share + self.borrowed - self.lent
    }

    /// Chunks that are to go under this claim.
    pub fn promised(&self, claim: TransferKind) -> u32 {
        let partings = self.outgoing_transfers.iter().filter(|parting| parting.claim == claim);
        partings.map(|parting| parting.chunks).sum()
    }
}

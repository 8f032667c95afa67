//! The other tenants of the GPU, as the scheduler reaches them.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};

/// What a tenant says about its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SliceCommand {
    /// It has work: the turn, please.
    Request,
    /// No step of it runs: the turn is the next one's.
    Release,
}

/// What comes from the neighbourhood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPortEvent {
    /// About memory.
    Peer(PeerEvent),
    /// The turn has come.
    SliceGranted {
        /// Of this turn; rises with every turn on the GPU.
        epoch: u64,
    },
    /// A neighbour waits for the turn, which this tenant has. Said once for each turn: its quantum counts from now on.
    SliceRequested {
        /// Of the turn that this tenant has.
        epoch: u64,
    },
    /// A neighbour took the turn, since this tenant was past its deadline. There is nothing to give up.
    SliceTakenOver {
        /// Of the turn that this tenant had.
        epoch: u64,
    },
}

/// The way to the neighbourhood of one GPU. Nothing here blocks: what is asked is answered by a [`NeighbourEvent`] that the
/// body puts into the queue, or never.
pub trait PeerPort: Send + std::fmt::Debug {
    /// Sends a letter.
    fn send(&mut self, now: Nanos, letter: PeerCommand);

    /// Asks for the turn, or gives it up.
    fn send_slice_command(&mut self, now: Nanos, call: SliceCommand);
}

/// A GPU of one's own: nobody to write to, and the turn is never asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl PeerPort for NoPeers {
    fn send(&mut self, _now: Nanos, letter: PeerCommand) {
        panic!("a tenant without neighbours writes to nobody: {letter:?}");
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        panic!("a tenant without neighbours needs no turn: {call:?}");
    }
}

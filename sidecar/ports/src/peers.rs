//! The scheduler's interface to the other tenants of the GPU.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};

/// A tenant's command about its time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SliceCommand {
    /// Requests the time slice because it has work.
    Request,
    /// Releases the time slice because it runs no step.
    Release,
}

/// Event from the peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPortEvent {
    /// Event about memory.
    Peer(PeerEvent),
    /// This tenant received the time slice.
    SliceGranted {
        /// Epoch of the time slice; rises with every slice on the GPU.
        epoch: u64,
    },
    /// A peer waits for the time slice that this tenant holds. Sent once per slice: its quantum counts from
    /// now on.
    SliceRequested {
        /// Epoch of the time slice that this tenant holds.
        epoch: u64,
    },
    /// A peer took the time slice over, because this tenant exceeded its deadline. There is nothing to
    /// release.
    SliceTakenOver {
        /// Epoch of the time slice that this tenant held.
        epoch: u64,
    },
}

/// Connection to the peers of one GPU. Its methods do not block. An answer arrives as a [`PeerPortEvent`]
/// that the implementation queues; there may be none.
pub trait PeerPort: Send + std::fmt::Debug {
    /// Sends a message.
    fn send(&mut self, now: Nanos, message: PeerCommand);

    /// Requests or releases the time slice.
    fn send_slice_command(&mut self, now: Nanos, call: SliceCommand);
}

/// Peer port of a tenant that does not share its GPU: it has no peers and never requests the time slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl PeerPort for NoPeers {
    fn send(&mut self, _now: Nanos, message: PeerCommand) {
        panic!("a tenant without peers sends no message: {message:?}");
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        panic!("a tenant without peers needs no time slice: {call:?}");
    }
}

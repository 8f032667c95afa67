//! What the acceptor sends to the engine loop.

use std::sync::Arc;

use sluice_link::process_exit::PeerProcess;
use sluice_link::server::{EngineEvent, EngineSender};
use sluice_ports::EngineHello;

/// Event that the acceptor sends to the engine loop.
#[derive(Debug)]
pub enum EngineConnEvent {
    /// An engine has reserved its address ranges. Nothing is mapped in it yet.
    Attached(Attached),
    /// The engine answered.
    Event(EngineEvent),
    /// The engine exited. Holds the reason why the link ended.
    Lost(String),
}

/// Sending half of an attached engine's link.
#[derive(Debug)]
pub struct Attached {
    /// Hello of the engine.
    pub hello: EngineHello,
    /// Version of the engine's build.
    pub build: String,
    /// Sends commands to the engine.
    pub sender: EngineSender,
    /// Process of the engine.
    pub process: Arc<PeerProcess>,
    /// Supervisor process that starts the next engine.
    pub supervisor: Arc<PeerProcess>,
}

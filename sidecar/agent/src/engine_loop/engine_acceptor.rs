//! Accepts engines: handshakes run in parallel, one engine is attached at a time, and a new engine receives memory only
//! after its predecessor's exit is confirmed.

mod engine_lease;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::EngineSetup;
use sluice_link::process_exit::PeerProcess;
use sluice_link::server::{Connection, EngineEvent, EngineReceiver, HandshakeHello, Listener, SharedMemory};
use sluice_link::tables::TableWriter;

use super::engine_event::{Attached, EngineConnEvent};
use crate::scheduler_handle::{MessageSender, SchedulerMessage};
pub use engine_lease::EngineLease;

/// Interval at which the acceptor checks whether it is closed.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of connections, including the attached engine.
const PEERS_MAX: usize = 16;
/// An engine whose link ended gets `EXIT_GRACE` to exit, then is killed and gets `EXIT_LIMIT` to be gone.
const EXIT_GRACE: Duration = Duration::from_millis(200);
const EXIT_LIMIT: Duration = Duration::from_secs(5);
/// How long a restarted engine waits for its predecessor's exit. This is longer than the exit takes. If it were much
/// longer, waiting connections would fill all slots and be tried before an engine that works. A supervisor restarts an
/// engine that was refused.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(8);

/// Accepts engines and holds everything shared with them.
pub struct EngineAcceptor {
    /// Socket that engines connect to.
    pub listener: Listener,
    /// Description of the tenant for engines.
    pub setup: EngineSetup,
    /// Memory file of the pool; `None` on a GPU, whose chunks are exported one by one.
    pub pool: Option<OwnedFd>,
    /// Control page with the generations.
    pub control: Arc<ControlPage>,
    /// Block tables and histories.
    pub tables: Arc<Mutex<TableWriter>>,
    /// File description that engines keep open until they exit. On a shared GPU it holds the tenant's locks.
    pub liveness: OwnedFd,
    /// Receives the events.
    pub inbox: MessageSender,
    /// Set to stop accepting engines.
    pub closed: Arc<AtomicBool>,
    /// Held from the hand-over of memory until the engine's exit is confirmed, so that one engine runs at a time.
    pub lease: EngineLease,
}

impl EngineAcceptor {
    /// Accepts engines until closed.
    pub fn run(self) {
        let door = Arc::new(self);
        let mut peers = Vec::new();
        while !door.closed.load(Ordering::Relaxed) {
            match door.listener.accept(ACCEPT_TIMEOUT) {
                Ok(None) => {}
                Ok(Some(connection)) => door.clone().spawn_handshake(connection, &mut peers),
                Err(error) => tracing::warn!(%error, "could not accept the connection of an engine"),
            }
        }
    }

    /// Runs the handshake on its own thread, so that a slow peer does not block others.
    fn spawn_handshake(self: Arc<Self>, connection: Connection, peers: &mut Vec<JoinHandle<()>>) {
        peers.retain(|peer| !peer.is_finished());
        if peers.len() >= PEERS_MAX {
            tracing::warn!(
                peers = peers.len(),
                "refused an engine: too many connections wait for their handshake"
            );
            return;
        }
        match std::thread::Builder::new().name("engine-peer".into()).spawn(move || self.handshake(connection))
        {
            Ok(peer) => peers.push(peer),
            Err(error) => tracing::warn!(%error, "could not accept the connection of an engine"),
        }
    }

    fn handshake(&self, connection: Connection) {
        match connection.recv_hello() {
            Ok(peer) => self.serve(peer),
            Err(error) => tracing::warn!(%error, "refused an engine"),
        }
    }

    /// Waits until no other engine can write memory, then serves this one until it exits.
    fn serve(&self, peer: HandshakeHello) {
        let Some(_lease) = self.lease.acquire() else {
            tracing::warn!("refused an engine: another engine is attached and its process runs");
            return;
        };
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        match self.share_memory(peer) {
            Err(error) => tracing::warn!(%error, "refused an engine"),
            Ok((attached, receiver)) => {
                let process = attached.process.clone();
                self.notify(EngineConnEvent::Attached(attached));
                let why = self.receive_events(receiver);
                confirm_exit(&process);
                self.notify(EngineConnEvent::Lost(why));
            }
        }
    }

    fn share_memory(&self, peer: HandshakeHello) -> Result<(Attached, EngineReceiver), LinkError> {
        let offered = {
            // The lock is held only for the send, never while waiting for a peer.
            let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = SharedMemory {
                pool: self.pool.as_ref().map(AsFd::as_fd),
                control: &self.control,
                tables: &tables,
                lifetime_lock: self.liveness.as_fd(),
            };
            peer.send_setup(&self.setup, shared)?
        };
        let link = offered.recv_ready(&self.setup)?;
        let (process, supervisor) = (Arc::new(link.process), Arc::new(link.supervisor));
        let (hello, build, sender) = (link.hello, link.build, link.sender);
        Ok((Attached { hello, build, sender, process, supervisor }, link.receiver))
    }

    /// Forwards events until the link ends. Returns the reason why it ended.
    fn receive_events(&self, mut receiver: EngineReceiver) -> String {
        loop {
            match receiver.recv() {
                Ok(EngineEvent::Bye) => return "the engine closed the link".into(),
                Ok(event) => self.notify(EngineConnEvent::Event(event)),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn notify(&self, news: EngineConnEvent) {
        self.inbox.send(SchedulerMessage::Engine(Box::new(news)));
    }
}

/// Waits until the engine process has exited. The end of the link does not suffice: a new engine may map the memory
/// only when its predecessor can no longer write to it.
fn confirm_exit(process: &PeerProcess) {
    while let Err(error) = process.kill_and_wait(EXIT_GRACE, EXIT_LIMIT) {
        tracing::error!(%error, "the process of an engine with a closed link still runs; no new engine is \
                                 accepted until it ends");
    }
}

#[cfg(test)]
pub(super) mod tests;

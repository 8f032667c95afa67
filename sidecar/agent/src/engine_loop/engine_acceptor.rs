//! The door through which engines come: greeted side by side, let in one at a time, each confirmed dead before the
//! next is given memory.

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
use sluice_link::server::{
    Connection, EngineEvent, EngineReceiver, EngineSender, HandshakeHello, Listener, SharedMemory,
};
use sluice_link::tables::TableWriter;
use sluice_ports::EngineHello;

use crate::scheduler_handle::{Message, MessageSender};
pub use engine_lease::EngineLease;

/// How often the door looks whether it is to be closed.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(200);
/// Peers at the door at most, the attached engine among them.
const PEERS_MAX: usize = 16;
/// An engine whose link ended has this long to end by itself before it is killed, and then this long to be gone.
const EXIT_GRACE: Duration = Duration::from_millis(200);
const EXIT_LIMIT: Duration = Duration::from_secs(5);
/// An engine that was started again waits this long for its predecessor's death: longer than that takes, and no longer,
/// or those who wait would fill the places at the door and each be tried before an engine that works. One that is sent
/// away is started again by its supervisor.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(8);

/// What the door tells the room.
#[derive(Debug)]
pub enum EngineConnEvent {
    /// An engine has reserved its ranges; nothing is mapped in it yet.
    Attached(Attached),
    /// It answered.
    Event(EngineEvent),
    /// It is dead, and why the link ended.
    Lost(String),
}

/// The sending half of an attached engine.
#[derive(Debug)]
pub struct Attached {
    /// What it said of itself.
    pub hello: EngineHello,
    /// Version of its build.
    pub build: String,
    /// Commands to it.
    pub sender: EngineSender,
    /// Its process.
    pub process: Arc<PeerProcess>,
    /// The process that starts its successor.
    pub supervisor: Arc<PeerProcess>,
}

/// Everything that is shared with an engine.
pub struct EngineAcceptor {
    /// Where engines connect.
    pub listener: Listener,
    /// The tenant, as engines see it.
    pub setup: EngineSetup,
    /// The pool's memfd.
    pub pool: OwnedFd,
    /// Generations.
    pub control: Arc<ControlPage>,
    /// Block tables and histories.
    pub tables: Arc<Mutex<TableWriter>>,
    /// A description that engines keep as long as they live; on a shared GPU it holds the tenant's locks.
    pub liveness: OwnedFd,
    /// Where news goes.
    pub inbox: MessageSender,
    /// Raised when no more engines are wanted.
    pub closed: Arc<AtomicBool>,
    /// Held from the hand-over of memory to a confirmed death: one engine at a time.
    pub lease: EngineLease,
}

impl EngineAcceptor {
    /// Lets engines in until closed.
    pub fn run(self) {
        let door = Arc::new(self);
        let mut peers = Vec::new();
        while !door.closed.load(Ordering::Relaxed) {
            match door.listener.accept(ACCEPT_TIMEOUT) {
                Ok(None) => {}
                Ok(Some(connection)) => door.clone().spawn_handshake(connection, &mut peers),
                Err(error) => tracing::warn!(%error, "an engine was not let in"),
            }
        }
    }

    /// Greets on a thread of its own: a peer that is slow to say who it is keeps nobody out.
    fn spawn_handshake(self: Arc<Self>, connection: Connection, peers: &mut Vec<JoinHandle<()>>) {
        peers.retain(|peer| !peer.is_finished());
        if peers.len() >= PEERS_MAX {
            tracing::warn!(peers = peers.len(), "an engine was refused: too many peers at the door");
            return;
        }
        match std::thread::Builder::new().name("engine-peer".into()).spawn(move || self.handshake(connection))
        {
            Ok(peer) => peers.push(peer),
            Err(error) => tracing::warn!(%error, "an engine was not let in"),
        }
    }

    fn handshake(&self, connection: Connection) {
        match connection.recv_hello() {
            Ok(peer) => self.serve(peer),
            Err(error) => tracing::warn!(%error, "an engine was refused"),
        }
    }

    /// Waits until no other engine can write, then lets this one work for as long as it lives.
    fn serve(&self, peer: HandshakeHello) {
        let Some(_seat) = self.lease.acquire() else {
            tracing::warn!("an engine was refused: another one is attached and lives");
            return;
        };
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        match self.share_memory(peer) {
            Err(error) => tracing::warn!(%error, "an engine was refused"),
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
            // For the send alone: nobody waits for a peer while holding the tables.
            let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = SharedMemory {
                pool: self.pool.as_fd(),
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

    /// Passes answers on until the link ends; says why it did.
    fn receive_events(&self, mut receiver: EngineReceiver) -> String {
        loop {
            match receiver.recv() {
                Ok(EngineEvent::Bye) => return "it said good-bye".into(),
                Ok(event) => self.notify(EngineConnEvent::Event(event)),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn notify(&self, news: EngineConnEvent) {
        self.inbox.send(Message::Engine(Box::new(news)));
    }
}

/// End of file alone is not death: a successor may map the same memory only when its predecessor can no longer write.
fn confirm_exit(process: &PeerProcess) {
    while let Err(error) = process.kill_and_wait(EXIT_GRACE, EXIT_LIMIT) {
        tracing::error!(%error, "an engine whose link has ended still lives; no successor is let in before it is gone");
    }
}

#[cfg(test)]
pub(super) mod tests;

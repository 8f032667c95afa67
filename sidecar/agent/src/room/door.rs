//! The door through which engines come: greeted side by side, let in one at a time, each confirmed dead before the
//! next is given memory.

mod seat;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_link::control::ControlPage;
use sluice_link::death::PeerProcess;
use sluice_link::error::LinkError;
use sluice_link::message::EngineSetup;
use sluice_link::server::{
    Connection, EngineEvent, EngineReceiver, EngineSender, Introduced, Listener, Shared,
};
use sluice_link::tables::TableWriter;
use sluice_ports::EngineHello;

use crate::service::{Inbox, Message};
pub use seat::Seat;

/// How often the door looks whether it is to be closed.
const PATIENCE: Duration = Duration::from_millis(200);
/// Peers at the door at most, the attached engine among them.
const PEERS_MAX: usize = 16;
/// An engine whose link ended has this long to end by itself before it is killed, and then this long to be gone.
const DEATH_GRACE: Duration = Duration::from_millis(200);
const DEATH_LIMIT: Duration = Duration::from_secs(5);
/// An engine that was started again waits this long for its predecessor's death: longer than that takes, and no longer,
/// or those who wait would fill the places at the door and each be tried before an engine that works. One that is sent
/// away is started again by its supervisor.
pub const SEAT_PATIENCE: Duration = Duration::from_secs(8);

/// What the door tells the room.
#[derive(Debug)]
pub enum News {
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
pub struct Door {
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
    pub life: OwnedFd,
    /// Where news goes.
    pub inbox: Inbox,
    /// Raised when no more engines are wanted.
    pub closed: Arc<AtomicBool>,
    /// Held from the hand-over of memory to a confirmed death: one engine at a time.
    pub seat: Seat,
}

impl Door {
    /// Lets engines in until closed.
    pub fn keep(self) {
        let door = Arc::new(self);
        let mut peers = Vec::new();
        while !door.closed.load(Ordering::Relaxed) {
            match door.listener.accept(PATIENCE) {
                Ok(None) => {}
                Ok(Some(connection)) => door.clone().welcome(connection, &mut peers),
                Err(error) => tracing::warn!(%error, "an engine was not let in"),
            }
        }
    }

    /// Greets on a thread of its own: a peer that is slow to say who it is keeps nobody out.
    fn welcome(self: Arc<Self>, connection: Connection, peers: &mut Vec<JoinHandle<()>>) {
        peers.retain(|peer| !peer.is_finished());
        if peers.len() >= PEERS_MAX {
            tracing::warn!(peers = peers.len(), "an engine was refused: too many peers at the door");
            return;
        }
        match std::thread::Builder::new().name("engine-peer".into()).spawn(move || self.greet(connection)) {
            Ok(peer) => peers.push(peer),
            Err(error) => tracing::warn!(%error, "an engine was not let in"),
        }
    }

    fn greet(&self, connection: Connection) {
        match connection.introduction() {
            Ok(peer) => self.seat(peer),
            Err(error) => tracing::warn!(%error, "an engine was refused"),
        }
    }

    /// Waits until no other engine can write, then lets this one work for as long as it lives.
    fn seat(&self, peer: Introduced) {
        let Some(_seat) = self.seat.take() else {
            tracing::warn!("an engine was refused: another one is attached and lives");
            return;
        };
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        match self.hand_over(peer) {
            Err(error) => tracing::warn!(%error, "an engine was refused"),
            Ok((attached, receiver)) => {
                let process = attached.process.clone();
                self.tell(News::Attached(attached));
                let why = self.listen(receiver);
                confirm(&process);
                self.tell(News::Lost(why));
            }
        }
    }

    fn hand_over(&self, peer: Introduced) -> Result<(Attached, EngineReceiver), LinkError> {
        let offered = {
            // For the send alone: nobody waits for a peer while holding the tables.
            let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = Shared {
                pool: self.pool.as_fd(),
                control: &self.control,
                tables: &tables,
                life: self.life.as_fd(),
            };
            peer.offer(&self.setup, shared)?
        };
        let link = offered.ready(&self.setup)?;
        let (process, supervisor) = (Arc::new(link.process), Arc::new(link.supervisor));
        let (hello, build, sender) = (link.hello, link.build, link.sender);
        Ok((Attached { hello, build, sender, process, supervisor }, link.receiver))
    }

    /// Passes answers on until the link ends; says why it did.
    fn listen(&self, mut receiver: EngineReceiver) -> String {
        loop {
            match receiver.recv() {
                Ok(EngineEvent::Bye) => return "it said good-bye".into(),
                Ok(event) => self.tell(News::Event(event)),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn tell(&self, news: News) {
        self.inbox.send(Message::Engine(Box::new(news)));
    }
}

/// End of file alone is not death: a successor may map the same memory only when its predecessor can no longer write.
fn confirm(process: &PeerProcess) {
    while let Err(error) = process.confirm(DEATH_GRACE, DEATH_LIMIT) {
        tracing::error!(%error, "an engine whose link has ended still lives; no successor is let in before it is gone");
    }
}

#[cfg(test)]
pub(super) mod tests;

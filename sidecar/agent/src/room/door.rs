//! The door through which engines come: one at a time, each greeted, listened to, and confirmed dead before the next.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use std::os::fd::AsFd;

use sluice_link::control::ControlPage;
use sluice_link::death::EngineProcess;
use sluice_link::error::LinkError;
use sluice_link::message::EngineSetup;
use sluice_link::server::{Connection, EngineEvent, EngineReceiver, EngineSender, Listener, Shared};
use sluice_link::tables::TableWriter;
use sluice_ports::EngineHello;

use crate::service::{Inbox, Message};

/// How often the door looks whether it is to be closed.
const PATIENCE: Duration = Duration::from_millis(200);
/// An engine whose link ended has this long to end by itself before it is killed, and then this long to be gone.
const DEATH_GRACE: Duration = Duration::from_millis(200);
const DEATH_LIMIT: Duration = Duration::from_secs(5);

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
    /// Where news goes.
    pub inbox: Inbox,
    /// Raised when no more engines are wanted.
    pub closed: Arc<AtomicBool>,
}

impl Door {
    /// Lets engines in until closed.
    pub fn keep(self) {
        while !self.closed.load(Ordering::Relaxed) {
            match self.listener.accept(PATIENCE) {
                Ok(None) => {}
                Ok(Some(connection)) => self.greet(connection),
                Err(error) => tracing::warn!(%error, "an engine was not let in"),
            }
        }
    }

    fn greet(&self, connection: Connection) {
        match self.handshake(connection) {
            Err(error) => tracing::warn!(%error, "an engine was refused"),
            Ok((attached, receiver, process)) => {
                self.tell(News::Attached(attached));
                let why = self.listen(receiver);
                confirm(&process);
                self.tell(News::Lost(why));
            }
        }
    }

    fn handshake(
        &self,
        connection: Connection,
    ) -> Result<(Attached, EngineReceiver, EngineProcess), LinkError> {
        // Nobody else wants the tables now: steps are sent only while an engine is attached.
        let tables = self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shared = Shared { pool: self.pool.as_fd(), control: &self.control, tables: &tables };
        let link = connection.handshake(&self.setup, shared)?;
        let attached = Attached { hello: link.hello, build: link.build, sender: link.sender };
        Ok((attached, link.receiver, link.process))
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
fn confirm(process: &EngineProcess) {
    while let Err(error) = process.confirm(DEATH_GRACE, DEATH_LIMIT) {
        tracing::error!(%error, "an engine whose link has ended still lives; no successor is let in before it is gone");
    }
}

//! A scheduler's connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use sluice_link::client::scheduler::{
    SchedulerClient, SchedulerIdentity, SchedulerReplies, SchedulerRequest, SchedulerRequests,
    SchedulerWelcome,
};

use crate::failure::{Failure, lock};
use crate::inbox::{Deadline, Inbox};
use crate::json::{self, SchedulerIncoming, SchedulerOutgoing};

/// A scheduler's connection to its sidecar.
#[derive(Debug)]
pub(crate) struct Scheduler {
    setup_text: String,
    sender: SchedulerReplies,
    /// Keeps the packets of one message together.
    sending: Mutex<()>,
    inbox: Mutex<Inbox<SchedulerRequests>>,
    _sidecar: OwnedFd,
}

impl Scheduler {
    pub(crate) fn connect(path: &Path, hello: &[u8], deadline: Deadline) -> Result<Scheduler, Failure> {
        let identity: SchedulerIdentity = json::read(hello)?;
        let (client, welcome) =
            deadline.connect(|left| SchedulerClient::connect(path, identity.clone(), left))?;
        let SchedulerClient { sender, receiver } = client;
        let SchedulerWelcome { setup, sidecar, lifetime_lock } = welcome;
        // Stays open until this process ends: peers count the tenant as alive while its engine runs.
        std::mem::forget(lifetime_lock);
        Ok(Scheduler {
            setup_text: json::write(&setup),
            sender,
            sending: Mutex::new(()),
            inbox: Mutex::new(Inbox::new(receiver)),
            _sidecar: sidecar,
        })
    }

    pub(crate) fn setup_text(&self) -> &str {
        &self.setup_text
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.sender.fd()
    }

    /// Cuts the link.
    pub(crate) fn shutdown(&self) {
        // The sidecar may be gone, which is what a shutdown leads to.
        let _ = self.sender.send_bye();
        self.sender.shutdown();
    }

    /// Receives the next message, and returns where its text is.
    pub(crate) fn receive(&self, deadline: Deadline) -> Result<(*const u8, usize), Failure> {
        let mut inbox = lock(&self.inbox)?;
        let request = match deadline.left() {
            None => inbox.receiver.recv()?,
            Some(left) => inbox.receiver.recv_within(left)?,
        };
        let text = json::write(&match &request {
            SchedulerRequest::Hold { id } => SchedulerIncoming::Hold { id: id.0 },
            SchedulerRequest::Retire { id, extents } => {
                SchedulerIncoming::Retire { id: id.0, extents: *extents }
            }
            SchedulerRequest::Resume(resume) => SchedulerIncoming::Resume(resume),
            SchedulerRequest::Bye => SchedulerIncoming::Bye,
        });
        Ok(inbox.keep(text))
    }

    /// Sends a message of the caller.
    pub(crate) fn send(&self, text: &[u8]) -> Result<(), Failure> {
        let message: SchedulerOutgoing = json::read(text)?;
        let _sending = lock(&self.sending)?;
        Ok(match message {
            SchedulerOutgoing::Held(held) => self.sender.send_held(held),
            SchedulerOutgoing::Retired(retired) => self.sender.send_retired(retired),
            SchedulerOutgoing::Demand(demand) => self.sender.send_demand(demand),
            SchedulerOutgoing::Bye => self.sender.send_bye(),
        }?)
    }
}

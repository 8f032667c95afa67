//! The process of this check's sidecar and that of its engine.

use std::time::Duration;

use super::page::SignalPage;
use super::wait_process::{WAIT_PROCESS, WaitCommand, WaitReply, recv_reply};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::{ChildProcess, Environment};

/// Time limit for a word.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// The other process and the shared page.
pub(super) struct Pair {
    pub(super) peer: ChildProcess,
    pub(super) page: SignalPage,
}

impl Pair {
    /// Starts the other process with these environment variables.
    pub(super) fn start(bench: &Bench, environment: Environment<'_>) -> Result<Pair, Error> {
        let mut peer = ChildProcess::start_with(bench.setup, WAIT_PROCESS, environment)?;
        let page = SignalPage::new(&bench.context)?;
        peer.send(&(), &[page.file()])?;
        recv_reply(&mut peer)?;
        Ok(Pair { peer, page })
    }

    pub(super) fn request(&mut self, order: &WaitCommand) -> Result<WaitReply, Error> {
        self.peer.send(order, &[])?;
        recv_reply(&mut self.peer)
    }

    pub(super) fn end(self) -> Result<(), Error> {
        self.peer.stop()
    }
}

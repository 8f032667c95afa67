//! A process that works during a measurement.

use std::time::Duration;

use super::clock::now_ns;
use super::work::Load;
use super::worker::{self, LEAD, WORKER, WorkerCommand};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::{ChildProcess, Environment};

/// Maximum time of the work, longer than any measurement next to it.
const WINDOW: Duration = Duration::from_secs(30);

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyWork {
    /// It reads device memory.
    Computes,
    /// It copies to the device, back to back.
    Copies,
}

impl BusyWork {
    /// Returns the name in reports, a verb.
    pub fn name(self) -> &'static str {
        match self {
            BusyWork::Computes => "computes",
            BusyWork::Copies => "copies",
        }
    }

    fn load(self) -> Load {
        match self {
            BusyWork::Computes => Load::Read,
            BusyWork::Copies => Load::Copy,
        }
    }
}

/// The process; killed on drop.
#[derive(Debug)]
pub struct Busy {
    peer: ChildProcess,
    work: BusyWork,
}

impl Busy {
    /// Starts the process with these environment variables. It works when this function returns.
    pub fn start(bench: &Bench, work: BusyWork, environment: Environment<'_>) -> Result<Busy, Error> {
        let mut peer = ChildProcess::start_with(bench.setup, WORKER, environment)?;
        let loads = vec![work.load()];
        worker::request(&mut peer, &WorkerCommand::Prepare(loads.clone()), &[])?;
        let start_ns = now_ns() + LEAD.as_nanos() as u64;
        let window_ns = WINDOW.as_nanos() as u64;
        worker::request(&mut peer, &WorkerCommand::Start { loads, start_ns, window_ns }, &[])?;
        // Its first work is on the device shortly after the start.
        while now_ns() < start_ns + LEAD.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        Ok(Busy { peer, work })
    }

    /// Returns what the process does.
    pub fn work(&self) -> BusyWork {
        self.work
    }

    /// Fails if the process has not worked since its start.
    pub fn check(&mut self) -> Result<(), Error> {
        worker::request(&mut self.peer, &WorkerCommand::StillRuns, &[]).map(drop)
    }

    /// Ends the work, then the process. In MPS, a process that is killed during its work ends other processes too.
    pub fn stop(self) -> Result<(), Error> {
        self.peer.stop()
    }
}

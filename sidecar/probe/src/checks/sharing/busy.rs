//! A process that computes during a measurement.

use std::time::Duration;

use super::clock::now_ns;
use super::work::Load;
use super::worker::{self, LEAD, WORKER, WorkerCommand};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::ChildProcess;

/// Compute time, longer than any measurement with it; the process is killed when it is dropped.
const WINDOW: Duration = Duration::from_secs(30);

/// The process; killed on drop.
#[derive(Debug)]
pub struct Busy {
    _peer: ChildProcess,
    end_ns: u64,
}

impl Busy {
    /// Starts the process. It computes when this function returns.
    pub fn start(bench: &Bench) -> Result<Busy, Error> {
        let mut peer = ChildProcess::start(bench.setup, WORKER)?;
        worker::request(&mut peer, &WorkerCommand::Prepare(vec![Load::Read]), &[])?;
        let start_ns = now_ns() + LEAD.as_nanos() as u64;
        let window_ns = WINDOW.as_nanos() as u64;
        peer.send(&WorkerCommand::Run { loads: vec![Load::Read], start_ns, window_ns }, &[])?;
        // Its first work is on the device shortly after the start.
        while now_ns() < start_ns + LEAD.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        Ok(Busy { _peer: peer, end_ns: start_ns + window_ns })
    }

    /// Fails if the process may have finished.
    pub fn computes(&self) -> Result<(), Error> {
        let late = || Error::Timeout { what: "measured next to it".into(), limit: WINDOW };
        (now_ns() < self.end_ns).then_some(()).ok_or_else(late)
    }
}

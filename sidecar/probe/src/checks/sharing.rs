//! Row 5: processes that use one device at the same time, without MPS and with it.

use std::time::Duration;

use super::{Check, Role};
use crate::Error;
use crate::bench::Bench;
use crate::child_process::ChildProcess;
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::{Figure, median_of};

pub mod busy;
mod faults;
mod mps;
mod signalled;
mod spread;
mod work;
mod worker;

pub use mps::clean_up;

use mps::Mps;
use work::{Load, Track, now_ns};
use worker::{WorkerCommand, WorkerReply};

/// Row 5.
pub const CHECK: Check = Check {
    id: 5,
    name: "sharing",
    text: "Does one process copy to the device while another computes there, without MPS, and each keeps at least \
           85 % of its rate alone?",
    mib: 1024,
    quick_mib: 256,
    limit: Duration::from_secs(150),
    ask,
};

/// The process beside the asking one: an engine that computes, or a sidecar that copies.
pub const ROLE: (&str, Role) = (WORKER, worker::run_worker);

const WORKER: &str = "worker";
/// What each side has to keep of its rate alone, percent.
const MIN_KEPT_PERCENT: f64 = 85.0;
/// Between an order to start and the start: every process has read it by then.
const LEAD: Duration = Duration::from_millis(30);

/// What copies beside what, where signalled copies can be made.
const LOAD_PAIRS: [(Load, Load); 4] = [
    (Load::Copy, Load::Read),
    (Load::Copy, Load::Product),
    (Load::Signalled, Load::Read),
    (Load::Signalled, Load::Product),
];
/// Kinds of copies.
const COPIES: &[Load] = &[Load::Copy, Load::Signalled];
/// Kinds of computing.
const COMPUTES: &[Load] = &[Load::Read, Load::Product];

/// Variables of a process, for [`Peer::start_with`].
type Environment<'a> = &'a [(&'a str, &'a str)];

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let mut study = Study { bench, findings, alone: Vec::new() };
    let kept = study.without_mps()?;
    if let Err(error) = study.in_one_process() {
        study.findings.notes.push(format!("one process: {error}"));
    }
    // What a death leaves is told in notes and does not change what was measured before.
    if let Err(error) = study.faults("without MPS", &[]) {
        study.findings.notes.push(format!("without MPS, deaths: {error}"));
    }
    study.findings.notes.extend(mps::running_daemon());
    if let Err(error) = study.with_mps() {
        study.findings.notes.push(format!("MPS: {error}"));
    }
    Ok(conclude(&kept))
}

/// Yes if everybody keeps enough; otherwise who does not.
fn conclude(kept: &[(String, f64)]) -> Answer {
    let short: Vec<String> = kept
        .iter()
        .filter(|(_, percent)| *percent < MIN_KEPT_PERCENT)
        .map(|(who, percent)| format!("{who} keeps {percent:.0} %"))
        .collect();
    Answer::of(short.is_empty(), || short.join(", "))
}

struct Study<'a, 'b> {
    bench: &'a Bench,
    findings: &'a mut Findings<'b>,
    /// Rates with nothing beside them.
    alone: Vec<(Load, f64)>,
}

/// A process that copies.
struct Copier {
    peer: ChildProcess,
    /// In these ways.
    copies: &'static [Load],
}

impl Study<'_, '_> {
    /// Two processes that need no MPS; what each side of two processes keeps, percent.
    fn without_mps(&mut self) -> Result<Vec<(String, f64)>, Error> {
        let mut copier = self.copier("two processes", &[], &[])?;
        let mut computer = self.worker(COMPUTES, &[])?;
        for load in Load::ALL {
            let computes = COMPUTES.contains(&load);
            if !computes && !copier.copies.contains(&load) {
                continue;
            }
            let peer = if computes { &mut computer } else { &mut copier.peer };
            let track = self.run(&mut [(peer, &[load])])?.remove(0);
            let name = format!("alone: {}", load.name());
            self.alone.push((load, median_of(&track.rates)));
            self.findings.figures.push(Figure::of(&name, load.unit(), &track.rates));
            let times = track.times_ms.figures(&format!("{name}, {}", load.times()), "ms");
            self.findings.figures.extend(times);
        }
        let kept = self.run_pair("two processes", &mut copier, &mut computer)?;
        copier.peer.stop()?;
        computer.stop()?;
        Ok(kept)
    }

    /// The same in one process on two streams.
    fn in_one_process(&mut self) -> Result<(), Error> {
        let mut both = self.copier("one process", COMPUTES, &[])?;
        for (copy, load) in self.pairs(&both) {
            let tracks = self.run(&mut [(&mut both.peer, &[copy, load])])?;
            self.record_pair("one process", (copy, load), &tracks);
        }
        both.peer.stop()
    }

    /// The same with MPS, where it can be started.
    fn with_mps(&mut self) -> Result<(), Error> {
        let mps = Mps::start()?;
        self.bench.progress("MPS was started");
        let inside = mps.environment();
        let inside: Vec<_> = inside.iter().map(|(name, value)| (*name, value.as_str())).collect();
        for (name, copier) in [("both in MPS", inside.as_slice()), ("copy outside MPS", &[])] {
            let (mut copier, mut computer) =
                (self.copier(name, &[], copier)?, self.worker(COMPUTES, &inside)?);
            self.run_pair(name, &mut copier, &mut computer)?;
            copier.peer.stop()?;
            computer.stop()?;
        }
        self.faults("in MPS", &inside)?;
        mps.stop()
    }

    /// What is left after one of two engines has died, with a sidecar that owns the memory and never uses MPS.
    fn faults(&mut self, name: &str, engines: Environment<'_>) -> Result<(), Error> {
        self.bench.progress(&format!("deaths {name}"));
        let notes = faults::study(self.bench, engines)?;
        self.findings.notes.extend(notes.into_iter().map(|note| format!("{name}, {note}")));
        Ok(())
    }

    /// A process that copies, in each way that it can, and does `besides`.
    fn copier(
        &mut self,
        name: &str,
        besides: &[Load],
        environment: Environment<'_>,
    ) -> Result<Copier, Error> {
        let mut peer = ChildProcess::start_with(self.bench.setup, WORKER, environment)?;
        let prepare = |copies: &[Load]| WorkerCommand::Prepare([copies, besides].concat());
        let mut copies = COPIES;
        if let Err(error) = worker::request(&mut peer, &prepare(copies), &[]) {
            self.findings.notes.push(format!("{name}: no signalled copies: {error}"));
            copies = &[Load::Copy];
            worker::request(&mut peer, &prepare(copies), &[])?;
        }
        Ok(Copier { peer, copies })
    }

    /// What it copies beside what: under `--quick`, signalled copies beside one kind of computing alone.
    fn pairs(&self, copier: &Copier) -> Vec<(Load, Load)> {
        let pairs = self.bench.setup.pick(&LOAD_PAIRS[..3], &LOAD_PAIRS[..]);
        pairs.iter().copied().filter(|(copy, _)| copier.copies.contains(copy)).collect()
    }

    fn worker(&self, loads: &[Load], environment: Environment<'_>) -> Result<ChildProcess, Error> {
        let mut peer = ChildProcess::start_with(self.bench.setup, WORKER, environment)?;
        worker::request(&mut peer, &WorkerCommand::Prepare(loads.to_vec()), &[])?;
        Ok(peer)
    }

    /// Copies beside each kind of compute; what each side keeps.
    fn run_pair(
        &mut self,
        name: &str,
        copier: &mut Copier,
        computer: &mut ChildProcess,
    ) -> Result<Vec<(String, f64)>, Error> {
        let mut kept = Vec::new();
        for (copy, load) in self.pairs(copier) {
            self.bench.progress(&format!("{name}: {} beside {}", copy.name(), load.name()));
            let tracks = self.run(&mut [(&mut copier.peer, &[copy]), (computer, &[load])])?;
            kept.extend(self.record_pair(name, (copy, load), &tracks));
        }
        Ok(kept)
    }

    /// Lets processes work at the same time; one track for each load, in order.
    fn run(&self, peers: &mut [(&mut ChildProcess, &[Load])]) -> Result<Vec<Track>, Error> {
        let start_ns = now_ns() + LEAD.as_nanos() as u64;
        let window_ns = self.bench.setup.pick(200, 1500) * 1_000_000;
        for (peer, loads) in peers.iter() {
            peer.send(&WorkerCommand::Run { loads: loads.to_vec(), start_ns, window_ns }, &[])?;
        }
        let mut tracks = Vec::new();
        for (peer, _) in peers.iter_mut() {
            match worker::recv_reply(peer)? {
                WorkerReply::Ran(ran) => tracks.extend(ran),
                WorkerReply::Done => return Err(worker::unexpected_reply("answered another question")),
            }
        }
        Ok(tracks)
    }

    /// Figures of a copy and of what was beside it; what each keeps.
    fn record_pair(
        &mut self,
        name: &str,
        (copy, load): (Load, Load),
        tracks: &[Track],
    ) -> Vec<(String, f64)> {
        let sides = [(copy, load), (load, copy)];
        let mut kept = Vec::new();
        for ((this, other), track) in sides.into_iter().zip(tracks) {
            let who = format!("{name}: {} beside {}", this.name(), other.name());
            let alone =
                self.alone.iter().find(|(known, _)| *known == this).map_or(f64::NAN, |(_, rate)| *rate);
            let percent: Vec<f64> = track.rates.iter().map(|rate| 100.0 * rate / alone).collect();
            let figures = &mut self.findings.figures;
            figures.push(Figure::of(&who, this.unit(), &track.rates));
            figures.push(Figure::of(format!("{who}, keeps"), "%", &percent));
            figures.extend(track.times_ms.figures(&format!("{who}, {}", this.times()), "ms"));
            kept.push((who, median_of(&percent)));
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_below_kept_share_is_named() {
        let kept = |copy, read| [("copy".to_owned(), copy), ("read".to_owned(), read)];
        assert_eq!(conclude(&kept(85.0, 100.0)), Answer::Yes);
        assert_eq!(conclude(&kept(51.2, 97.0)), Answer::No { reason: "copy keeps 51 %".into() });
    }
}

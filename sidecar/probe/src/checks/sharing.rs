//! Check 5: processes that use one device at the same time, with and without MPS.

use std::time::Duration;

use super::check::Check;
use super::mps;
use super::role::Role;
use crate::Error;
use crate::bench::Bench;
use crate::child_process::{ChildProcess, Environment};
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::{Figure, median_of};

pub mod busy;
pub mod clock;
mod faults;
mod signalled;
mod spread;
pub mod work;
mod worker;

use clock::now_ns;
use work::{Load, Track};
use worker::{LEAD, WORKER, WorkerCommand, WorkerReply, run_worker};

/// Check 5.
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

/// The child process: an engine that computes, or a sidecar that copies.
pub const ROLE: (&str, Role) = (WORKER, run_worker);

/// Minimum share of its rate alone that each side must keep, in percent.
const MIN_KEPT_PERCENT: f64 = 85.0;

/// Pairs of a copy and a computation that run together; the last two need signalled copies.
const LOAD_PAIRS: [(Load, Load); 4] = [
    (Load::Copy, Load::Read),
    (Load::Copy, Load::Product),
    (Load::Signalled, Load::Read),
    (Load::Signalled, Load::Product),
];
/// Kinds of copies.
const COPIES: &[Load] = &[Load::Copy, Load::Signalled];
/// Kinds of computation.
const COMPUTES: &[Load] = &[Load::Read, Load::Product];

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let mut study = Study { bench, findings, unshared_rates: Vec::new() };
    let kept = study.without_mps()?;
    if let Err(error) = study.in_one_process() {
        study.findings.notes.push(format!("one process: {error}"));
    }
    // The effects of an engine's exit are reported in notes and do not change earlier results.
    if let Err(error) = study.faults("without MPS", &[]) {
        study.findings.notes.push(format!("without MPS, deaths: {error}"));
    }
    study.findings.notes.extend(mps::running_daemon());
    if let Err(error) = study.with_mps() {
        study.findings.notes.push(format!("MPS: {error}"));
    }
    Ok(conclude(&kept))
}

/// Yes if all loads keep enough; otherwise names those that do not.
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
    /// Rates without other work.
    unshared_rates: Vec<(Load, f64)>,
}

/// A process that copies.
struct Copier {
    peer: ChildProcess,
    /// Kinds of copies that it can make.
    copies: &'static [Load],
}

impl Study<'_, '_> {
    /// Runs two processes without MPS. Returns the percentage that each side keeps.
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
            self.unshared_rates.push((load, median_of(&track.rates)));
            self.findings.figures.push(Figure::of(&name, load.unit(), &track.rates));
            let times = track.times_ms.figures(&format!("{name}, {}", load.times()), "ms");
            self.findings.figures.extend(times);
        }
        let kept = self.run_pair("two processes", &mut copier, &mut computer)?;
        copier.peer.stop()?;
        computer.stop()?;
        Ok(kept)
    }

    /// Runs the same loads in one process on two streams.
    fn in_one_process(&mut self) -> Result<(), Error> {
        let mut both = self.copier("one process", COMPUTES, &[])?;
        for (copy, load) in self.pairs(&both) {
            let tracks = self.run(&mut [(&mut both.peer, &[copy, load])])?;
            self.record_pair("one process", (copy, load), &tracks);
        }
        both.peer.stop()
    }

    /// Runs the same loads with MPS, if it can be started.
    fn with_mps(&mut self) -> Result<(), Error> {
        mps::with_daemon(|inside| {
            self.bench.progress("MPS was started");
            for (name, copier) in [("both in MPS", inside), ("copy outside MPS", &[])] {
                let (mut copier, mut computer) =
                    (self.copier(name, &[], copier)?, self.worker(COMPUTES, inside)?);
                self.run_pair(name, &mut copier, &mut computer)?;
                copier.peer.stop()?;
                computer.stop()?;
            }
            self.faults("in MPS", inside)
        })
    }

    /// Tests which processes continue after one of two engines exits, with a sidecar that owns the memory and never
    /// uses MPS.
    fn faults(&mut self, name: &str, engines: Environment<'_>) -> Result<(), Error> {
        self.bench.progress(&format!("deaths {name}"));
        let notes = faults::study(self.bench, engines)?;
        self.findings.notes.extend(notes.into_iter().map(|note| format!("{name}, {note}")));
        Ok(())
    }

    /// Starts a process that makes each kind of copy that it can, and the loads `besides`.
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

    /// Returns the pairs for this copier. With `--quick`, signalled copies run with only one kind of computation.
    fn pairs(&self, copier: &Copier) -> Vec<(Load, Load)> {
        let pairs = self.bench.setup.pick(&LOAD_PAIRS[..3], &LOAD_PAIRS[..]);
        pairs.iter().copied().filter(|(copy, _)| copier.copies.contains(copy)).collect()
    }

    fn worker(&self, loads: &[Load], environment: Environment<'_>) -> Result<ChildProcess, Error> {
        let mut peer = ChildProcess::start_with(self.bench.setup, WORKER, environment)?;
        worker::request(&mut peer, &WorkerCommand::Prepare(loads.to_vec()), &[])?;
        Ok(peer)
    }

    /// Runs copies together with each kind of computation. Returns the percentage that each side keeps.
    fn run_pair(
        &mut self,
        name: &str,
        copier: &mut Copier,
        computer: &mut ChildProcess,
    ) -> Result<Vec<(String, f64)>, Error> {
        let mut kept = Vec::new();
        for (copy, load) in self.pairs(copier) {
            self.bench.progress(&format!("{name}: {} next to {}", copy.name(), load.name()));
            let tracks = self.run(&mut [(&mut copier.peer, &[copy]), (computer, &[load])])?;
            kept.extend(self.record_pair(name, (copy, load), &tracks));
        }
        Ok(kept)
    }

    /// Runs processes at the same time. Returns one track per load, in order.
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
                WorkerReply::Done => return Err(worker::unexpected_reply("answered another command")),
            }
        }
        Ok(tracks)
    }

    /// Records the figures of a copy and of its concurrent computation. Returns the percentage that each keeps.
    fn record_pair(
        &mut self,
        name: &str,
        (copy, load): (Load, Load),
        tracks: &[Track],
    ) -> Vec<(String, f64)> {
        let sides = [(copy, load), (load, copy)];
        let mut kept = Vec::new();
        for ((this, other), track) in sides.into_iter().zip(tracks) {
            let who = format!("{name}: {} next to {}", this.name(), other.name());
            let unshared = self
                .unshared_rates
                .iter()
                .find(|(known, _)| *known == this)
                .map_or(f64::NAN, |(_, rate)| *rate);
            let percent: Vec<f64> = track.rates.iter().map(|rate| 100.0 * rate / unshared).collect();
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

//! Measurement 1: copies between host and device, alone, both ways, and while the device reads its memory.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::checks::link as probe;
use sluice_probe::checks::sharing::clock::now_ns;
use sluice_probe::checks::sharing::work::{Load, RunningLoad, Track};
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::{Figure, median_of};

/// Measurement 1.
pub const CHECK: Check = Check {
    id: 1,
    name: "link",
    text: "Copies to the device and to the host: the peaks, by size, both ways at once, and while the device reads its \
           memory as a decode does",
    mib: probe::CHECK.mib,
    quick_mib: probe::CHECK.quick_mib,
    limit: Duration::from_secs(120),
    ask,
};

/// Loads that run at once: copies as a sidecar makes them, and reads as of a decode of one sequence.
const LOADS: [Load; 2] = [Load::Signalled, Load::Read];

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    if let Answer::No { reason } = (probe::CHECK.ask)(bench, findings)? {
        findings.notes.push(format!("registered pages are slower than the driver's memory: {reason}"));
    }
    bench.progress("copies while the device reads");
    let alone = LOADS.map(|load| run(bench, &[load]).map(|mut tracks| tracks.remove(0)));
    let together = run(bench, &LOADS)?;
    for ((load, alone), together) in LOADS.iter().zip(alone).zip(together) {
        let (unit, alone) = (load.unit(), median_of(&alone?.rates));
        let name = format!("{} of {} MiB", load.name(), load.bytes(bench.setup) >> 20);
        findings.figures.push(Figure::single(format!("{name}, alone"), unit, alone));
        findings.figures.push(Figure::of(format!("{name}, next to the other"), unit, &together.rates));
        let kept: Vec<f64> = together.rates.iter().map(|rate| rate / alone * 1000.0).collect();
        findings.figures.push(Figure::of(format!("{name} keeps"), "permille", &kept));
    }
    Ok(Answer::Yes)
}

/// Runs these loads at the same time, each on a thread and a stream of its own.
fn run(bench: &Bench, loads: &[Load]) -> Result<Vec<Track>, Error> {
    let (prepared, ends) = (Barrier::new(loads.len()), AtomicBool::new(false));
    let window_ns = bench.setup.pick(100, 1500) * 1_000_000;
    let one = |load: Load| -> Result<Track, Error> {
        let ready = bench.context.enter().map_err(Error::from);
        let ready = ready.and_then(|()| RunningLoad::new(bench.setup, &bench.context, load));
        prepared.wait();
        ready?.run((now_ns(), window_ns), &ends)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = loads.iter().map(|load| scope.spawn(|| one(*load))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|track| track.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

//! What a process costs on the device before it holds anything: its context, and cuBLASLt in it.

use serde::{Deserialize, Serialize};

use super::cublas;
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::checks::Role;
use crate::child_process::{ChildProcess, ParentPipe};
use crate::cuda::{Buffer, Kernels, Stream};
use crate::results::Findings;
use crate::statistics::Figure;

/// The role of the process whose context is weighed.
pub const ROLE: (&str, Role) = ("context", run);

/// What it has done; it goes on when it is told to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Stage {
    /// Made a context.
    Context,
    /// Loaded the probe's kernels and used some.
    Kernels,
    /// Multiplied two matrices by cuBLASLt.
    Cublas,
    /// Could not, for this reason.
    NoCublas(String),
}

/// What the driver is told about loading code, and how figures say so. Code that is loaded when it is first used is the
/// driver's default; the probe's other processes load all of theirs at once, so that no first launch stands still.
const LOADING: [(&str, &str); 2] = [("LAZY", ""), ("EAGER", ", all code loaded at once")];
/// What is weighed, in order.
const STAGE_NAMES: [&str; 3] = [
    "device memory of a process with a context",
    "the same, with the probe's kernels",
    "the same, with cuBLASLt after one product",
];

/// Weighs, from this process, what another one takes.
pub fn cost(bench: &Bench, findings: &mut Findings<'_>) -> Result<(), Error> {
    for (loading, suffix) in bench.setup.pick(&LOADING[..1], &LOADING) {
        let (mut mib, mut lacks) = ([const { Vec::new() }; 3], None);
        for _ in 0..bench.setup.pick(1, 3) {
            lacks = measure_memory(bench, loading, &mut mib)?;
        }
        let weighed = STAGE_NAMES.iter().zip(&mib).filter(|(_, mib)| !mib.is_empty());
        findings.figures.extend(weighed.map(|(name, mib)| Figure::of(format!("{name}{suffix}"), "MiB", mib)));
        findings.notes.extend(lacks.map(|reason| format!("cuBLASLt was not weighed{suffix}: {reason}")));
    }
    Ok(())
}

/// One process, stage by stage; why it could not use cuBLASLt, if so.
fn measure_memory(bench: &Bench, loading: &str, mib: &mut [Vec<f64>; 3]) -> Result<Option<String>, Error> {
    let before = bench.context.memory()?.free;
    let mut peer = ChildProcess::start_with(bench.setup, ROLE.0, &[("CUDA_MODULE_LOADING", loading)])?;
    for samples in mib {
        let (stage, _) = peer.recv()?;
        let taken = before.saturating_sub(bench.context.memory()?.free);
        peer.send(&(), &[])?;
        if let Stage::NoCublas(reason) = stage {
            return peer.stop().map(|()| Some(reason));
        }
        samples.push(taken as f64 / f64::from(1 << 20));
    }
    peer.stop().map(|()| None)
}

fn run(setup: Setup, parent: &ParentPipe) -> Result<(), Error> {
    let say = |stage: Stage| -> Result<(), Error> {
        parent.send(&stage, &[])?;
        parent.recv::<()>().map(|_| ())
    };
    let bench = Bench::open(setup)?;
    say(Stage::Context)?;
    let (kernels, stream) = (Kernels::load(&bench.context)?, Stream::new(&bench.context)?);
    let words = Buffer::new(&bench.context, 4096)?;
    // Code may be loaded only when it is used.
    kernels.write(&stream, words.at(0), 512, 1)?;
    kernels.read(&stream, words.at(0), 4096)?;
    stream.finish()?;
    say(Stage::Kernels)?;
    match cublas::Cublas::multiply(&bench.context) {
        Ok(_alive) => say(Stage::Cublas),
        Err(reason) => say(Stage::NoCublas(reason)),
    }
}

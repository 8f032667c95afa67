//! The device memory of a process before it allocates any: its context, and cuBLASLt in it.

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{Buffer, Stream};

use super::cublas;
use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::checks::role::Role;
use crate::child_process::{ChildProcess, ParentPipe};
use crate::kernels::Kernels;
use crate::results::Findings;
use crate::statistics::Figure;

/// The role of the measured process.
pub const ROLE: (&str, Role) = ("context", run);

/// The stage that the process has reached. It continues after the parent's reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Stage {
    /// It created a context.
    Context,
    /// It loaded the probe's kernels and ran some of them.
    Kernels,
    /// It multiplied two matrices with cuBLASLt.
    Cublas,
    /// It could not use cuBLASLt, for this reason.
    NoCublas(String),
}

/// Values of `CUDA_MODULE_LOADING`, and their suffix in figures. The driver's default loads code at first use; the
/// probe's other processes load all code at the start, so that no first launch stalls.
const LOADING: [(&str, &str); 2] = [("LAZY", ""), ("EAGER", ", all code loaded at once")];
/// The measured stages, in order.
const STAGE_NAMES: [&str; 3] = [
    "device memory of a process with a context",
    "the same, with the probe's kernels",
    "the same, with cuBLASLt after one product",
];

/// Measures from this process how much memory another one takes.
pub fn cost(bench: &Bench, findings: &mut Findings<'_>) -> Result<(), Error> {
    for (loading, suffix) in bench.setup.pick(&LOADING[..1], &LOADING) {
        let (mut mib, mut lacks) = ([const { Vec::new() }; 3], None);
        for _ in 0..bench.setup.pick(1, 3) {
            lacks = measure_memory(bench, loading, &mut mib)?;
        }
        let weighed = STAGE_NAMES.iter().zip(&mib).filter(|(_, mib)| !mib.is_empty());
        findings.figures.extend(weighed.map(|(name, mib)| Figure::of(format!("{name}{suffix}"), "MiB", mib)));
        findings
            .notes
            .extend(lacks.map(|reason| format!("the memory of cuBLASLt was not measured{suffix}: {reason}")));
    }
    Ok(())
}

/// Runs one process through its stages. Returns the reason if it could not use cuBLASLt.
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

fn run(setup: ProbeOptions, parent: &ParentPipe) -> Result<(), Error> {
    let say = |stage: Stage| -> Result<(), Error> {
        parent.send(&stage, &[])?;
        parent.recv::<()>().map(|_| ())
    };
    let bench = Bench::open(setup)?;
    say(Stage::Context)?;
    let (kernels, stream) = (Kernels::load(&bench.context)?, Stream::new(&bench.context)?);
    let words = Buffer::new(&bench.context, 4096)?;
    // The driver may load code only when it is used.
    kernels.write(&stream, words.at(0), 512, 1)?;
    kernels.read(&stream, words.at(0), 4096)?;
    stream.finish()?;
    say(Stage::Kernels)?;
    match cublas::multiply(&bench.context) {
        Ok(_alive) => say(Stage::Cublas),
        Err(error) => say(Stage::NoCublas(error.to_string())),
    }
}

//! What a process costs on the device before it holds anything: its context, and cuBLASLt in it.

use serde::{Deserialize, Serialize};

use super::cublas;
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::cuda::Kernels;
use crate::peer::{Parent, Peer};
use crate::report::Findings;
use crate::rows::Role;
use crate::statistics::Figure;

/// The role of the process whose context is weighed.
pub const ROLE: (&str, Role) = ("context", run);

/// What it has done; it goes on when it is told to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Stage {
    /// Made a context.
    Context,
    /// Loaded the probe's kernels.
    Kernels,
    /// Multiplied two matrices by cuBLASLt.
    Cublas,
    /// Could not, for this reason.
    NoCublas(String),
}

/// Weighs, from this process, what another one takes.
pub fn cost(bench: &Bench, findings: &mut Findings) -> Result<(), Error> {
    let before = bench.context.memory()?.free;
    let mut peer = Peer::start(bench.setup, ROLE.0)?;
    let mut weigh = |name: &str, peer: &mut Peer| -> Result<Stage, Error> {
        let (stage, _) = peer.hear()?;
        let taken = before.saturating_sub(bench.context.memory()?.free);
        if !matches!(stage, Stage::NoCublas(_)) {
            findings.figures.push(Figure::one(name, "MiB", taken as f64 / f64::from(1 << 20)));
        }
        peer.tell(&(), &[])?;
        Ok(stage)
    };
    weigh("device memory of a process with a context", &mut peer)?;
    weigh("the same, with the probe's kernels", &mut peer)?;
    if let Stage::NoCublas(reason) = weigh("the same, with cuBLASLt after one product", &mut peer)? {
        findings.notes.push(format!("cuBLASLt was not weighed: {reason}"));
    }
    peer.dismiss()
}

fn run(setup: Setup, parent: &Parent) -> Result<(), Error> {
    let say = |stage: Stage| -> Result<(), Error> {
        parent.tell(&stage, &[])?;
        parent.hear::<()>().map(|_| ())
    };
    let bench = Bench::open(setup)?;
    say(Stage::Context)?;
    let _kernels = Kernels::load(&bench.context)?;
    say(Stage::Kernels)?;
    match cublas::Cublas::multiply(&bench.context) {
        Ok(_alive) => say(Stage::Cublas),
        Err(reason) => say(Stage::NoCublas(reason)),
    }
}

//! Wire form of the reply to a step.

use serde::{Deserialize, Serialize};
use sluice_policy::ids::{RowId, StepId};
use sluice_ports::compute::{FailedSequence, Sampled, SequenceFailure, StepDone};
use sluice_ports::sampling::TokenLogprobs;

#[derive(Serialize, Deserialize)]
struct WireLogprobs {
    chosen: f32,
    top: Vec<(u32, f32)>,
}

#[derive(Serialize, Deserialize)]
struct WireSampled {
    row: u32,
    token: u32,
    logprobs: Option<WireLogprobs>,
}

#[derive(Serialize, Deserialize)]
enum WireFailure {
    NoCandidate,
    Refused(String),
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireDone {
    id: u64,
    attempt: u32,
    sampled: Vec<WireSampled>,
    failed: Vec<(u32, WireFailure)>,
    layer_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    kv_stall_ns: Vec<u64>,
    total_ns: u64,
}

impl From<SequenceFailure> for WireFailure {
    fn from(failure: SequenceFailure) -> Self {
        match failure {
            SequenceFailure::NoCandidate => WireFailure::NoCandidate,
            SequenceFailure::Refused(reason) => WireFailure::Refused(reason),
        }
    }
}

impl From<WireFailure> for SequenceFailure {
    fn from(wire: WireFailure) -> Self {
        match wire {
            WireFailure::NoCandidate => SequenceFailure::NoCandidate,
            WireFailure::Refused(reason) => SequenceFailure::Refused(reason),
        }
    }
}

impl From<&StepDone> for WireDone {
    fn from(done: &StepDone) -> Self {
        let logprobs = |of: &TokenLogprobs| WireLogprobs { chosen: of.chosen, top: of.top.clone() };
        let sampled = |one: &Sampled| WireSampled {
            row: one.row.0,
            token: one.token,
            logprobs: one.logprobs.as_ref().map(logprobs),
        };
        WireDone {
            id: done.id.0,
            attempt: done.attempt,
            sampled: done.sampled.iter().map(sampled).collect(),
            failed: done.failed.iter().map(|one| (one.row.0, one.failure.clone().into())).collect(),
            layer_ns: done.layer_ns.clone(),
            stall_ns: done.stall_ns.clone(),
            kv_stall_ns: done.kv_stall_ns.clone(),
            total_ns: done.total_ns,
        }
    }
}

impl From<WireDone> for StepDone {
    fn from(wire: WireDone) -> Self {
        let logprobs = |of: WireLogprobs| TokenLogprobs { chosen: of.chosen, top: of.top };
        let sampled = |one: WireSampled| Sampled {
            row: RowId(one.row),
            token: one.token,
            logprobs: one.logprobs.map(logprobs),
        };
        let failed =
            |(row, failure): (u32, WireFailure)| FailedSequence { row: RowId(row), failure: failure.into() };
        StepDone {
            id: StepId(wire.id),
            attempt: wire.attempt,
            sampled: wire.sampled.into_iter().map(sampled).collect(),
            failed: wire.failed.into_iter().map(failed).collect(),
            layer_ns: wire.layer_ns,
            stall_ns: wire.stall_ns,
            kv_stall_ns: wire.kv_stall_ns,
            total_ns: wire.total_ns,
        }
    }
}

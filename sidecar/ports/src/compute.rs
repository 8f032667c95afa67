//! Compute: runs steps and keeps no state between them.

use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos, RowId, StepId};

use crate::sampling::{SharedSampling, TokenLogprobs};

/// One sequence's part of a step.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct SequenceStep {
    /// Row of the block table and token history.
    pub row: RowId,
    /// Position of the first token: the computed tokens of the sequence. The step writes KV only from here
    /// on.
    pub start: u32,
    /// Input tokens, at positions `start..start + tokens.len()`.
    pub tokens: Vec<u32>,
    /// `Some` if the step samples the next token after the last of `tokens`.
    pub sample: Option<SampleRequest>,
}

/// How to sample the next token of a sequence.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct SampleRequest {
    /// Sampling parameters.
    pub sampling: SharedSampling,
    /// Number of prompt tokens in the history; the rest was generated.
    pub prompt_tokens: u32,
}

/// A change of one row of the shared block table, applied before the step runs.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum TableUpdate {
    /// The row starts a new sequence whose first tokens are already in the cache (prefix hit or replay).
    Reset {
        /// Row.
        row: RowId,
        /// History at positions `0..tokens.len()`.
        tokens: Vec<u32>,
    },
    /// The layer blocks of KV block `kv_block` (tokens `16 * kv_block ..`) of the row, one for each layer.
    KvBlock {
        /// Row.
        row: RowId,
        /// Index of the KV block within the sequence.
        kv_block: u32,
        /// Block of each layer, front first.
        layer_blocks: Vec<LayerBlockId>,
    },
}

/// A step: one forward pass over a batch.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Step {
    /// Id; strictly increasing.
    pub id: StepId,
    /// Number of the attempt, incremented at every replay after an engine was lost; answers of older attempts
    /// are ignored.
    pub attempt: u32,
    /// Epoch of the time slice (always 0 where the GPU is not shared in time).
    pub epoch: u64,
    /// Sequences, in row order.
    pub sequences: Vec<SequenceStep>,
    /// Table changes since the last step.
    pub updates: Vec<TableUpdate>,
    /// Generation that each moving layer must show before it is read; layers not named are resident.
    pub generations: Vec<(LayerId, Generation)>,
    /// Generation that the KV of a layer must show before it is read, for layers of which a part is fetched
    /// into a buffer for this step ([`sluice_policy::action::Work::Fetch`]). All KV of layers not named is on
    /// the device.
    pub kv_generations: Vec<(LayerId, Generation)>,
    /// Backed bytes of the activation range.
    pub activation_limit_bytes: u64,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Row.
    pub row: RowId,
    /// The token.
    pub token: u32,
    /// Log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why one sequence of a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceFailure {
    /// Every token is banned, or the logits are not numbers. The sequence requested a token.
    NoCandidate,
    /// The engine did not run the sequence, whether or not it requested a token. The text is the engine's
    /// reason: a token beyond the vocabulary, a position beyond the model's, a missing block.
    Refused(String),
}

impl core::fmt::Display for SequenceFailure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SequenceFailure::NoCandidate => {
                f.write_str("no token can be chosen: all are banned or their logits are not numbers")
            }
            SequenceFailure::Refused(reason) => write!(f, "the engine refused the sequence: {reason}"),
        }
    }
}

/// A sequence that failed in a step that succeeded for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSequence {
    /// Row. Its KV at the step's own positions may have been written and must not be read.
    pub row: RowId,
    /// Reason.
    pub failure: SequenceFailure,
}

/// A finished step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDone {
    /// Id of the step.
    pub id: StepId,
    /// Its attempt.
    pub attempt: u32,
    /// Sampled tokens, in the order of the sequences that requested one.
    pub sampled: Vec<Sampled>,
    /// The sequences that failed. Together with `sampled` it names each sequence that requested a token once.
    pub failed: Vec<FailedSequence>,
    /// Compute time of each layer, waits excluded.
    pub layer_ns: Vec<u64>,
    /// Time each layer waited for its slot.
    pub stall_ns: Vec<u64>,
    /// Time each layer waited for its KV.
    pub kv_stall_ns: Vec<u64>,
    /// Time from the first byte of the command to the last token.
    pub total_ns: u64,
}

impl StepDone {
    /// Whether this answers a step of `rows`, each with whether it requests a token: every row that requests
    /// one is named once, a row that does not is named at most once and only as refused, and no other row is
    /// named.
    pub fn matches_rows(&self, rows: &[(RowId, bool)]) -> bool {
        let asks = |row: RowId| rows.iter().find(|(one, _)| *one == row).map(|(_, asks)| *asks);
        let refused = |one: &FailedSequence| matches!(one.failure, SequenceFailure::Refused(_));
        let known = self.sampled.iter().all(|one| asks(one.row) == Some(true))
            && self.failed.iter().all(|one| asks(one.row).is_some_and(|asks| asks || refused(one)));
        let failed = self.failed.iter().map(|one| one.row);
        let mut named: Vec<_> = self.sampled.iter().map(|one| one.row).chain(failed).collect();
        named.sort_unstable();
        let once = named.windows(2).all(|pair| pair[0] != pair[1]);
        known && once && rows.iter().all(|(row, asks)| !asks || named.binary_search(row).is_ok())
    }
}

/// What the engine reports when it attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineHello {
    /// Activation bytes by step shape.
    pub activation: ActivationCost,
    /// Process id, for messages; exit is detected only through the pidfd.
    pub pid: u32,
}

/// Event of a compute backend.
#[derive(Clone, Debug, PartialEq)]
pub enum ComputeEvent {
    /// An engine has attached and mapped everything; steps may be submitted.
    Attached(EngineHello),
    /// The engine has exited (confirmed), and every copy that it gated has been dropped or has finished.
    Lost,
    /// A step has finished.
    Done(StepDone),
    /// The engine refused a step as a whole; a failure of one sequence is a [`FailedSequence`]. For an index
    /// out of bounds or memory below the step's need it refused before the first layer and wrote nothing. If
    /// a layer's slot or KV buffer was overwritten while the engine waited for it, KV of the earlier layers
    /// is written at the step's own positions. In both cases it sampled no token.
    Refused {
        /// Id of the step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
        /// The engine's message.
        message: String,
    },
    /// The engine left a step unfinished, because the current time-slice epoch of the GPU differs from the
    /// step's. It sampled no token; it wrote KV at most at the step's own positions.
    StaleEpoch {
        /// Id of the step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
    },
}

/// An engine that runs steps.
pub trait Compute {
    /// Starts `step`. At most one step is in flight.
    fn submit(&mut self, now: Nanos, step: Step);

    /// Returns the next event by `now`.
    fn poll(&mut self, now: Nanos) -> Option<ComputeEvent>;

    /// Returns when the next event is due, for backends that know it (simulation).
    fn next_due(&self) -> Option<Nanos> {
        None
    }
}

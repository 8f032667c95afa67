//! Compute: runs steps, keeps no state between them.

use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{BlockId, Generation, LayerId, Nanos, RowId, StepId};

use crate::sampling::{SharedSampling, TokenLogprobs};

/// One sequence's part of a step.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct SequenceStep {
    /// Row of the block table and token history.
    pub row: RowId,
    /// Position of the first token: the committed length of the sequence. KV is written only from here on.
    pub start: u32,
    /// Tokens fed, at positions `start..start + tokens.len()`.
    pub tokens: Vec<u32>,
    /// `Some` when the next token is sampled after the last of `tokens`.
    pub sample: Option<SampleRequest>,
}

/// What to sample.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct SampleRequest {
    /// How.
    pub sampling: SharedSampling,
    /// Tokens of the history that are prompt; the rest was generated.
    pub prompt_tokens: u32,
}

/// A change of one row of the shared block table, applied before the step runs.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum TableUpdate {
    /// The row begins a new sequence whose first tokens are already in the cache (prefix hit, or a replay).
    Reset {
        /// Row.
        row: RowId,
        /// History at positions `0..tokens.len()`.
        tokens: Vec<u32>,
    },
    /// The layer-blocks behind column `column` (tokens `16 * column ..`) of the row, one for each layer.
    Column {
        /// Row.
        row: RowId,
        /// Index of the column within the sequence.
        column: u32,
        /// Block of each layer, front first.
        blocks: Vec<BlockId>,
    },
}

/// A step: one forward pass over a batch.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Step {
    /// Which. Strictly increasing.
    pub id: StepId,
    /// Raised at every replay after an engine was lost; answers of older attempts are ignored.
    pub attempt: u32,
    /// Epoch of the turn (always 0 where the GPU is not shared in time).
    pub epoch: u64,
    /// Sequences, in row order.
    pub sequences: Vec<SequenceStep>,
    /// Table changes since the last step.
    pub updates: Vec<TableUpdate>,
    /// Generation that each moving layer must show before it is read; layers not named are resident.
    pub generations: Vec<(LayerId, Generation)>,
    /// Generation that the KV of a layer must show before it is read, for layers of which a part comes into a buffer for
    /// this step ([`sluice_policy::action::Work::Fetch`]); all KV of layers not named is on the device.
    pub kv_generations: Vec<(LayerId, Generation)>,
    /// Bytes of the activation range that are backed.
    pub activation_limit_bytes: u64,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Row.
    pub row: RowId,
    /// The token.
    pub token: u32,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why one sequence of a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceFailure {
    /// Every token is banned, or the logits are no numbers. The sequence asked for a token.
    NoCandidate,
    /// The engine did not run the sequence, whether it asked for a token or not. The text is the engine's reason: a token
    /// beyond the vocabulary, a position beyond the model's, a block that is not there.
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

/// A sequence that failed, in a step that went well for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSequence {
    /// Row. Its KV at the step's own positions may be written, and nothing may read it.
    pub row: RowId,
    /// Why.
    pub failure: SequenceFailure,
}

/// A finished step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDone {
    /// Which.
    pub id: StepId,
    /// Of this attempt.
    pub attempt: u32,
    /// In the order of the sequences that asked for one.
    pub sampled: Vec<Sampled>,
    /// The sequences that failed. With `sampled` it names each sequence that asked for a token once.
    pub failed: Vec<FailedSequence>,
    /// Compute time of each layer, waiting not counted.
    pub layer_ns: Vec<u64>,
    /// Time each layer waited for its slot.
    pub stall_ns: Vec<u64>,
    /// Time each layer waited for its KV.
    pub kv_stall_ns: Vec<u64>,
    /// From the first byte of the command to the last token.
    pub total_ns: u64,
}

impl StepDone {
    /// Whether this answers a step of `rows`, each with whether it asks for a token: every row that asks is named once, a
    /// row that does not ask is named at most once and only as refused, and no other row is named.
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

/// What the engine says of itself when it attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineHello {
    /// Activation bytes by step shape.
    pub activation: ActivationCost,
    /// Process id, for people; death is known by pidfd only.
    pub pid: u32,
}

/// What compute reports.
#[derive(Clone, Debug, PartialEq)]
pub enum ComputeEvent {
    /// An engine has attached and mapped everything; steps may be submitted.
    Attached(EngineHello),
    /// The engine is dead (confirmed) and every copy that it gated has been dropped or has finished.
    Lost,
    /// A step has finished.
    Done(StepDone),
    /// The engine refused a step as a whole; what is wrong with one sequence alone is a [`FailedSequence`]. For an index out
    /// of bounds or memory below the step's need it did so before the first layer, and nothing was written. When a layer's slot or buffer of KV was overwritten while the engine waited for it,
    /// KV of the layers before is written, at the step's own positions. No token was sampled either way.
    Refused {
        /// Which.
        id: StepId,
        /// Of this attempt.
        attempt: u32,
        /// The engine's words.
        message: String,
    },
    /// The engine left a step unfinished, because another turn than the step's is in force on the GPU. It sampled no token;
    /// KV is written at the step's own positions at most.
    StaleEpoch {
        /// Which.
        id: StepId,
        /// Of this attempt.
        attempt: u32,
    },
}

/// An engine.
pub trait Compute {
    /// Starts `step`. At most one step is in flight.
    fn submit(&mut self, now: Nanos, step: Step);

    /// The next event by `now`.
    fn poll(&mut self, now: Nanos) -> Option<ComputeEvent>;

    /// When the next event is due, for bodies that know it (simulation).
    fn next_due(&self) -> Option<Nanos> {
        None
    }
}

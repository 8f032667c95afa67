//! Controls how many layers may be offloaded: as many as hide behind compute and still help.
//!
//! The queue of offloaded layers starts empty. It grows by a layer when more than a set share of the swaps was already
//! for the next token, because the running token needed none. It shrinks by a layer when compute had to wait. Tokens
//! per second are recorded for each length: where a longer queue does not help, it shrinks as long as that costs
//! nothing. After a number of trials one more layer is tried again, in case the load has changed.
//!
//! Source: Pie 3.4.2. The paper gives no numbers for its ratio, its periods or the gain that counts; our values are
//! named below.

use alloc::vec::Vec;

/// Slots on each side of the link that send and receive swaps (Pie 3.3).
pub const BUFFERS: u16 = 2;

/// Tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionTunables {
    /// Share of swaps for the next token from which the queue grows, permille. 500: below it the running token uses
    /// most of the link.
    pub early_permille: u16,
    /// Tokens of a trial of one length. 16: a batch's lengths hardly change within them.
    pub trial_tokens: u16,
    /// Gain in tokens per second from which a longer queue helps, permille. 10: a smaller gain is within the noise of a
    /// trial.
    pub gain_permille: u16,
    /// Trials at one length before one more layer is tried again.
    pub probe_after_trials: u16,
    /// Tolerated stalls of a trial, permille of its time: short interference is no reason to change.
    pub stall_permille: u16,
}

impl Default for ExpansionTunables {
    fn default() -> ExpansionTunables {
        ExpansionTunables {
            early_permille: 500,
            trial_tokens: 16,
            gain_permille: 10,
            probe_after_trials: 32,
            stall_permille: 10,
        }
    }
}

/// Measurements of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// Duration, nanoseconds.
    pub total_ns: u64,
    /// Part of the duration that compute waited for a swap, nanoseconds.
    pub stall_ns: u64,
    /// Swaps begun during the token.
    pub swaps: u32,
    /// Swaps into the device that this token no longer needed; part of `swaps`.
    pub early_swaps: u32,
    /// Sequences in the batch.
    pub sequences: u32,
}

/// A change of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One more layer may be offloaded.
    Grow,
    /// One layer less may be offloaded.
    Shrink,
}

/// Phase of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The queue grows while swaps have time to spare.
    Growing,
    /// A longer queue did not help: it shrinks while the rate does not fall below the peak, tokens per second in
    /// thousandths.
    Receding { peak_milli: u64 },
    /// The queue has kept its length for this number of trials.
    Settled { trials: u16 },
}

/// A length is compared with one shorter by this fraction of the layers: a single layer frees too little memory for a
/// sequence.
pub const COMPARED_PART: u16 = 8;

/// The controller.
#[derive(Clone, Debug)]
pub struct Expansion {
    tunables: ExpansionTunables,
    queue: u16,
    longest: u16,
    /// Difference between compared lengths, layers.
    stride: u16,
    phase: Phase,
    trial: Trial,
    /// Tokens per second of the last trial of each length, thousandths; 0 means no trial.
    records: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    tokens: u16,
    made: u64,
    total_ns: u64,
    stall_ns: u64,
    swaps: u64,
    early_swaps: u64,
}

impl Expansion {
    /// Returns a controller with no layer offloaded, for a model of `layers` layers, of which at most `longest` may be
    /// offloaded.
    pub fn new(tunables: ExpansionTunables, layers: u16, longest: u16) -> Expansion {
        Expansion {
            tunables,
            queue: 0,
            longest,
            stride: (layers / COMPARED_PART).max(1),
            phase: Phase::Growing,
            trial: Trial::default(),
            records: alloc::vec![0; usize::from(longest) + 1],
        }
    }

    /// Returns the number of layers that may be offloaded.
    pub const fn queue(&self) -> u16 {
        self.queue
    }

    /// Records a token. At the end of a trial, returns the change of the queue, if any.
    pub fn token(&mut self, token: &Token) -> Option<Change> {
        self.trial.add(token);
        if self.trial.tokens < self.tunables.trial_tokens {
            return None;
        }
        let trial = core::mem::take(&mut self.trial);
        self.records[usize::from(self.queue)] = trial.per_s_milli().max(1);
        let change = self.judge(&trial)?;
        match change {
            Change::Grow => self.queue += 1,
            Change::Shrink => self.queue -= 1,
        }
        Some(change)
    }

    fn judge(&mut self, trial: &Trial) -> Option<Change> {
        let record = self.records[usize::from(self.queue)];
        if trial.stalled(self.tunables.stall_permille) && self.queue > 0 {
            self.phase = Phase::Settled { trials: 0 };
            return Some(Change::Shrink);
        }
        match self.phase {
            Phase::Growing if self.helps() => self.grow(trial),
            Phase::Growing => {
                self.phase = Phase::Receding { peak_milli: record };
                Some(Change::Shrink)
            }
            Phase::Receding { peak_milli } => self.recede(record, peak_milli),
            Phase::Settled { trials } if trials >= self.tunables.probe_after_trials => {
                self.phase = Phase::Growing;
                self.grow(trial)
            }
            Phase::Settled { trials } => {
                self.phase = Phase::Settled { trials: trials + 1 };
                None
            }
        }
    }

    fn grow(&self, trial: &Trial) -> Option<Change> {
        // Without swaps the link is idle, so there is time to spare.
        let early = trial.early_swaps * 1000 >= trial.swaps * u64::from(self.tunables.early_permille);
        (early && self.queue < self.longest).then_some(Change::Grow)
    }

    /// Shrinks further while that costs nothing; after a loss, grows by one layer and settles.
    fn recede(&mut self, record: u64, peak_milli: u64) -> Option<Change> {
        if self.gains(record, peak_milli) {
            self.phase = Phase::Settled { trials: 0 };
            return Some(Change::Grow);
        }
        if self.queue == 0 {
            self.phase = Phase::Settled { trials: 0 };
            return None;
        }
        Some(Change::Shrink)
    }

    /// Whether this length is better than a shorter one. The first lengths free no memory yet, so they need no gain.
    fn helps(&self) -> bool {
        let Some(shorter) = self.queue.checked_sub(self.stride) else { return true };
        let (less, now) = (self.records[usize::from(shorter)], self.records[usize::from(self.queue)]);
        shorter < BUFFERS || less == 0 || self.gains(less, now)
    }

    /// Whether `more` exceeds `less` by at least the required gain.
    fn gains(&self, less: u64, more: u64) -> bool {
        u128::from(more) * 1000 >= u128::from(less) * (1000 + u128::from(self.tunables.gain_permille))
    }
}

impl Trial {
    fn add(&mut self, token: &Token) {
        self.tokens += 1;
        self.made += u64::from(token.sequences);
        self.total_ns = self.total_ns.saturating_add(token.total_ns);
        self.stall_ns = self.stall_ns.saturating_add(token.stall_ns);
        self.swaps += u64::from(token.swaps);
        self.early_swaps += u64::from(token.early_swaps);
    }

    fn stalled(&self, permille: u16) -> bool {
        u128::from(self.stall_ns) * 1000 > u128::from(self.total_ns) * u128::from(permille)
    }

    fn per_s_milli(&self) -> u64 {
        let per_s_milli = u128::from(self.made) * 1_000_000_000_000 / u128::from(self.total_ns.max(1));
        u64::try_from(per_s_milli).unwrap_or(u64::MAX)
    }
}

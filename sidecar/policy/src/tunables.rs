//! Defines the tunables by the names that configurations and commands use. Feature switches of a mechanism and all
//! other settings of a tenant have their own configuration fields.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use crate::params::Params;

/// One numeric field of [`Params`], which documents it.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// The minimum and maximum value.
    pub range: (u64, u64),
    /// The description.
    pub meaning: &'static str,
    get: fn(&Params) -> u64,
    set: fn(&mut Params, u64),
}

impl Tunable {
    /// Returns its value.
    pub fn of(&self, params: &Params) -> u64 {
        (self.get)(params)
    }
}

const PERMILLE: (u64, u64) = (0, 1000);
const SOME: (u64, u64) = (1, 10_000);
const STEPS: (u64, u64) = (1, 1_000_000);
const BYTES: (u64, u64) = (0, 1 << 40);
const SWITCH: (u64, u64) = (0, 1);

/// Defines the tunable of one field. Values within its range fit the field's type.
macro_rules! tunable {
    ($name:literal, $($field:ident).+, $unit:literal, $range:expr, $meaning:literal) => {
        Tunable {
            name: $name,
            unit: $unit,
            range: $range,
            meaning: $meaning,
            get: |params| u64::from(params.$($field).+),
            set: |params, value| params.$($field).+ = value as _,
        }
    };
}

/// Defines the tunable of a boolean field: 1 is true.
macro_rules! switch {
    ($name:literal, $($field:ident).+, $meaning:literal) => {
        Tunable {
            name: $name,
            unit: "0 or 1",
            range: SWITCH,
            meaning: $meaning,
            get: |params| u64::from(params.$($field).+),
            set: |params, value| params.$($field).+ = value > 0,
        }
    };
}

/// All tunables.
pub static TUNABLES: [Tunable; 23] = [
    tunable!(
        "stall_allowance_permille",
        stall_allowance_permille,
        "permille of a token's compute",
        PERMILLE,
        "stall of a token that counts as hidden, of its compute"
    ),
    tunable!(
        "revert_patience_steps",
        revert_patience_steps,
        "steps",
        STEPS,
        "steps with room before a layer is restored"
    ),
    tunable!(
        "revert_reserve_permille",
        revert_reserve_permille,
        "permille of KV in use",
        PERMILLE,
        "what must stay free after a layer is restored"
    ),
    tunable!(
        "fixed_away_permille",
        fixed_away_permille,
        "permille of the layers",
        PERMILLE,
        "`FlexGen`: share of layers whose KV is offloaded"
    ),
    tunable!(
        "offload_reserve_permille",
        offload_reserve_permille,
        "permille of the blocks",
        PERMILLE,
        "share of layer blocks to keep free; below it, KV is offloaded"
    ),
    tunable!(
        "expansion_early_permille",
        expansion.early_permille,
        "permille of a step",
        PERMILLE,
        "`Pie`: idle time of the link from which one more layer is offloaded"
    ),
    tunable!(
        "expansion_trial_tokens",
        expansion.trial_tokens,
        "tokens",
        SOME,
        "`Pie`: tokens of a trial of one queue length"
    ),
    tunable!(
        "expansion_gain_permille",
        expansion.gain_permille,
        "permille of tokens per second",
        PERMILLE,
        "`Pie`: gain for which a longer queue counts as better"
    ),
    tunable!(
        "expansion_probe_after_trials",
        expansion.probe_after_trials,
        "trials",
        SOME,
        "`Pie`: trials before one more layer is tried again"
    ),
    tunable!(
        "expansion_stall_permille",
        expansion.stall_permille,
        "permille of a trial",
        PERMILLE,
        "`Pie`: stall within a trial that is tolerated"
    ),
    tunable!("replan_window_steps", replan.window, "steps", SOME, "steps that a plan holds for"),
    tunable!(
        "replan_mismatch_permille",
        replan.mismatch_permille,
        "permille of the predicted time",
        SOME,
        "difference between a step and its plan that counts as a mismatch"
    ),
    tunable!(
        "replan_mismatches",
        replan.mismatches,
        "steps",
        SOME,
        "mismatches in a row after which a new plan is made"
    ),
    tunable!(
        "plan_expansions",
        plan_expansions,
        "expansions",
        STEPS,
        "trades and node expansions of one plan"
    ),
    switch!("plan_alike", plan_alike, "`OrbitFlow`: plans place the same layers of all requests"),
    switch!(
        "plan_first_come",
        plan_first_come,
        "`OrbitFlow`: admit new requests first-come-first-served whenever KV fits, ignoring deadlines"
    ),
    tunable!("cost_window_steps", cost_window_steps, "steps", STEPS, "steps over which costs are compared"),
    switch!(
        "reclaim_by_cost",
        ablations.reclaim_by_cost,
        "`Unified`: take the option with the lowest cost per byte; 0: a fixed order"
    ),
    switch!(
        "next_use_by_arrivals",
        ablations.next_use_by_arrivals,
        "`Unified`: ask the peer whose next request is expected last; 0: the most recently used one"
    ),
    tunable!(
        "compact_budget_bytes",
        compact_budget_bytes,
        "bytes",
        BYTES,
        "live KV that compaction moves between two steps"
    ),
    tunable!(
        "premap_bytes",
        premap_bytes,
        "bytes",
        BYTES,
        "eLLM: limit of the memory for the next tokens that an inflation takes too"
    ),
    switch!(
        "unmap_later",
        defers_unmap,
        "eLLM: unmap the old addresses of an inflation when no request waits; 0: within the inflation"
    ),
    switch!(
        "link_by_deadline",
        link_by_deadline,
        "copies use the link by deadline; 0: in the order in which they reach it"
    ),
];

/// Former names of tunables, which configurations may still use, with the names that replace them.
const FORMER_NAMES: [(&str, &str); 2] =
    [("loss_window_steps", "cost_window_steps"), ("remedies_by_loss", "reclaim_by_cost")];

/// Values of some tunables; the last value of each applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned(Vec<(usize, u64)>);

impl Tuned {
    /// Sets the tunable `name` to `value`. A former name sets the tunable that replaces it.
    ///
    /// # Errors
    /// If there is no such tunable, or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), TunableError> {
        let former = FORMER_NAMES.iter().find(|(former, _)| *former == name);
        let current = former.map_or(name, |(_, current)| current);
        let found = TUNABLES.iter().position(|tunable| tunable.name == current);
        let index = found.ok_or_else(|| TunableError::Unknown { name: name.to_string() })?;
        let Tunable { name, range: (min, max), .. } = TUNABLES[index];
        if !(min..=max).contains(&value) {
            return Err(TunableError::OutOfRange { name, value, min, max });
        }
        self.0.push((index, value));
        Ok(())
    }

    /// Returns the parameters with these values applied.
    pub fn of(&self, mut params: Params) -> Params {
        self.0.iter().for_each(|&(index, value)| (TUNABLES[index].set)(&mut params, value));
        params
    }
}

/// Why a tunable cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunableError {
    /// No tunable has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The value is out of range.
    OutOfRange {
        /// The tunable.
        name: &'static str,
        /// The value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunableError::Unknown { name } => {
                write!(f, "`{name}` is not a tunable (")?;
                let mut names = TUNABLES.iter().map(|tunable| tunable.name).enumerate();
                names.try_for_each(|(at, name)| write!(f, "{}{name}", if at > 0 { ", " } else { "" }))?;
                f.write_str(")")
            }
            TunableError::OutOfRange { name, value, min, max } => {
                write!(f, "{name} is {value}, and must be {min} to {max}")
            }
        }
    }
}

impl core::error::Error for TunableError {}

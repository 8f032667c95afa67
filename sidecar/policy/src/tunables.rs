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
    ($name:literal, $field:ident, $meaning:literal) => {
        Tunable {
            name: $name,
            unit: "0 or 1",
            range: SWITCH,
            meaning: $meaning,
            get: |params| u64::from(params.$field),
            set: |params, value| params.$field = value > 0,
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
        "stall of a token that counts as hidden"
    ),
    tunable!(
        "revert_patience_steps",
        revert_patience_steps,
        "steps",
        STEPS,
        "calm before a layer comes back"
    ),
    tunable!(
        "revert_reserve_permille",
        revert_reserve_permille,
        "permille of KV in use",
        PERMILLE,
        "what stays free after a layer came back"
    ),
    tunable!(
        "fixed_away_permille",
        fixed_away_permille,
        "permille of the layers",
        PERMILLE,
        "`FlexGen`: layers whose KV is away"
    ),
    tunable!(
        "offload_reserve_permille",
        offload_reserve_permille,
        "permille of the blocks",
        PERMILLE,
        "what is to stay free; below it KV begins to leave"
    ),
    tunable!(
        "expansion_early_permille",
        expansion.early_permille,
        "permille of a step",
        PERMILLE,
        "`Pie`: how long the link is idle when one more layer may be away"
    ),
    tunable!("expansion_trial_tokens", expansion.trial_tokens, "tokens", SOME, "`Pie`: trial of a length"),
    tunable!(
        "expansion_gain_permille",
        expansion.gain_permille,
        "permille of tokens per second",
        PERMILLE,
        "`Pie`: by which a longer queue helps"
    ),
    tunable!(
        "expansion_probe_after_trials",
        expansion.probe_after_trials,
        "trials",
        SOME,
        "`Pie`: until one more layer is tried again"
    ),
    tunable!(
        "expansion_stall_permille",
        expansion.stall_permille,
        "permille of a trial",
        PERMILLE,
        "`Pie`: stalls that change nothing"
    ),
    tunable!("replan_window_steps", replan.window, "steps", SOME, "how long a plan holds"),
    tunable!(
        "replan_mismatch_permille",
        replan.mismatch_permille,
        "permille of the predicted time",
        SOME,
        "by how much a step differs from its plan"
    ),
    tunable!("replan_mismatches", replan.mismatches, "steps", SOME, "such steps in a row make a plan anew"),
    tunable!("plan_expansions", plan_expansions, "expansions", STEPS, "trades and nodes of one plan"),
    switch!("plan_alike", plan_alike, "`OrbitFlow`: plans place the same layers of all requests"),
    switch!(
        "plan_first_come",
        plan_first_come,
        "`OrbitFlow`: who comes first is let in wherever all fit, late or not"
    ),
    tunable!("loss_window_steps", cost_window_steps, "steps", STEPS, "over which losses are compared"),
    switch!(
        "remedies_by_loss",
        reclaim_by_cost,
        "`Unified`: of remedies that cost something the one that loses least for each byte"
    ),
    switch!(
        "next_use_by_arrivals",
        next_use_by_arrivals,
        "`Unified`: the neighbour asked first is the one expected to be needed last, or who was used last"
    ),
    tunable!(
        "compact_budget_bytes",
        compact_budget_bytes,
        "bytes",
        BYTES,
        "live KV that one boundary moves to empty chunks"
    ),
    tunable!(
        "premap_bytes",
        premap_bytes,
        "bytes",
        BYTES,
        "eLLM: below which an inflation takes memory for the next tokens too"
    ),
    switch!(
        "unmap_later",
        defers_unmap,
        "eLLM: whether old mappings of an inflation go when nobody waits for it"
    ),
    switch!("link_by_deadline", link_by_deadline, "copies go by when they are needed, or as they come"),
];

/// Values of some tunables; the last value of each applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned(Vec<(usize, u64)>);

impl Tuned {
    /// Sets the tunable `name` to `value`.
    ///
    /// # Errors
    /// If there is no such tunable, or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), TunableError> {
        let found = TUNABLES.iter().position(|tunable| tunable.name == name);
        let index = found.ok_or_else(|| TunableError::Unknown { name: name.to_string() })?;
        let Tunable { name, range: (least, most), .. } = TUNABLES[index];
        if !(least..=most).contains(&value) {
            return Err(TunableError::OutOfRange { name, value, least, most });
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
        least: u64,
        /// The maximum.
        most: u64,
    },
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunableError::Unknown { name } => {
                write!(f, "`{name}` is no tunable (")?;
                let mut names = TUNABLES.iter().map(|tunable| tunable.name).enumerate();
                names.try_for_each(|(at, name)| write!(f, "{}{name}", if at > 0 { ", " } else { "" }))?;
                f.write_str(")")
            }
            TunableError::OutOfRange { name, value, least, most } => {
                write!(f, "{name} is {value}, and must be {least} to {most}")
            }
        }
    }
}

impl core::error::Error for TunableError {}

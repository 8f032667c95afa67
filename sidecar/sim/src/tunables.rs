//! A fingerprint of everything that decides and that could be tuned to a load: the defaults of scheduler, policy and
//! loans, and the fixed constants.
//!
//! The last third of every trace is held back. Only runs with tunables committed earlier read it: [`COMMITTED`].

use sluice_policy::digest::Digest;
use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::params::Params;
use sluice_policy::peers::Peer;
use sluice_policy::reclaim::PolicyName;
use sluice_policy::{ellm, ewma, loan_negotiator, memory_manager, pie};
use sluice_scheduler::{Config, Membership, journal};

/// Digest of the tunables, committed before any held-back trace was read. A change of a tunable changes it, and earlier
/// measurements on held-back traces are then void.
pub const COMMITTED: u64 = 0xf83f_658c_03bc_673b;

/// Returns all tunables as text: one line per policy and one per group of constants.
pub fn lines() -> Vec<String> {
    let terms = Membership { own_peer: Peer::default(), terms: NegotiationPolicy::default() };
    let config = Config { membership: Some(terms), ..Config::default() };
    let of = |policy: PolicyName| {
        let params = Params { policy, ..Params::default() };
        format!("{} {}", policy.name(), journal::settings(&config, &params))
    };
    let constants = [
        &memory_manager::CONSTANTS[..],
        &loan_negotiator::CONSTANTS,
        &sluice_scheduler::CONSTANTS,
        &PAPER_VALUES,
    ];
    let entry = |(name, value): &(&str, u64)| format!("{name} {value}");
    let group = |constants: &[(&str, u64)]| constants.iter().map(entry).collect::<Vec<_>>().join(" ");
    PolicyName::ALL.into_iter().map(of).chain(constants.into_iter().map(group)).collect()
}

/// Constants of the papers' mechanisms.
const PAPER_VALUES: [(&str, u64); 5] = [
    ("ewma_weight_permille", ewma::DEFAULT_WEIGHT_PERMILLE as u64),
    ("ellm_window", ellm::buffer::WINDOW as u64),
    ("ellm_violations", ellm::buffer::VIOLATIONS as u64),
    ("ellm_factor", ellm::buffer::FACTOR),
    ("pie_compared_part", pie::expansion::COMPARED_PART as u64),
];

/// Returns the digest of all tunables.
pub fn digest() -> u64 {
    of(&lines())
}

fn of(lines: &[String]) -> u64 {
    let mut digest = Digest::new(0);
    lines.iter().flat_map(|line| line.bytes().chain([b'\n'])).for_each(|byte| digest.word(byte.into()));
    digest.value()
}

/// Returns the digest as text, and whether it is the committed one.
pub fn summary() -> String {
    let committed = if digest() == COMMITTED { "as committed" } else { "NOT the committed ones" };
    format!("{:016x}, {committed}", digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunables_match_committed_digest() {
        assert_eq!(
            format!("{:016x}", digest()),
            format!("{COMMITTED:016x}"),
            "a tunable has changed: COMMITTED is of others, and so is every figure of held-back loads\n{}",
            lines().join("\n")
        );
    }

    #[test]
    fn every_policy_and_constant_changes_digest() {
        let lines = lines();
        assert_eq!(lines.len(), PolicyName::ALL.len() + 4);
        for at in 0..lines.len() {
            let mut other = lines.clone();
            // Change the last character.
            let last = other[at].pop().expect("every line has words");
            other[at].push(if last == '9' { '8' } else { '9' });
            assert_ne!(of(&other), digest(), "{}", lines[at]);
        }
        assert!(
            lines[0].starts_with("Recompute ") && lines[7].contains("most_wait_ns 200000000"),
            "{lines:?}"
        );
    }
}

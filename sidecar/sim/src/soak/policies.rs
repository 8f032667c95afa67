//! The policies that a seed draws from.

use sluice_common::random::Rng;
use sluice_policy::reclaim::PolicyName;

/// In a fixed order: with `PolicyName::ALL`, a new policy would change the policy of most seeds. A new policy is drawn
/// from a separate random stream, as changes of shares are.
const DRAWN: [PolicyName; 7] = [
    PolicyName::Recompute,
    PolicyName::Oneiros,
    PolicyName::Ellm,
    PolicyName::FlexGen,
    PolicyName::Pie,
    PolicyName::OrbitFlow,
    PolicyName::Unified,
];

/// Draws a policy.
pub(super) fn draw(rng: &mut Rng) -> PolicyName {
    DRAWN[rng.below(DRAWN.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    #[test]
    fn each_policy_runs_in_some_seed() {
        for policy in PolicyName::ALL {
            let runs = |seed| Options::of_seed(seed, &mut Rng::new(seed)).policy == policy;
            assert!((0..100).any(runs), "{policy:?} runs in none of 100 seeds");
        }
    }
}

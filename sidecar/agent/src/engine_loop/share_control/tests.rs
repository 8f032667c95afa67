//! Tests with several tenants on one GPU that follow their directives. Memory managers and the ledger are small models:
//! a memory manager refuses bounds below its floor and releases excess chunks bit by bit, and the ledger grants free
//! chunks.

use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_policy::params::Bounds;
use sluice_policy::reclaim::PolicyName;
use sluice_wire::config::SidecarConfig;

use super::plan::{ShareState, ShareStep, next_step, target_chunks};
use super::share_source::{ShareSource, ShareTarget};
use crate::directive::{AcceptedDirective, DirectiveStore};

const CAPACITY: u32 = 120;
const LAYERS: u32 = 10;
const MIN_LAYERS: u32 = 4;
const REMAPS: PolicyName = PolicyName::Oneiros;
const FIXED: PolicyName = PolicyName::Recompute;
/// Policy whose floor is the same under every cap.
const SMALL_FLOOR: PolicyName = PolicyName::Ellm;

/// Returns the floor: `MIN_LAYERS` chunks and one for each layer that the policy cannot remap under the cap. For an
/// eighth of the caps no GPU is large enough.
fn floor(policy: PolicyName, cap: u32) -> Option<u32> {
    let moving = match policy {
        REMAPS => LAYERS * cap / 1000,
        SMALL_FLOOR => MIN_LAYERS - 1,
        _ => 0,
    };
    (cap % 8 != 1).then_some(MIN_LAYERS + LAYERS - moving)
}

#[derive(Debug)]
struct Tenant {
    target: ShareTarget,
    state: ShareState,
    target_chunks: u32,
    refusals: u32,
}

impl Tenant {
    /// Loads a tenant with its grant. `None` if the grant is below the floor.
    fn load(terms: ShareTarget, left: u32) -> Option<Tenant> {
        let least = floor(terms.policy, terms.remap_cap_permille)?;
        let granted = terms.share_chunks.max(least).min(left);
        let bounds = Bounds { share_chunks: granted, remap_cap_permille: terms.remap_cap_permille };
        let has = ShareState { policy: terms.policy, bounds, share: granted, granted };
        (granted >= least).then_some(Tenant {
            target: terms,
            state: has,
            target_chunks: granted,
            refusals: 0,
        })
    }

    fn round(&mut self, left: u32) -> ShareStep {
        self.target_chunks = target_chunks(self.target, self.state, floor, CAPACITY);
        if self.target_chunks > self.state.granted {
            self.state.granted = self.target_chunks.min(self.state.granted + left);
        }
        let step = next_step(self.target, self.state, self.target_chunks, floor);
        self.state.granted = self.state.granted.min(step.keep_chunks);
        if let Some(policy) = step.policy {
            self.apply(policy, self.state.bounds);
        }
        if let Some(bounds) = step.bounds {
            self.apply(self.state.policy, bounds);
        }
        step
    }

    /// Applies policy and bounds as a memory manager does. Counts a refusal if they do not fit.
    fn apply(&mut self, policy: PolicyName, bounds: Bounds) {
        match floor(policy, bounds.remap_cap_permille) {
            Some(floor) if floor <= bounds.share_chunks => {
                (self.state.policy, self.state.bounds) = (policy, bounds);
                self.state.share = self.state.share.max(bounds.share_chunks);
            }
            _ => self.refusals += 1,
        }
    }

    /// Releases up to `chunks` chunks above the bounds.
    fn release(&mut self, chunks: u32) {
        let over = self.state.share - self.state.bounds.share_chunks;
        self.state.share -= over.min(chunks);
    }

    fn check(&self) {
        let ShareState { policy, bounds, share, granted } = self.state;
        assert!(share <= granted, "it counts more than is granted: {self:?}");
        assert!(floor(policy, bounds.remap_cap_permille).unwrap() <= bounds.share_chunks, "{self:?}");
        assert_eq!(self.refusals, 0, "it gets only orders that it can carry out: {self:?}");
    }

    /// Whether the tenant has reached its target.
    fn is_settled(&self) -> bool {
        let ShareState { policy, bounds, share, granted } = self.state;
        let terms =
            ShareTarget { policy, share_chunks: share, remap_cap_permille: bounds.remap_cap_permille };
        terms == self.target && granted == share && bounds.share_chunks == share
    }
}

fn free_chunks(tenants: &[Tenant]) -> u32 {
    let granted: u32 = tenants.iter().map(|tenant| tenant.state.granted).sum();
    CAPACITY.checked_sub(granted).expect("grants sum to at most the GPU")
}

fn run_rounds(tenants: &mut [Tenant], count: usize, cede: u32) {
    for at in 0..count * tenants.len() {
        let (left, at) = (free_chunks(tenants), at % tenants.len());
        tenants[at].round(left);
        tenants[at].check();
        tenants[at].release(cede);
    }
}

fn target_strategy() -> impl Strategy<Value = (PolicyName, u32, u32)> {
    (prop_oneof![Just(REMAPS), Just(FIXED), Just(SMALL_FLOOR)], 0..=1000_u32, 0..60_u32)
}

/// Returns targets that fit the GPU: no target is below its floor, and the largest excess over a floor shrinks until
/// the sum fits.
fn targets_of(drawn: &[(PolicyName, u32, u32)]) -> Vec<ShareTarget> {
    let one = |&(policy, cap, more): &(PolicyName, u32, u32)| {
        let remap_cap_permille = if cap % 8 == 1 { cap - 1 } else { cap };
        let least = floor(policy, remap_cap_permille).unwrap();
        (least, ShareTarget { policy, remap_cap_permille, share_chunks: least + more })
    };
    let mut all: Vec<(u32, ShareTarget)> = drawn.iter().map(one).collect();
    while all.iter().map(|(_, terms)| terms.share_chunks).sum::<u32>() > CAPACITY {
        let largest = all.iter_mut().max_by_key(|(least, terms)| terms.share_chunks - least).unwrap();
        largest.1.share_chunks -= 1;
    }
    all.into_iter().map(|(_, terms)| terms).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tenants that receive targets one after another, in any state of earlier changes, all reach the last targets.
    #[test]
    fn shares_converge_and_never_exceed_gpu(
        deals in prop::collection::vec(prop::collection::vec(target_strategy(), 4), 1..8),
        deliveries in prop::collection::vec((0..4_usize, 0..3_usize, 0..9_u32), 8),
    ) {
        let first = targets_of(&deals[0]);
        let mut tenants = Vec::new();
        for terms in first {
            let free = free_chunks(&tenants);
            tenants.push(Tenant::load(terms, free).expect("its part was dealt"));
        }
        for (drawn, (from, count, cede)) in deals.iter().zip(&deliveries) {
            for (at, terms) in targets_of(drawn).into_iter().enumerate() {
                tenants[(from + at) % 4].target = terms;
                run_rounds(&mut tenants, *count, *cede);
            }
        }
        // All tenants receive the last targets.
        for (at, terms) in targets_of(&deals[deals.len() - 1]).into_iter().enumerate() {
            tenants[at].target = terms;
        }
        run_rounds(&mut tenants, 400, 1);
        prop_assert!(tenants.iter().all(Tenant::is_settled), "{tenants:#?}");
    }

    /// Targets that no GPU can meet, and shares that exceed the GPU, break no invariant.
    #[test]
    fn unsatisfiable_targets_are_never_sent(
        drawn in prop::collection::vec((0..3_usize, target_strategy(), 0..9_u32), 1..60),
    ) {
        let whole = |share| ShareTarget { policy: FIXED, share_chunks: share, remap_cap_permille: 0 };
        let mut tenants: Vec<Tenant> = Vec::new();
        for share in [50, 40, 30] {
            let free = free_chunks(&tenants);
            tenants.push(Tenant::load(whole(share), free).expect("it fits"));
        }
        for (at, (policy, remap_cap_permille, more), cede) in drawn {
            tenants[at].target = ShareTarget { policy, remap_cap_permille, share_chunks: 4 * more };
            run_rounds(&mut tenants, 2, cede);
        }
    }
}

fn share_state(share: u32, granted: u32) -> ShareState {
    let bounds = Bounds { share_chunks: share, remap_cap_permille: 600 };
    ShareState { policy: REMAPS, bounds, share, granted }
}

fn target(share_chunks: u32, remap_cap_permille: u32) -> ShareTarget {
    ShareTarget { policy: REMAPS, share_chunks, remap_cap_permille }
}

#[test]
fn ledger_share_shrinks_only_after_memory_is_released() {
    let (terms, mut now) = (target(20, 600), share_state(50, 50));
    let first = next_step(terms, now, 20, floor);
    assert_eq!(first.bounds, Some(Bounds { share_chunks: 20, remap_cap_permille: 600 }));
    assert_eq!(first.keep_chunks, 50, "nothing has gone yet");
    now.bounds.share_chunks = 20;
    now.share = 33;
    assert_eq!(next_step(terms, now, 20, floor), ShareStep { policy: None, bounds: None, keep_chunks: 33 });
}

#[test]
fn share_grows_as_granted() {
    assert_eq!(target_chunks(target(50, 600), share_state(20, 20), floor, CAPACITY), 50);
    let part = next_step(target(50, 600), share_state(20, 35), 50, floor);
    assert_eq!(part.bounds, Some(Bounds { share_chunks: 35, remap_cap_permille: 600 }));
    assert_eq!(next_step(target(50, 600), share_state(20, 20), 50, floor).bounds, None, "nothing is granted");
}

#[test]
fn lower_cap_waits_for_floor_but_share_does_not() {
    // Under a cap of 0 the floor is 14 chunks, under 60 % it is 8.
    assert_eq!(
        target_chunks(target(9, 0), share_state(8, 8), floor, CAPACITY),
        14,
        "its floor, though less was dealt"
    );
    let early = next_step(target(9, 0), share_state(8, 12), 14, floor);
    assert_eq!(early.bounds, Some(Bounds { share_chunks: 12, remap_cap_permille: 600 }));
    let then = next_step(target(9, 0), share_state(12, 14), 14, floor);
    assert_eq!(then.bounds, Some(Bounds { share_chunks: 14, remap_cap_permille: 0 }));
}

#[test]
fn larger_floor_policy_waits_and_smaller_one_applies_before_shrink() {
    let fixed = ShareTarget { policy: FIXED, ..target(9, 600) };
    assert_eq!(target_chunks(fixed, share_state(9, 9), floor, CAPACITY), 14);
    assert_eq!(
        next_step(fixed, share_state(9, 9), 14, floor),
        ShareStep { policy: None, bounds: None, keep_chunks: 9 }
    );
    let grown = next_step(fixed, share_state(14, 14), 14, floor);
    assert_eq!((grown.policy, grown.bounds), (Some(FIXED), None));
    let back = ShareState { policy: FIXED, ..share_state(14, 14) };
    let fallen = next_step(target(9, 600), back, 9, floor);
    assert_eq!(fallen.policy, Some(REMAPS));
    assert_eq!(fallen.bounds, Some(Bounds { share_chunks: 9, remap_cap_permille: 600 }));
}

#[test]
fn policy_and_cap_changes_do_not_deadlock() {
    // The floor is 11 chunks under `SMALL_FLOOR`, and 14, then 8, under `REMAPS`.
    let bounds = Bounds { share_chunks: 12, remap_cap_permille: 0 };
    let has = ShareState { policy: SMALL_FLOOR, bounds, share: 12, granted: 12 };
    assert_eq!(target_chunks(target(9, 600), has, floor, CAPACITY), 9);
    let cap = next_step(target(9, 600), has, 9, floor);
    let bounds = Bounds { share_chunks: 11, remap_cap_permille: 600 };
    assert_eq!((cap.policy, cap.bounds), (None, Some(bounds)));
    let then = next_step(target(9, 600), ShareState { bounds, share: 11, granted: 11, ..has }, 9, floor);
    assert_eq!(then.policy, Some(REMAPS));
    assert_eq!(then.bounds, Some(Bounds { share_chunks: 9, remap_cap_permille: 600 }));
}

/// Returns a directive with this sequence number.
fn directive(sequence: u64, share_bytes: Option<u64>, percent: u32, policy: &str) -> Vec<u8> {
    let golden = include_str!("../../../../../crds/wire/tests/golden/directive-v2.json");
    let mut directive: Value = serde_json::from_str(golden).unwrap();
    (directive["sequence"], directive["policy"]) = (json!(sequence), json!(policy));
    let rule = &mut directive["tenant"];
    (rule["share_bytes"], rule["max_remapped_percent"]) = (json!(share_bytes), json!(percent));
    directive.to_string().into_bytes()
}

#[test]
fn directive_overrides_config_across_restart_and_keeps_unnamed_share() {
    let golden = include_str!("../../../../../crds/wire/tests/golden/sidecar-config-native.json");
    let mut config: SidecarConfig = serde_json::from_str(golden).unwrap();
    config.gpu.chunk_bytes = 1 << 16;
    let place = json!({"folder": "/n", "claim": "c", "share_bytes": 40 << 16, "sharing": "Spatial"});
    config.gpu_ledger = Some(serde_json::from_value(place).unwrap());
    (config.policy, config.memory.max_remapped_percent) = ("Oneiros".into(), 60);
    let folder = tempfile::tempdir().unwrap();
    let open = || DirectiveStore::open(folder.path().join("directive.json"), Box::new(|_| Ok(())));
    let directives = open();
    let mut rule = ShareSource::new(&config, Some(&directives)).unwrap();
    let terms =
        |policy, share_chunks, remap_cap_permille| ShareTarget { policy, share_chunks, remap_cap_permille };
    assert_eq!(rule.target(), terms(PolicyName::Oneiros, 40, 600));
    assert!(!rule.refresh(), "there is no directive");
    directives.put(&directive(1, Some((30 << 16) + 1), 5, "Unified")).unwrap();
    assert!(rule.refresh() && !rule.refresh(), "once");
    assert_eq!(rule.target(), terms(PolicyName::Unified, 30, 50));
    directives.put(&directive(2, None, 5, "Unified")).unwrap();
    assert!(!rule.refresh(), "it says nothing else");
    assert_eq!(rule.target(), terms(PolicyName::Unified, 30, 50));
    let again = ShareSource::new(&config, Some(&open())).unwrap();
    assert_eq!(again.target(), terms(PolicyName::Unified, 30, 50), "which share it kept is stored, too");
    assert!(matches!(directives.put(&directive(2, None, 5, "Unified")), Ok(AcceptedDirective::Unchanged(_))));
    directives.put(&directive(3, Some(20 << 16), 100, "Recompute")).unwrap();
    assert_eq!(rule.configured(), terms(PolicyName::Oneiros, 40, 600));
    let again = ShareSource::new(&config, Some(&open())).unwrap();
    assert_eq!(again.target(), terms(PolicyName::Recompute, 20, 1000), "as it is stored");
}

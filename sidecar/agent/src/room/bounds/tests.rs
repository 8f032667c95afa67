//! Several tenants on one GPU follow what they are dealt. Their memory managers and their ledger are small models here: a
//! memory manager refuses what does not fit its floor and gives up what is too much bit by bit, a ledger grants what is left.

use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_policy::params::{Bounds, PolicyName};
use sluice_wire::config::SidecarConfig;

use super::plan::{Has, Step, step, want};
use super::rule::{Rule, Terms};
use crate::directive::{Directives, Taken};

const CAPACITY: u32 = 120;
const LAYERS: u32 = 10;
const KEPT: u32 = 4;
const REMAPS: PolicyName = PolicyName::Oneiros;
const FIXED: PolicyName = PolicyName::Recompute;
/// Whose small activations cost less than the layers that it keeps.
const SMALL: PolicyName = PolicyName::Ellm;

/// Ten layers of a chunk, of which the cap keeps some at home under one policy and all under the others. No GPU is large
/// enough for an eighth of the caps.
fn floor(policy: PolicyName, cap: u32) -> Option<u32> {
    let moving = match policy {
        REMAPS => LAYERS * cap / 1000,
        SMALL => KEPT - 1,
        _ => 0,
    };
    (cap % 8 != 1).then_some(KEPT + LAYERS - moving)
}

#[derive(Debug)]
struct Tenant {
    terms: Terms,
    has: Has,
    want: u32,
    refusals: u32,
}

impl Tenant {
    /// As it loads: with what is granted, if its floor is.
    fn load(terms: Terms, left: u32) -> Option<Tenant> {
        let least = floor(terms.policy, terms.remap_cap_permille)?;
        let granted = terms.share_chunks.max(least).min(left);
        let bounds = Bounds { share_chunks: granted, remap_cap_permille: terms.remap_cap_permille };
        let has = Has { policy: terms.policy, bounds, share: granted, granted };
        (granted >= least).then_some(Tenant { terms, has, want: granted, refusals: 0 })
    }

    fn round(&mut self, left: u32) -> Step {
        self.want = want(self.terms, self.has, floor, CAPACITY);
        if self.want > self.has.granted {
            self.has.granted = self.want.min(self.has.granted + left);
        }
        let step = step(self.terms, self.has, self.want, floor);
        self.has.granted = self.has.granted.min(step.keep);
        if let Some(policy) = step.policy {
            self.take(policy, self.has.bounds);
        }
        if let Some(bounds) = step.bounds {
            self.take(self.has.policy, bounds);
        }
        step
    }

    /// As a memory manager does.
    fn take(&mut self, policy: PolicyName, bounds: Bounds) {
        match floor(policy, bounds.remap_cap_permille) {
            Some(floor) if floor <= bounds.share_chunks => {
                (self.has.policy, self.has.bounds) = (policy, bounds);
                self.has.share = self.has.share.max(bounds.share_chunks);
            }
            _ => self.refusals += 1,
        }
    }

    /// Memory goes.
    fn cede(&mut self, chunks: u32) {
        let over = self.has.share - self.has.bounds.share_chunks;
        self.has.share -= over.min(chunks);
    }

    fn check(&self) {
        let Has { policy, bounds, share, granted } = self.has;
        assert!(share <= granted, "it counts more than is granted: {self:?}");
        assert!(floor(policy, bounds.remap_cap_permille).unwrap() <= bounds.share_chunks, "{self:?}");
        assert_eq!(self.refusals, 0, "it is told what it can take: {self:?}");
    }

    /// What it is to come to.
    fn is_settled(&self) -> bool {
        let Has { policy, bounds, share, granted } = self.has;
        let terms = Terms { policy, share_chunks: share, remap_cap_permille: bounds.remap_cap_permille };
        terms == self.terms && granted == share && bounds.share_chunks == share
    }
}

fn left(tenants: &[Tenant]) -> u32 {
    let granted: u32 = tenants.iter().map(|tenant| tenant.has.granted).sum();
    CAPACITY.checked_sub(granted).expect("grants sum to at most the GPU")
}

fn rounds(tenants: &mut [Tenant], count: usize, cede: u32) {
    for at in 0..count * tenants.len() {
        let (left, at) = (left(tenants), at % tenants.len());
        tenants[at].round(left);
        tenants[at].check();
        tenants[at].cede(cede);
    }
}

fn terms() -> impl Strategy<Value = (PolicyName, u32, u32)> {
    (prop_oneof![Just(REMAPS), Just(FIXED), Just(SMALL)], 0..=1000_u32, 0..60_u32)
}

/// Deals of a GPU: whoever has less than its floor has its floor, and what then is too much goes off the largest.
fn deal(drawn: &[(PolicyName, u32, u32)]) -> Vec<Terms> {
    let one = |&(policy, cap, more): &(PolicyName, u32, u32)| {
        let remap_cap_permille = if cap % 8 == 1 { cap - 1 } else { cap };
        let least = floor(policy, remap_cap_permille).unwrap();
        (least, Terms { policy, remap_cap_permille, share_chunks: least + more })
    };
    let mut all: Vec<(u32, Terms)> = drawn.iter().map(one).collect();
    while all.iter().map(|(_, terms)| terms.share_chunks).sum::<u32>() > CAPACITY {
        let largest = all.iter_mut().max_by_key(|(least, terms)| terms.share_chunks - least).unwrap();
        largest.1.share_chunks -= 1;
    }
    all.into_iter().map(|(_, terms)| terms).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Told one after another, in any state of what they were told before, all come to what the last deal says.
    #[test]
    fn whatever_is_dealt_all_come_to_it_and_never_hold_more_than_the_gpu(
        deals in prop::collection::vec(prop::collection::vec(terms(), 4), 1..8),
        told in prop::collection::vec((0..4_usize, 0..3_usize, 0..9_u32), 8),
    ) {
        let first = deal(&deals[0]);
        let mut tenants = Vec::new();
        for terms in first {
            let room = left(&tenants);
            tenants.push(Tenant::load(terms, room).expect("its part was dealt"));
        }
        for (drawn, (from, count, cede)) in deals.iter().zip(&told) {
            for (at, terms) in deal(drawn).into_iter().enumerate() {
                tenants[(from + at) % 4].terms = terms;
                rounds(&mut tenants, *count, *cede);
            }
        }
        // The last directives have come to everybody.
        for (at, terms) in deal(&deals[deals.len() - 1]).into_iter().enumerate() {
            tenants[at].terms = terms;
        }
        rounds(&mut tenants, 400, 1);
        prop_assert!(tenants.iter().all(Tenant::is_settled), "{tenants:#?}");
    }

    /// Terms that no GPU can meet, and shares that sum to more than there is, break nothing.
    #[test]
    fn nobody_is_told_what_it_cannot_take_whatever_is_asked_for(
        drawn in prop::collection::vec((0..3_usize, terms(), 0..9_u32), 1..60),
    ) {
        let whole = |share| Terms { policy: FIXED, share_chunks: share, remap_cap_permille: 0 };
        let mut tenants: Vec<Tenant> = Vec::new();
        for share in [50, 40, 30] {
            let room = left(&tenants);
            tenants.push(Tenant::load(whole(share), room).expect("it fits"));
        }
        for (at, (policy, remap_cap_permille, more), cede) in drawn {
            tenants[at].terms = Terms { policy, remap_cap_permille, share_chunks: 4 * more };
            rounds(&mut tenants, 2, cede);
        }
    }
}

fn has(share: u32, granted: u32) -> Has {
    let bounds = Bounds { share_chunks: share, remap_cap_permille: 600 };
    Has { policy: REMAPS, bounds, share, granted }
}

fn on(share_chunks: u32, remap_cap_permille: u32) -> Terms {
    Terms { policy: REMAPS, share_chunks, remap_cap_permille }
}

#[test]
fn a_share_falls_in_the_ledger_no_sooner_than_memory_has_gone() {
    let (terms, mut now) = (on(20, 600), has(50, 50));
    let first = step(terms, now, 20, floor);
    assert_eq!(first.bounds, Some(Bounds { share_chunks: 20, remap_cap_permille: 600 }));
    assert_eq!(first.keep, 50, "nothing has gone yet");
    now.bounds.share_chunks = 20;
    now.share = 33;
    assert_eq!(step(terms, now, 20, floor), Step { policy: None, bounds: None, keep: 33 });
}

#[test]
fn a_share_rises_as_it_is_granted() {
    assert_eq!(want(on(50, 600), has(20, 20), floor, CAPACITY), 50);
    let part = step(on(50, 600), has(20, 35), 50, floor);
    assert_eq!(part.bounds, Some(Bounds { share_chunks: 35, remap_cap_permille: 600 }));
    assert_eq!(step(on(50, 600), has(20, 20), 50, floor).bounds, None, "nothing is granted");
}

#[test]
fn a_lower_cap_waits_for_its_floor_and_the_share_does_not() {
    // Under a cap of 0 ten layers stay: 14 chunks; under 60 % four do: 8.
    assert_eq!(want(on(9, 0), has(8, 8), floor, CAPACITY), 14, "its floor, though less was dealt");
    let early = step(on(9, 0), has(8, 12), 14, floor);
    assert_eq!(early.bounds, Some(Bounds { share_chunks: 12, remap_cap_permille: 600 }));
    let then = step(on(9, 0), has(12, 14), 14, floor);
    assert_eq!(then.bounds, Some(Bounds { share_chunks: 14, remap_cap_permille: 0 }));
}

#[test]
fn a_policy_that_needs_more_waits_for_it_and_one_that_needs_less_comes_before_the_share_falls() {
    let fixed = Terms { policy: FIXED, ..on(9, 600) };
    assert_eq!(want(fixed, has(9, 9), floor, CAPACITY), 14);
    assert_eq!(step(fixed, has(9, 9), 14, floor), Step { policy: None, bounds: None, keep: 9 });
    let grown = step(fixed, has(14, 14), 14, floor);
    assert_eq!((grown.policy, grown.bounds), (Some(FIXED), None));
    let back = Has { policy: FIXED, ..has(14, 14) };
    let fallen = step(on(9, 600), back, 9, floor);
    assert_eq!(fallen.policy, Some(REMAPS));
    assert_eq!(fallen.bounds, Some(Bounds { share_chunks: 9, remap_cap_permille: 600 }));
}

#[test]
fn a_policy_that_waits_for_a_cap_and_a_cap_for_a_share_do_not_wait_for_each_other() {
    // 11 chunks under the one, 14 and then 8 under the other.
    let bounds = Bounds { share_chunks: 12, remap_cap_permille: 0 };
    let has = Has { policy: SMALL, bounds, share: 12, granted: 12 };
    assert_eq!(want(on(9, 600), has, floor, CAPACITY), 9);
    let cap = step(on(9, 600), has, 9, floor);
    let bounds = Bounds { share_chunks: 11, remap_cap_permille: 600 };
    assert_eq!((cap.policy, cap.bounds), (None, Some(bounds)));
    let then = step(on(9, 600), Has { bounds, share: 11, granted: 11, ..has }, 9, floor);
    assert_eq!(then.policy, Some(REMAPS));
    assert_eq!(then.bounds, Some(Bounds { share_chunks: 9, remap_cap_permille: 600 }));
}

/// A directive of this sequence.
fn directive(sequence: u64, share_bytes: Option<u64>, percent: u32, policy: &str) -> Vec<u8> {
    let golden = include_str!("../../../../../crds/wire/tests/golden/directive-v1.json");
    let mut directive: Value = serde_json::from_str(golden).unwrap();
    (directive["sequence"], directive["policy"]) = (json!(sequence), json!(policy));
    let rule = &mut directive["tenant"];
    (rule["share_bytes"], rule["max_remapped_percent"]) = (json!(share_bytes), json!(percent));
    directive.to_string().into_bytes()
}

#[test]
fn a_directive_counts_before_the_configuration_also_after_a_restart_and_keeps_a_share_that_it_does_not_name()
{
    let golden = include_str!("../../../../../crds/wire/tests/golden/sidecar-config-native.json");
    let mut config: SidecarConfig = serde_json::from_str(golden).unwrap();
    config.gpu.chunk_bytes = 1 << 16;
    let place = json!({"folder": "/n", "claim": "c", "share_bytes": 40 << 16, "sharing": "Spatial"});
    config.neighbourhood = Some(serde_json::from_value(place).unwrap());
    (config.policy, config.memory.max_remapped_percent) = ("Oneiros".into(), 60);
    let folder = tempfile::tempdir().unwrap();
    let open = || Directives::open(folder.path().join("directive.json"), Box::new(|_| Ok(())));
    let directives = open();
    let mut rule = Rule::new(&config, Some(&directives)).unwrap();
    let terms = |policy, share_chunks, remap_cap_permille| Terms { policy, share_chunks, remap_cap_permille };
    assert_eq!(rule.terms(), terms(PolicyName::Oneiros, 40, 600));
    assert!(!rule.look(), "there is no directive");
    directives.put(&directive(1, Some((30 << 16) + 1), 5, "Unified")).unwrap();
    assert!(rule.look() && !rule.look(), "once");
    assert_eq!(rule.terms(), terms(PolicyName::Unified, 30, 50));
    directives.put(&directive(2, None, 5, "Unified")).unwrap();
    assert!(!rule.look(), "it says nothing else");
    assert_eq!(rule.terms(), terms(PolicyName::Unified, 30, 50));
    let again = Rule::new(&config, Some(&open())).unwrap();
    assert_eq!(again.terms(), terms(PolicyName::Unified, 30, 50), "which share it kept is stored, too");
    assert!(matches!(directives.put(&directive(2, None, 5, "Unified")), Ok(Taken::Same(_))));
    directives.put(&directive(3, Some(20 << 16), 100, "Recompute")).unwrap();
    assert_eq!(rule.configured(), terms(PolicyName::Oneiros, 40, 600));
    let again = Rule::new(&config, Some(&open())).unwrap();
    assert_eq!(again.terms(), terms(PolicyName::Recompute, 20, 1000), "as it is stored");
}

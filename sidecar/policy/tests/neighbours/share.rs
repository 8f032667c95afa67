//! Handing out a GPU.

use proptest::prelude::*;
use sluice_policy::neighbours::share::{Claim, NoShares, shares};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn claim(name: &str, floor: u32, weights_missing: u32, kv_wanted: u32) -> Claim<'_> {
    Claim { name, floor, weights_missing, kv_wanted, fixed: None }
}

#[test]
fn floors_come_before_weights_and_weights_before_kv() {
    let claims = [claim("a", 10, 20, 100), claim("b", 5, 10, 100)];
    assert_eq!(shares(15, &claims), Ok(vec![10, 5]));
    assert_eq!(shares(25, &claims), Ok(vec![15, 10]));
    assert_eq!(shares(40, &claims), Ok(vec![25, 15]), "b has its weights, a takes what is left");
    assert_eq!(shares(45, &claims), Ok(vec![30, 15]));
    assert_eq!(shares(65, &claims), Ok(vec![40, 25]));
}

#[test]
fn kv_stops_at_its_limit_and_the_rest_goes_to_the_others() {
    let claims = [claim("a", 10, 0, 4), claim("b", 10, 0, 100), claim("c", 10, 0, 100)];
    assert_eq!(shares(60, &claims), Ok(vec![14, 23, 23]));
    assert_eq!(shares(1000, &claims), Ok(vec![14, 110, 110]), "nobody takes what it cannot use");
}

#[test]
fn an_odd_chunk_goes_to_who_wants_most_and_then_to_the_first_name() {
    assert_eq!(shares(11, &[claim("b", 0, 50, 0), claim("a", 0, 50, 0)]), Ok(vec![5, 6]));
    assert_eq!(shares(11, &[claim("b", 0, 51, 0), claim("a", 0, 50, 0)]), Ok(vec![6, 5]));
}

#[test]
fn floors_that_do_not_fit_are_refused_with_both_numbers() {
    let error = shares(14, &[claim("a", 10, 0, 0), claim("b", 5, 0, 0)]);
    assert_eq!(error, Err(NoShares::DoesNotFit { needed_chunks: 15, capacity_chunks: 14 }));
    let huge = [claim("a", u32::MAX, 0, 0), claim("b", u32::MAX, 0, 0)];
    let needed_chunks = 2 * u64::from(u32::MAX);
    assert_eq!(shares(7, &huge), Err(NoShares::DoesNotFit { needed_chunks, capacity_chunks: 7 }));
}

#[test]
fn a_fixed_share_is_given_exactly_and_never_below_the_floor() {
    let fixed = Claim { fixed: Some(30), ..claim("a", 10, 50, 50) };
    assert_eq!(shares(100, &[fixed, claim("b", 10, 20, 30)]), Ok(vec![30, 60]));
    let low = Claim { fixed: Some(9), ..fixed };
    let expected = NoShares::FixedBelowFloor { index: 1, fixed_chunks: 9, floor_chunks: 10 };
    assert_eq!(shares(100, &[claim("b", 10, 20, 30), low]), Err(expected));
}

#[test]
fn nobody_gets_nothing_of_an_empty_neighbourhood() {
    assert_eq!(shares(10, &[]), Ok(vec![]));
}

/// Oneiros' motivation: two OPT-13B (26 GB of weights each) on 80 GB leave 28 GB to KV, in chunks of 100 MB.
#[test]
fn two_opt_13b_on_80_gb_keep_52_gb_of_weights_and_share_28_gb_of_kv() {
    let opt = |name| claim(name, 0, 260, u32::MAX);
    let both = shares(800, &[opt("a"), opt("b")]).expect("no floor");
    let kv: Vec<u32> = both.iter().map(|share| share - 260).collect();
    assert_eq!(kv, [140, 140]);
}

fn claims() -> impl Strategy<Value = Vec<Claim<'static>>> {
    let small = || prop_oneof![0_u32..4, 0_u32..60, Just(u32::MAX)];
    let one = (0_u32..40, small(), small(), proptest::option::weighted(0.2, 0_u32..60));
    proptest::collection::vec(one, 1..NAMES.len()).prop_map(|all| {
        let named = all.into_iter().zip(NAMES);
        let claim = |((floor, weights_missing, kv_wanted, extra), name)| Claim {
            name,
            floor,
            weights_missing,
            kv_wanted,
            fixed: Option::map(extra, |extra: u32| floor + extra),
        };
        named.map(claim).collect()
    })
}

fn total(shares: &[u32]) -> u64 {
    shares.iter().map(|share| u64::from(*share)).sum()
}

/// All that a claim can use.
fn most(claim: &Claim<'_>) -> u64 {
    let open = u64::from(claim.floor) + u64::from(claim.weights_missing) + u64::from(claim.kv_wanted);
    claim.fixed.map_or(open, u64::from)
}

/// Chunk by chunk: the next one goes to the open claim that has the least of this round, by the rule for ties.
fn by_single_chunks(left: &mut u64, claims: &[Claim<'_>], wanted: impl Fn(&Claim<'_>) -> u32) -> Vec<u32> {
    let mut parts = vec![0; claims.len()];
    while *left > 0 {
        let open =
            (0..claims.len()).filter(|at| claims[*at].fixed.is_none() && parts[*at] < wanted(&claims[*at]));
        let next = open.min_by_key(|at| (parts[*at], u32::MAX - wanted(&claims[*at]), claims[*at].name));
        let Some(next) = next else { break };
        parts[next] += 1;
        *left -= 1;
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_gpu_is_handed_out_whole_and_never_twice(claims in claims(), capacity in 0_u32..900) {
        let Ok(shares) = shares(capacity, &claims) else {
            let least: u32 = claims.iter().map(|c| c.fixed.unwrap_or(c.floor)).sum();
            prop_assert!(least > capacity);
            return Ok(());
        };
        let usable: u64 = claims.iter().map(most).sum();
        prop_assert_eq!(total(&shares), usable.min(capacity.into()));
        for (claim, share) in claims.iter().zip(&shares) {
            prop_assert!(*share >= claim.floor && u64::from(*share) <= most(claim), "{claim:?}: {share}");
        }
    }

    #[test]
    fn shares_are_those_of_dealing_chunk_by_chunk(claims in claims(), capacity in 0_u32..900) {
        let Ok(shares) = shares(capacity, &claims) else { return Ok(()) };
        let least: Vec<u32> = claims.iter().map(|c| c.fixed.unwrap_or(c.floor)).collect();
        let mut left = u64::from(capacity) - total(&least);
        let weights = by_single_chunks(&mut left, &claims, |c| c.weights_missing);
        let kv = by_single_chunks(&mut left, &claims, |c| c.kv_wanted);
        let dealt: Vec<u32> = (0..claims.len()).map(|at| least[at] + weights[at] + kv[at]).collect();
        prop_assert_eq!(shares, dealt);
    }

    #[test]
    fn a_larger_gpu_lowers_nobodys_share(claims in claims(), capacity in 0_u32..900, more in 1_u32..50) {
        let Ok(before) = shares(capacity, &claims) else { return Ok(()) };
        let after = shares(capacity + more, &claims).expect("more room never refuses");
        prop_assert!(before.iter().zip(&after).all(|(before, after)| before <= after), "{before:?} {after:?}");
    }

    #[test]
    fn the_order_of_claims_does_not_matter(claims in claims(), capacity in 0_u32..900, turn in 0_usize..6) {
        let Ok(before) = shares(capacity, &claims) else { return Ok(()) };
        let mut turned = claims.clone();
        turned.rotate_left(turn % claims.len());
        turned.reverse();
        let after = shares(capacity, &turned).expect("the same claims");
        let of = |name| turned.iter().position(|claim| claim.name == name).map(|at| after[at]);
        for (claim, share) in claims.iter().zip(before) {
            prop_assert_eq!(of(claim.name), Some(share));
        }
    }
}

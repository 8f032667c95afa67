//! Random histories of two or three books: budgets never sum to more than the GPU, and in the end every byte is back in
//! its share.

use proptest::prelude::*;
use sluice_common::random::Rng;
use sluice_policy::peers::loans::LoanBook;

use super::world::network::MessageBody;
use super::world::{Flaw, LoanSimulation};

fn shares() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let one = (5_u32..40).prop_flat_map(|share| (Just(share), 0..=share));
    proptest::collection::vec(one, 2..=3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_lent_once_and_returned(
        shares in shares(),
        words in proptest::collection::vec(any::<u64>(), 0..600),
    ) {
        let mut world = LoanSimulation::new(&shares, Flaw::None);
        prop_assert_eq!(world.run(&words), Ok(()));
        prop_assert_eq!(world.settle(), Ok(()));
        prop_assert_eq!(&world.earmarks, &[]);
        for tenant in &world.tenants {
            let book = tenant.book.as_ref().expect("each tenant lives again");
            prop_assert_eq!(book.budget(), tenant.share);
            prop_assert!(book.loans_out().is_empty() && book.loans_in().is_empty(), "{book:?}");
        }
    }
}

fn words(seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..600).map(|_| rng.next_u64()).collect()
}

/// Returns how many of 200 runs promise a byte twice.
fn failing_runs(flaw: Flaw) -> usize {
    let run = |seed: &u64| {
        let mut world = LoanSimulation::new(&[(30, 5), (25, 0), (20, 10)], flaw);
        world.run(&words(*seed)).and_then(|()| world.settle()).is_err()
    };
    (0..200).filter(run).count()
}

#[test]
fn flawless_protocol_passes_all_runs() {
    assert_eq!(failing_runs(Flaw::None), 0);
}

#[test]
fn each_protocol_flaw_is_detected() {
    for flaw in [Flaw::ExpiryTransfers, Flaw::TrustsTheAnswer, Flaw::ReturnedTwice, Flaw::RestartsAtOnce] {
        assert!(failing_runs(flaw) > 0, "{flaw:?} goes unnoticed");
    }
}

/// Checks that the random runs reach every relevant event.
#[test]
fn random_runs_lend_return_renew_and_exit() {
    let mut seen = [0; 4];
    for seed in 0..20 {
        let mut world = LoanSimulation::new(&[(30, 5), (25, 0), (20, 10)], Flaw::None);
        for word in words(seed) {
            world.apply(word);
            let borrowed: u32 = world.books().map(LoanBook::borrowed).sum();
            seen[0] += u32::from(borrowed > 0);
            seen[1] += u32::from(world.earmarks.iter().any(|e| e.returns));
            seen[2] += u32::from(world.network.iter().any(|m| matches!(m.body, MessageBody::Renewed(_))));
            seen[3] += u32::from(world.books().count() < 3);
        }
    }
    assert!(seen.iter().all(|times| *times > 100), "{seen:?}");
}

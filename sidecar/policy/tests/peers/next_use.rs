//! Tests the prediction of the next use from arrivals, and its effect on the choice of victims.

use std::collections::BTreeSet;

use sluice_common::random::Rng;
use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::next_use::{NextUse, PERIODS_KEPT, PERIODS_MIN};
use sluice_policy::peers::victim::{Borrower, NextUseEstimate, PeerState, PeerView, order};

/// Busy for 10 ns each time, idle for `periods` in between, idle at the end. Returns the end of the last use.
fn used(periods: &[u64]) -> (NextUse, Nanos) {
    let (mut use_of, mut now) = (NextUse::default(), 1000);
    let mut work = |use_of: &mut NextUse, idle: u64| {
        now += idle;
        use_of.observe(Nanos(now), true);
        now += 10;
        use_of.observe(Nanos(now), false);
        Nanos(now)
    };
    let first = work(&mut use_of, 5_000_000);
    let last = periods.iter().map(|idle| work(&mut use_of, *idle)).last();
    (use_of, last.unwrap_or(first))
}

#[test]
fn no_estimate_with_too_few_requests() {
    assert_eq!(PERIODS_MIN, 3);
    assert_eq!(NextUse::default().expected_ns(Nanos(7)), None, "before the first");
    for few in [&[][..], &[100], &[100, 100]] {
        let (use_of, idle) = used(few);
        assert_eq!(use_of.expected_ns(idle), None, "{few:?}");
    }
}

#[test]
fn time_before_first_request_is_not_idle() {
    let (use_of, idle) = used(&[100, 100, 100]);
    assert_eq!(use_of.expected_ns(idle), Some(100), "and not the 5,000,000 since the start");
}

#[test]
fn expected_idle_time_follows_past_periods() {
    let (use_of, idle) = used(&[100, 900, 100, 1000]);
    let expected = |idle_ns| use_of.expected_ns(Nanos(idle.0 + idle_ns));
    assert_eq!(expected(0), Some(900), "the median of all, the upper one of two");
    assert_eq!(expected(99), Some(900 - 99));
    assert_eq!(expected(100), Some(1000 - 100), "those of 100 ended before");
    assert_eq!(expected(950), Some(50));
    assert_eq!(expected(1000), Some(1000));
    assert_eq!(expected(80_000), Some(80_000));
}

#[test]
fn long_idle_period_is_forgotten() {
    let (use_of, idle) = used(&[100, 100, 1_000_000, 100]);
    assert_eq!(use_of.expected_ns(idle), Some(100));
    let (use_of, idle) = used(&[[5_000; PERIODS_KEPT], [100; PERIODS_KEPT]].concat());
    assert_eq!(
        use_of.expected_ns(Nanos(idle.0 + 100)),
        Some(100),
        "nothing lasted longer that is remembered"
    );
}

#[test]
fn busy_tenant_is_needed_now() {
    let (mut use_of, idle) = used(&[100, 100, 100]);
    let later = |ns| Nanos(idle.0 + ns);
    use_of.observe(later(60), true);
    assert_eq!(use_of.expected_ns(later(60)), Some(0));
    (61..90).for_each(|ns| use_of.observe(later(ns), true));
    use_of.observe(later(90), false);
    assert_eq!(use_of.expected_ns(later(90)), Some(100));
}

/// A tenant whose requests arrive at random, `mean` apart on average.
struct Tenant {
    mean: u64,
    next: u64,
    seen: NextUse,
    last_used: u64,
}

/// Tenants of which only some fit. A request needs its tenant's model, which replaces the victim.
struct Gpu {
    tenants: Vec<Tenant>,
    fitting: usize,
    rng: Rng,
}

/// How a victim is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    LastUse,
    Estimate,
    /// Belady: uses the future arrivals.
    Oracle,
}

impl Gpu {
    fn new(means: &[u64], fitting: usize, seed: u64) -> Gpu {
        let tenant = |mean: &u64| Tenant { mean: *mean, next: 0, seen: NextUse::default(), last_used: 0 };
        let mut gpu = Gpu { tenants: means.iter().map(tenant).collect(), fitting, rng: Rng::new(seed) };
        (0..means.len()).for_each(|at| gpu.draw(at, 0));
        gpu
    }

    /// Draws the tenant's next arrival, memoryless.
    fn draw(&mut self, at: usize, now: u64) {
        let uniform = ((self.rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let tenant = &mut self.tenants[at];
        tenant.next = now + 1 + (-uniform.ln() * tenant.mean as f64) as u64;
    }

    fn victim(&self, by: By, now: u64, resident: &BTreeSet<usize>) -> usize {
        if by == By::Oracle {
            return *resident.iter().max_by_key(|at| self.tenants[**at].next).expect("a tenant is resident");
        }
        let seen = |at: &usize| {
            let (tenant, peer) = (&self.tenants[*at], Peer { index: *at as u32, instance: 1 });
            let next_use_ns = tenant.seen.expected_ns(Nanos(now));
            let last_used = Nanos(tenant.last_used);
            let live = PeerState { last_used, lendable_chunks: 1, next_use_ns, ..PeerState::default() };
            PeerView { peer, priority: 0, reachable: true, live: Some(live) }
        };
        let seen: Vec<PeerView> = resident.iter().map(seen).collect();
        let next_use = if by == By::Estimate { NextUseEstimate::Arrivals } else { NextUseEstimate::LastUse };
        let asker = Borrower { need_chunks: 1, next_use, ..Borrower::default() };
        order(&seen, &asker, Nanos(now))[0].peer.index as usize
    }

    /// Returns the number of model loads for `requests` requests.
    fn loads(mut self, by: By, requests: u32) -> u32 {
        let (mut resident, mut loads) = (BTreeSet::new(), 0);
        for _ in 0..requests {
            let at = (0..self.tenants.len()).min_by_key(|at| self.tenants[*at].next).expect("there are some");
            let now = self.tenants[at].next;
            self.tenants[at].seen.observe(Nanos(now), true);
            self.draw(at, now);
            if !resident.contains(&at) {
                loads += 1;
                if resident.len() == self.fitting {
                    resident.remove(&self.victim(by, now, &resident));
                }
                resident.insert(at);
            }
            self.tenants[at].seen.observe(Nanos(now), false);
            self.tenants[at].last_used = now;
        }
        loads
    }
}

fn loads(means: &[u64], fitting: usize, by: By) -> u32 {
    (0..8).map(|seed| Gpu::new(means, fitting, seed).loads(by, 4000)).sum()
}

#[test]
fn estimate_beats_last_use_for_skewed_usage() {
    let means = [1_000_000, 1_000_000, 20_000_000, 20_000_000, 20_000_000];
    let of = |by| loads(&means, 3, by);
    let (estimate, last_use, oracle) = (of(By::Estimate), of(By::LastUse), of(By::Oracle));
    assert!(2 * estimate < last_use, "by estimate {estimate}, by last use {last_use}, at best {oracle}");
    assert!(4 * estimate < 5 * oracle, "by estimate {estimate}, at best {oracle}");
}

/// Predictions for equal tenants differ by chance. Only powers of two count, so the choice is nearly the same.
#[test]
fn estimate_equals_last_use_for_uniform_usage() {
    let of = |by| loads(&[1_000_000; 5], 3, by);
    let (estimate, last_use) = (of(By::Estimate), of(By::LastUse));
    let alike = 10 * estimate < 11 * last_use && 10 * last_use < 11 * estimate;
    assert!(alike, "by estimate {estimate}, by last use {last_use}");
}

//! Counts of events: a soak that exercised nothing must be detected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use sluice_wire::State;
use sluice_wire::state::Phase;

use super::place;
use crate::support::three_tenants::events;

/// Counts of one run, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoakStats {
    /// Engines killed.
    pub engines_killed: u64,
    /// Sidecars killed.
    pub sidecars_killed: u64,
    /// Processes stopped for less than a loan.
    pub short_stops: u64,
    /// Processes stopped for longer.
    pub long_stops: u64,
    /// Faults whose target did not exist.
    pub missed: u64,
    /// Kills during a sleep, planned for suspending, sleeping, and waking.
    pub sleep_kills: [u64; 3],
    /// Orders to sleep that were carried out: level 1, level 2.
    pub ordered_sleeps: [u64; 2],
    /// Sleeps that were interrupted by the order to wake.
    pub interrupted_sleeps: u64,
    /// Times that a tenant was seen asleep without an order.
    pub idle_sleeps: u64,
    /// Times that a tenant was seen awake again in the same instance.
    pub wakes: u64,
    /// Lending transactions.
    pub lends: u64,
    /// Loans accepted.
    pub grants: u64,
    /// Waits for revoked loans.
    pub revokes: u64,
    /// Expired loans that were seen.
    pub expiries: u64,
    /// Time slices.
    pub slices: u64,
    /// Copies of KV to and from host memory.
    pub swaps: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Accepted directives.
    pub directives: u64,
    /// Directives that were refused as expected.
    pub refusals: u64,
}

impl SoakStats {
    /// Returns the counter of stops of this kind.
    pub fn stops(&mut self, outlasts_a_loan: bool) -> &mut u64 {
        if outlasts_a_loan { &mut self.long_stops } else { &mut self.short_stops }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &SoakStats) {
        let sum = |all: &mut [u64], more: &[u64]| all.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        sum(&mut self.sleep_kills, &other.sleep_kills);
        sum(&mut self.ordered_sleeps, &other.ordered_sleeps);
        for ((_, all), (_, more)) in self.plain().into_iter().zip(other.clone().plain()) {
            *all += *more;
        }
    }

    /// Returns the names of required events that did not occur.
    pub fn lacks(&self) -> Vec<&'static str> {
        let lists = [
            ("kills in naps", self.sleep_kills.iter().sum()),
            ("ordered naps", self.ordered_sleeps.iter().sum()),
        ];
        let mut all: Vec<_> = lists.to_vec();
        // Whether a target exists, or a sleep is interrupted, depends on timing; preemptions may be unnecessary.
        let optional = ["missed", "broken_naps", "preemptions"];
        let mut copy = *self;
        let plain = copy.plain().into_iter().map(|(name, count)| (name, *count));
        all.extend(plain.filter(|(name, _)| !optional.contains(name)));
        all.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    fn plain(&mut self) -> [(&'static str, &mut u64); 17] {
        [
            ("engines_killed", &mut self.engines_killed),
            ("sidecars_killed", &mut self.sidecars_killed),
            ("short_stops", &mut self.short_stops),
            ("long_stops", &mut self.long_stops),
            ("missed", &mut self.missed),
            ("broken_naps", &mut self.interrupted_sleeps),
            ("own_naps", &mut self.idle_sleeps),
            ("wakes", &mut self.wakes),
            ("lends", &mut self.lends),
            ("grants", &mut self.grants),
            ("revokes", &mut self.revokes),
            ("expiries", &mut self.expiries),
            ("turns", &mut self.slices),
            ("swaps", &mut self.swaps),
            ("preemptions", &mut self.preemptions),
            ("directives", &mut self.directives),
            ("refusals", &mut self.refusals),
        ]
    }
}

/// What is counted where.
#[derive(Debug, Default)]
pub struct Counter(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    tally: SoakStats,
    /// Counters of each sidecar at its last poll.
    instances: BTreeMap<u32, InstanceCounters>,
    /// Loans that ran out.
    expired: BTreeSet<u64>,
}

/// Counters of an instance so far.
#[derive(Clone, Copy, Debug, Default)]
struct InstanceCounters {
    asleep: bool,
    lends: u64,
    grants: u64,
    revokes: u64,
    slices: u64,
    swaps: u64,
    preemptions: u64,
}

impl Counter {
    /// Counts something.
    pub fn count(&self, what: impl FnOnce(&mut SoakStats)) {
        what(&mut self.inner().tally);
    }

    /// Counts the events in a state of the sidecar `pid`. The flag is true if the tenant was ordered to sleep.
    pub fn see(&self, pid: u32, state: &State, is_ordered: bool) {
        let (inner, mut life) = (&mut *self.inner(), InstanceCounters::of(state));
        let before = inner.instances.get(&pid).copied().unwrap_or_default();
        // A tenant that lost its engine during its sleep still sleeps.
        life.asleep = match state.phase {
            Phase::Hibernated => true,
            Phase::Active | Phase::Idle => false,
            _ => before.asleep,
        };
        inner.tally.idle_sleeps += u64::from(life.asleep && !before.asleep && !is_ordered);
        inner.tally.wakes += u64::from(before.asleep && !life.asleep);
        inner.instances.insert(pid, life);
        let place = place(state);
        let over = place.grants.iter().filter(|grant| grant.expires_in_ms == 0);
        inner.expired.extend(over.map(|grant| grant.nonce));
    }

    /// All so far.
    pub fn tally(&self) -> SoakStats {
        let inner = self.inner();
        let mut tally = inner.tally;
        for life in inner.instances.values() {
            tally.lends += life.lends;
            tally.grants += life.grants;
            tally.revokes += life.revokes;
            tally.slices += life.slices;
            tally.swaps += life.swaps;
            tally.preemptions += life.preemptions;
        }
        tally.expiries = inner.expired.len() as u64;
        tally
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InstanceCounters {
    fn of(state: &State) -> InstanceCounters {
        let place = place(state);
        InstanceCounters {
            asleep: false,
            lends: events(state, "lend"),
            grants: events(state, "borrow"),
            revokes: place.revoke.samples,
            slices: place.time_slice.as_ref().map_or(0, |slice| slice.slices_total),
            swaps: events(state, "swap_in") + events(state, "swap_out"),
            preemptions: state.figures.preemptions_total,
        }
    }
}

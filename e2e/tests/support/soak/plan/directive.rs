//! Directives of a soak: the rules of sharing change under load.

use std::time::Duration;

use sluice_wire::directive::VictimRule;

use super::super::rng::Rng;

/// After the start, before the first one, milliseconds: `sluice up` leads until then.
const QUIET_PERIOD: u64 = 1_500;

/// A directive for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDirective {
    /// After the start.
    pub at: Duration,
    /// Whom to ask first.
    pub victim: VictimRule,
    /// Who came back so short a time ago is not asked, milliseconds.
    pub min_residence_ms: u32,
    /// In which a borrower gives back, milliseconds.
    pub revoke_bound_ms: u32,
    /// Of each tenant.
    pub priorities: Vec<i32>,
    /// Each hibernates after so many seconds; `None` = never.
    pub hibernate_after: Vec<Option<u32>>,
    /// So much of the share of the first, permille, is the second's.
    pub moved: (usize, usize, u64),
    /// Percent of the layers that each may have remapped; no less than at the start, so that floors stay within shares.
    pub caps: Vec<u32>,
    /// Before it, somebody is told what must be refused.
    pub wrong: Option<(usize, Wrong)>,
}

/// A directive that must be refused and change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Another mode of sharing, while the tenant runs.
    Mode,
    /// A policy that there is not.
    Policy,
    /// One that is older than the one in force.
    Replayed,
}

pub(super) fn planned_directives(dice: &mut Rng, tenants: usize, length: Duration) -> Vec<PlannedDirective> {
    let (mut at, length) = (QUIET_PERIOD, length.as_millis() as u64);
    let mut decrees = Vec::new();
    loop {
        at += dice.between(500, 4_000);
        if at >= length {
            return decrees;
        }
        let mut decree = PlannedDirective::draw(dice, tenants, at);
        // Every second one is preceded by one, so that no soak is without.
        decree.wrong = decree.wrong.filter(|_| decrees.len() % 2 == 1);
        decrees.push(decree);
    }
}

impl PlannedDirective {
    fn draw(dice: &mut Rng, tenants: usize, at: u64) -> PlannedDirective {
        use VictimRule::{FixedOrder, LeastRecentlyUsed, MostRecentlyUsed};
        let wrong = dice.pick(&[Wrong::Mode, Wrong::Policy, Wrong::Replayed]);
        let whom = dice.between(0, tenants as u64) as usize;
        PlannedDirective {
            at: Duration::from_millis(at),
            victim: dice.pick(&[FixedOrder, LeastRecentlyUsed, MostRecentlyUsed]),
            min_residence_ms: dice.pick(&[0, 0, 50, 300]),
            revoke_bound_ms: dice.pick(&[20, 200, 1_000]),
            priorities: (0..tenants).map(|_| dice.between(0, 3) as i32).collect(),
            hibernate_after: (0..tenants).map(|_| dice.pick(&[None, Some(2), Some(3)])).collect(),
            moved: (whom, dice.between(0, tenants as u64) as usize, dice.between(0, 200)),
            caps: (0..tenants).map(|_| dice.pick(&[60, 100])).collect(),
            wrong: Some((whom, wrong)),
        }
    }
}

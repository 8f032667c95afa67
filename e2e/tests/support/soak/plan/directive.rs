//! Directives of a soak: the sharing rules change under load.

use std::time::Duration;

use sluice_wire::directive::VictimRule;

use super::super::rng::Rng;

/// Time before the first directive, milliseconds: until then `sluice up` sends directives.
const QUIET_PERIOD: u64 = 1_500;

/// A directive for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDirective {
    /// After the start.
    pub at: Duration,
    /// Rule for the victim.
    pub victim: VictimRule,
    /// Minimum residence time of a victim, milliseconds.
    pub min_residence_ms: u32,
    /// Limit for a borrower to return a loan, milliseconds.
    pub revoke_bound_ms: u32,
    /// Priority of each tenant.
    pub priorities: Vec<i32>,
    /// Idle seconds until each hibernates; `None` = never.
    pub hibernate_after: Vec<Option<u32>>,
    /// Part of the first tenant's share, permille, that moves to the second.
    pub moved: (usize, usize, u64),
    /// Cap of each tenant on remapped layers, percent; at least the initial cap, so that minimums stay within
    /// shares.
    pub caps: Vec<u32>,
    /// Tenant that gets an invalid directive before this one.
    pub wrong: Option<(usize, Wrong)>,
}

/// A directive that must be refused and change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Another mode of sharing, while the tenant runs.
    Mode,
    /// An unknown policy.
    Policy,
    /// One that is older than the one in force.
    Replayed,
}

pub(super) fn planned_directives(dice: &mut Rng, tenants: usize, length: Duration) -> Vec<PlannedDirective> {
    let (mut at, length) = (QUIET_PERIOD, length.as_millis() as u64);
    let mut directives = Vec::new();
    loop {
        at += dice.between(500, 4_000);
        if at >= length {
            return directives;
        }
        let mut directive = PlannedDirective::draw(dice, tenants, at);
        // Every second directive has one, so that every soak does.
        directive.wrong = directive.wrong.filter(|_| directives.len() % 2 == 1);
        directives.push(directive);
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

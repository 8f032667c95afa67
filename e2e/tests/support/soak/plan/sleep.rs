//! Ordered sleeps of tenants, and faults during them.

use std::time::Duration;

use super::super::rng::Rng;
use super::fault::Side;

/// After the start, before the first one, milliseconds.
const QUIET_PERIOD: u64 = 800;

/// A tenant is ordered to sleep, and woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSleep {
    /// After the start.
    pub at: Duration,
    /// Tenant.
    pub tenant: usize,
    /// 1 keeps KV, 2 keeps none.
    pub level: u8,
    /// Time between the orders to sleep and to wake; it may be short enough to interrupt falling asleep.
    pub lasts: Duration,
    /// Kill of one of its processes during the sleep.
    pub fault: Option<SleepFault>,
}

/// A kill during a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepFault {
    /// Event before the kill.
    pub moment: Moment,
    /// Delay after the event.
    pub after: Duration,
    /// Process.
    pub side: Side,
}

/// An event of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The order to sleep.
    Suspending,
    /// It sleeps.
    Asleep,
    /// The order to wake.
    Waking,
}

pub(super) fn planned_sleeps(dice: &mut Rng, tenants: usize, length: Duration) -> Vec<PlannedSleep> {
    let (mut at, length) = (QUIET_PERIOD, length.as_millis() as u64);
    let mut sleeps = Vec::new();
    loop {
        at += dice.between(200, 3_500);
        if at >= length {
            return sleeps;
        }
        let mut sleep = PlannedSleep::draw(dice, tenants, at);
        // Every third sleep has one, so that every soak does.
        sleep.fault = sleep.fault.filter(|_| sleeps.len() % 3 == 1);
        sleeps.push(sleep);
    }
}

impl PlannedSleep {
    fn draw(dice: &mut Rng, tenants: usize, at: u64) -> PlannedSleep {
        let lasts = if dice.percent(25) { dice.between(0, 60) } else { dice.between(60, 2_000) };
        let blow = SleepFault::draw(dice);
        PlannedSleep {
            at: Duration::from_millis(at),
            tenant: dice.between(0, tenants as u64) as usize,
            level: if dice.percent(70) { 1 } else { 2 },
            lasts: Duration::from_millis(lasts),
            fault: Some(blow),
        }
    }
}

impl SleepFault {
    fn draw(dice: &mut Rng) -> SleepFault {
        let moment = dice.pick(&[Moment::Suspending, Moment::Asleep, Moment::Waking]);
        let side = dice.pick(&[Side::Engine, Side::Sidecar]);
        SleepFault { moment, after: Duration::from_micros(dice.between(0, 60_000)), side }
    }
}

//! Naps that tenants are told to take, and what happens to them meanwhile.

use std::time::Duration;

use super::super::rng::Rng;
use super::fault::Side;

/// After the start, before the first one, milliseconds.
const QUIET_PERIOD: u64 = 800;

/// A tenant is told to sleep, and woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSleep {
    /// After the start.
    pub at: Duration,
    /// Who.
    pub tenant: usize,
    /// 1 keeps KV, 2 keeps none.
    pub level: u8,
    /// Between the order to sleep and the one to wake: it may be short enough to break the nap off.
    pub lasts: Duration,
    /// One of its processes is killed in it.
    pub fault: Option<SleepFault>,
}

/// A kill in a nap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepFault {
    /// After what.
    pub moment: Moment,
    /// How long after it.
    pub after: Duration,
    /// Of whom.
    pub side: Side,
}

/// A moment of a nap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It was told to sleep.
    Suspending,
    /// It sleeps.
    Asleep,
    /// It was told to wake up.
    Waking,
}

pub(super) fn planned_sleeps(dice: &mut Rng, tenants: usize, length: Duration) -> Vec<PlannedSleep> {
    let (mut at, length) = (QUIET_PERIOD, length.as_millis() as u64);
    let mut naps = Vec::new();
    loop {
        at += dice.between(200, 3_500);
        if at >= length {
            return naps;
        }
        let mut nap = PlannedSleep::draw(dice, tenants, at);
        // Every third has one, so that no soak is without.
        nap.fault = nap.fault.filter(|_| naps.len() % 3 == 1);
        naps.push(nap);
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

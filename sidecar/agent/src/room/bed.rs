//! When the tenant sleeps: after a time without requests, or when told to; and who is told that it does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::HostMemory;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::SleepState;
use sluice_scheduler::{Driver, Event, Scheduler, Sleep};
use sluice_wire::grants::{GrantAnswer, GrantRequest};
use tokio::sync::oneshot;

use super::body::LinkCompute;
use crate::directive::Directives;
use crate::neighbours::call::{Call, SleepLevel, Unable};

type Answer = oneshot::Sender<Result<(), Unable>>;

/// What the room remembers of sleep.
pub struct Bed {
    after: Option<Duration>,
    /// Says when, if it says anything.
    directives: Option<Arc<Directives>>,
    idle_since: Option<Instant>,
    /// Since when requests are held.
    held: BTreeMap<RequestId, Instant>,
    /// Who waits until it sleeps, and who until it is awake.
    sleeps: Vec<Answer>,
    wakes: Vec<Answer>,
}

impl Bed {
    /// A tenant that sleeps after so many seconds without requests, unless a directive says otherwise.
    pub fn new(after_seconds: Option<u32>, directives: Option<Arc<Directives>>) -> Bed {
        let after = after_seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        Bed {
            after,
            directives,
            idle_since: None,
            held: BTreeMap::new(),
            sleeps: Vec::new(),
            wakes: Vec::new(),
        }
    }

    fn patience(&self) -> Option<Duration> {
        let in_force = self.directives.as_ref().and_then(|directives| directives.in_force());
        let told = in_force.map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        told.map_or(self.after, |seconds| seconds.map(|seconds| Duration::from_secs(u64::from(seconds))))
    }

    /// Without a request for so long the tenant counts as idle; at once where no directive says.
    pub fn idle_after(&self) -> Duration {
        let in_force = self.directives.as_ref().and_then(|directives| directives.in_force());
        let told = in_force.map(|in_force| in_force.directive.tenant.idle_after_seconds);
        Duration::from_secs(told.unwrap_or(0).into())
    }

    /// It is time to sleep.
    pub fn tired(&mut self, core: &Scheduler) -> bool {
        if !core.is_idle() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        self.patience().is_some_and(|after| since.elapsed() >= after)
    }

    /// Requests of those that are open which have been held for so long because the tenant holds no memory.
    pub fn held_too_long(
        &mut self,
        rest: SleepState,
        open: impl Iterator<Item = RequestId>,
        hold: Duration,
    ) -> Vec<RequestId> {
        if rest == SleepState::Awake {
            self.held.clear();
            return Vec::new();
        }
        let before = std::mem::take(&mut self.held);
        let now = Instant::now();
        self.held = open.map(|id| (id, before.get(&id).copied().unwrap_or(now))).collect();
        let late = self.held.iter().filter(|(_, since)| now.duration_since(**since) >= hold);
        late.map(|(id, _)| *id).collect()
    }

    /// Takes what is about sleep, and hands on what is about memory.
    pub fn call(
        &mut self,
        call: Call,
        driver: &mut Driver<HostMemory, LinkCompute>,
    ) -> Option<(GrantRequest, oneshot::Sender<GrantAnswer>)> {
        // Whoever asked may have gone, here as below.
        match call {
            Call::Sleep(_, answer) | Call::WakeUp(answer) if !driver.scheduler().manager().is_loaded() => {
                let _ = answer.send(Err(Unable("the tenant has not loaded".into())));
            }
            Call::Sleep(level, answer) => {
                let order = if level == SleepLevel::One { Sleep::Ordered } else { Sleep::Discard };
                driver.push(Event::Sleep(order));
                overtaken(&mut self.wakes, "it was told to sleep meanwhile");
                self.sleeps.push(answer);
            }
            Call::WakeUp(answer) => {
                driver.push(Event::Sleep(Sleep::WakeUp));
                overtaken(&mut self.sleeps, "it was woken meanwhile");
                self.wakes.push(answer);
            }
            Call::IsSleeping(answer) => {
                let _ = answer.send(Ok(driver.scheduler().manager().sleep_state() != SleepState::Awake));
            }
            Call::Grant(request, answer) => return Some((request, answer)),
        }
        None
    }

    /// Tells those who wait for what has happened.
    pub fn answer(&mut self, rest: SleepState) {
        let happened = match rest {
            SleepState::Asleep => &mut self.sleeps,
            SleepState::Awake => &mut self.wakes,
            SleepState::Suspending | SleepState::Waking => return,
        };
        happened.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
    }
}

fn overtaken(waiting: &mut Vec<Answer>, why: &str) {
    waiting.drain(..).for_each(|answer| drop(answer.send(Err(Unable(why.into())))));
}

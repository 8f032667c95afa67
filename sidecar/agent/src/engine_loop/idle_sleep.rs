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

use super::backend::EngineCompute;
use crate::directive::DirectiveStore;
use crate::peers::admin_call::{AdminCall, CallRejected, SleepLevel};

type SleepReply = oneshot::Sender<Result<(), CallRejected>>;

/// What the room remembers of sleep.
pub struct IdleSleep {
    default_after: Option<Duration>,
    /// Says when, if it says anything.
    directives: Option<Arc<DirectiveStore>>,
    idle_since: Option<Instant>,
    /// Since when requests are held.
    held_since: BTreeMap<RequestId, Instant>,
    /// Who waits until it sleeps, and who until it is awake.
    sleep_waiters: Vec<SleepReply>,
    wake_waiters: Vec<SleepReply>,
}

impl IdleSleep {
    /// A tenant that sleeps after so many seconds without requests, unless a directive says otherwise.
    pub fn new(after_seconds: Option<u32>, directives: Option<Arc<DirectiveStore>>) -> IdleSleep {
        let after = after_seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        IdleSleep {
            default_after: after,
            directives,
            idle_since: None,
            held_since: BTreeMap::new(),
            sleep_waiters: Vec::new(),
            wake_waiters: Vec::new(),
        }
    }

    fn sleep_after(&self) -> Option<Duration> {
        let in_force = self.directives.as_ref().and_then(|directives| directives.active());
        let told = in_force.map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        told.map_or(self.default_after, |seconds| {
            seconds.map(|seconds| Duration::from_secs(u64::from(seconds)))
        })
    }

    /// Without a request for so long the tenant counts as idle; at once where no directive says.
    pub fn idle_after(&self) -> Duration {
        let in_force = self.directives.as_ref().and_then(|directives| directives.active());
        let told = in_force.map(|in_force| in_force.directive.tenant.idle_after_seconds);
        Duration::from_secs(told.unwrap_or(0).into())
    }

    /// It is time to sleep.
    pub fn should_sleep(&mut self, core: &Scheduler) -> bool {
        if !core.is_idle() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        self.sleep_after().is_some_and(|after| since.elapsed() >= after)
    }

    /// Requests of those that are open which have been held for so long because the tenant holds no memory.
    pub fn expired_requests(
        &mut self,
        rest: SleepState,
        open: impl Iterator<Item = RequestId>,
        hold: Duration,
    ) -> Vec<RequestId> {
        if rest == SleepState::Awake {
            self.held_since.clear();
            return Vec::new();
        }
        let before = std::mem::take(&mut self.held_since);
        let now = Instant::now();
        self.held_since = open.map(|id| (id, before.get(&id).copied().unwrap_or(now))).collect();
        let late = self.held_since.iter().filter(|(_, since)| now.duration_since(**since) >= hold);
        late.map(|(id, _)| *id).collect()
    }

    /// Takes what is about sleep, and hands on what is about memory.
    pub fn on_call(
        &mut self,
        call: AdminCall,
        driver: &mut Driver<HostMemory, EngineCompute>,
    ) -> Option<(GrantRequest, oneshot::Sender<GrantAnswer>)> {
        // Whoever asked may have gone, here as below.
        match call {
            AdminCall::Sleep(_, answer) | AdminCall::WakeUp(answer)
                if !driver.scheduler().manager().is_loaded() =>
            {
                let _ = answer.send(Err(CallRejected("the tenant has not loaded".into())));
            }
            AdminCall::Sleep(level, answer) => {
                let order = if level == SleepLevel::One { Sleep::Ordered } else { Sleep::Discard };
                driver.push(Event::Sleep(order));
                reject_waiters(&mut self.wake_waiters, "it was told to sleep meanwhile");
                self.sleep_waiters.push(answer);
            }
            AdminCall::WakeUp(answer) => {
                driver.push(Event::Sleep(Sleep::WakeUp));
                reject_waiters(&mut self.sleep_waiters, "it was woken meanwhile");
                self.wake_waiters.push(answer);
            }
            AdminCall::IsSleeping(answer) => {
                let _ = answer.send(Ok(driver.scheduler().manager().sleep_state() != SleepState::Awake));
            }
            AdminCall::Grant(request, answer) => return Some((request, answer)),
        }
        None
    }

    /// Tells those who wait for what has happened.
    pub fn notify_waiters(&mut self, rest: SleepState) {
        let happened = match rest {
            SleepState::Asleep => &mut self.sleep_waiters,
            SleepState::Awake => &mut self.wake_waiters,
            SleepState::Suspending | SleepState::Waking => return,
        };
        happened.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
    }
}

fn reject_waiters(waiting: &mut Vec<SleepReply>, why: &str) {
    waiting.drain(..).for_each(|answer| drop(answer.send(Err(CallRejected(why.into())))));
}

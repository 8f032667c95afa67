//! Decides when the tenant sleeps: after a time without requests, or on command. Replies to the callers that wait for
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::DeviceMemory;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::SleepState;
use sluice_scheduler::{Driver, Event, Scheduler, Sleep};
use sluice_wire::grants::{GrantAnswer, GrantRequest};
use tokio::sync::oneshot;

use super::backend::EngineCompute;
use crate::directive::DirectiveStore;
use crate::peers::admin_call::{AdminCall, CallRejected, SleepLevel};

type SleepReply = oneshot::Sender<Result<(), CallRejected>>;

/// State of idle sleep.
pub struct IdleSleep {
    default_after: Option<Duration>,
    /// Directives, which may set the idle times.
    directives: Option<Arc<DirectiveStore>>,
    idle_since: Option<Instant>,
    /// Time since when each request is held.
    held_since: BTreeMap<RequestId, Instant>,
    /// Callers that wait until the tenant sleeps.
    sleep_replies: Vec<SleepReply>,
    wake_replies: Vec<SleepReply>,
}

impl IdleSleep {
    /// Creates the state of a tenant that sleeps after `after_seconds` without requests, unless a directive sets
    /// another time.
    pub fn new(after_seconds: Option<u32>, directives: Option<Arc<DirectiveStore>>) -> IdleSleep {
        let after = after_seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        IdleSleep {
            default_after: after,
            directives,
            idle_since: None,
            held_since: BTreeMap::new(),
            sleep_replies: Vec::new(),
            wake_replies: Vec::new(),
        }
    }

    fn sleep_after(&self) -> Option<Duration> {
        let in_force = self.directives.as_ref().and_then(|directives| directives.active());
        let seconds = in_force.map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        seconds.map_or(self.default_after, |seconds| {
            seconds.map(|seconds| Duration::from_secs(u64::from(seconds)))
        })
    }

    /// Returns the time without requests after which the tenant counts as idle. Zero if no directive is in force.
    pub fn idle_after(&self) -> Duration {
        let in_force = self.directives.as_ref().and_then(|directives| directives.active());
        let seconds = in_force.map(|in_force| in_force.directive.tenant.idle_after_seconds);
        Duration::from_secs(seconds.unwrap_or(0).into())
    }

    /// Whether the tenant has been idle for its sleep time.
    pub fn should_sleep(&mut self, core: &Scheduler) -> bool {
        if !core.is_idle() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        self.sleep_after().is_some_and(|after| since.elapsed() >= after)
    }

    /// Returns the open requests that have been held for at least `hold` because the tenant is not awake.
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

    /// Handles calls about sleep. Returns grant requests to the caller.
    pub fn on_call(
        &mut self,
        call: AdminCall,
        driver: &mut Driver<DeviceMemory, EngineCompute>,
    ) -> Option<(GrantRequest, oneshot::Sender<GrantAnswer>)> {
        // Receivers of replies may be dropped, here and below.
        match call {
            AdminCall::Sleep(_, answer) | AdminCall::WakeUp(answer)
                if !driver.scheduler().manager().status().is_loaded() =>
            {
                let _ = answer.send(Err(CallRejected("the tenant has not loaded yet".into())));
            }
            AdminCall::Sleep(level, answer) => {
                let order = if level == SleepLevel::One { Sleep::Ordered } else { Sleep::Discard };
                driver.push(Event::Sleep(order));
                reject_all(&mut self.wake_replies, "a later request ordered the tenant to sleep");
                self.sleep_replies.push(answer);
            }
            AdminCall::WakeUp(answer) => {
                driver.push(Event::Sleep(Sleep::WakeUp));
                reject_all(&mut self.sleep_replies, "a later request woke the tenant");
                self.wake_replies.push(answer);
            }
            AdminCall::IsSleeping(answer) => {
                let _ =
                    answer.send(Ok(driver.scheduler().manager().status().sleep_state() != SleepState::Awake));
            }
            AdminCall::Grant(request, answer) => return Some((request, answer)),
        }
        None
    }

    /// Replies to the callers whose sleep or wake-up has completed.
    pub fn reply_completed(&mut self, rest: SleepState) {
        let happened = match rest {
            SleepState::Asleep => &mut self.sleep_replies,
            SleepState::Awake => &mut self.wake_replies,
            SleepState::Suspending | SleepState::Waking => return,
        };
        happened.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
    }
}

fn reject_all(waiting: &mut Vec<SleepReply>, why: &str) {
    waiting.drain(..).for_each(|answer| drop(answer.send(Err(CallRejected(why.into())))));
}

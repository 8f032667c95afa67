//! Gate in which requests wait for the engine, and the shared view of the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sluice_scheduler::UnavailableReason;
use tokio::sync::{Notify, watch};

use crate::gateway::error::{ApiError, RETRY_SOON_SECONDS};
use crate::metrics::Metrics;

/// Phase of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePhase {
    /// It has not responded yet.
    Starting,
    /// It responds and does not sleep.
    Awake,
    /// It is going to sleep.
    Suspending,
    /// It sleeps, without device memory.
    Asleep,
    /// It is waking.
    Waking,
    /// It responded earlier and does not respond now.
    Lost,
}

/// The last known state of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineView {
    /// Phase of the engine.
    pub phase: EnginePhase,
    /// Number of probes so far.
    pub probes: u64,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestCounts {
    /// Requests that have arrived and not ended.
    pub open: u32,
    /// Open requests that wait in the gate.
    pub held: u32,
    /// Requests that wait in the engine, as of the last probe.
    pub waiting_in_engine: u32,
    /// When the last request arrived or ended, or the engine was found or woken.
    pub changed_at: (Instant, SystemTime),
    /// When the last request arrived or ended; `None` = there was no request.
    pub last_used_at: Option<SystemTime>,
}

impl RequestCounts {
    fn touch(&mut self) {
        let now = SystemTime::now();
        (self.changed_at, self.last_used_at) = ((Instant::now(), now), Some(now));
    }
}

/// Gate shared by the requests, the engine's monitor and the admin handler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestGate {
    counts: Arc<Mutex<RequestCounts>>,
    view: watch::Sender<EngineView>,
    /// Wakes the monitor: a request needs the engine, or the engine failed one.
    pub monitor_wakeup: Arc<Notify>,
    metrics: Arc<Metrics>,
}

/// Guard of a request that has not ended.
#[derive(Debug)]
pub struct RequestGuard {
    gate: RequestGate,
    /// Remaining time that the request may be held.
    budget: Duration,
}

impl RequestGate {
    /// Creates a gate without requests and with an engine that has not responded.
    pub fn new(metrics: Arc<Metrics>) -> RequestGate {
        let changed = (Instant::now(), SystemTime::now());
        let counts =
            RequestCounts { open: 0, held: 0, waiting_in_engine: 0, changed_at: changed, last_used_at: None };
        let view = watch::Sender::new(EngineView { phase: EnginePhase::Starting, probes: 0 });
        RequestGate { counts: Arc::new(Mutex::new(counts)), view, monitor_wakeup: Arc::default(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        // The counters are valid even if another thread panicked while it held the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current counts.
    pub fn counts(&self) -> RequestCounts {
        *self.lock()
    }

    /// Returns the engine's phase.
    pub fn phase(&self) -> EnginePhase {
        self.view.borrow().phase
    }

    /// Returns a receiver of the engine's state and its changes.
    pub fn watch(&self) -> watch::Receiver<EngineView> {
        self.view.subscribe()
    }

    /// Records a probe of the engine, and how many requests wait in it if that is known.
    pub fn on_probe(&self, phase: EnginePhase, waiting_there: Option<u64>) {
        if let Some(waiting) = waiting_there {
            self.lock().waiting_in_engine = u32::try_from(waiting).unwrap_or(u32::MAX);
        }
        self.view.send_modify(|view| *view = EngineView { phase, probes: view.probes + 1 });
    }

    /// Sets the engine's phase.
    pub fn set_phase(&self, phase: EnginePhase) {
        self.view.send_modify(|view| view.phase = phase);
    }

    /// Marks the engine as going to sleep, unless a request is open. Later requests find it asleep.
    ///
    /// # Errors
    /// The number of open requests.
    pub fn begin_suspend(&self) -> Result<(), u32> {
        let counts = self.lock();
        if counts.open > 0 {
            return Err(counts.open);
        }
        self.set_phase(EnginePhase::Suspending);
        Ok(())
    }

    /// Restarts the idle time, because the engine was just found or woken.
    pub fn reset_idle(&self) {
        self.lock().changed_at = (Instant::now(), SystemTime::now());
    }

    /// Admits a request that may be held for `budget`.
    ///
    /// # Errors
    /// 429: `queue` requests already wait, in the gate or in the engine.
    pub fn admit(&self, queue: u32, budget: Duration) -> Result<RequestGuard, ApiError> {
        let mut counts = self.lock();
        let waiting = counts.held.saturating_add(counts.waiting_in_engine);
        if waiting >= queue {
            return Err(ApiError::rate_limited(format!("{waiting} requests wait, which is the limit")));
        }
        counts.open += 1;
        counts.touch();
        drop(counts);
        Ok(RequestGuard { gate: self.clone(), budget })
    }
}

impl RequestGuard {
    /// Waits until the engine is awake.
    ///
    /// # Errors
    /// 503: the budget is used up.
    pub async fn wait_awake(&mut self) -> Result<(), ApiError> {
        let RequestGuard { gate, budget } = self;
        gate.wait_until(budget, |view| view.phase == EnginePhase::Awake).await
    }

    /// Waits for the next probe, after the engine has failed the request.
    ///
    /// # Errors
    /// 503: the budget is used up.
    pub async fn wait_probed(&mut self) -> Result<(), ApiError> {
        let RequestGuard { gate, budget } = self;
        let looks = gate.view.borrow().probes;
        gate.wait_until(budget, |view| view.probes > looks).await
    }
}

impl RequestGate {
    /// Waits until the engine's process responds, awake or not. Does not keep the engine from sleeping and does not
    /// wake it.
    ///
    /// # Errors 503: it took longer than `budget`.
    pub async fn wait_reachable(&self, mut budget: Duration) -> Result<(), ApiError> {
        self.wait_until(&mut budget, |view| !matches!(view.phase, EnginePhase::Starting | EnginePhase::Lost))
            .await
    }

    async fn wait_until(
        &self,
        budget: &mut Duration,
        wanted: impl Fn(&EngineView) -> bool,
    ) -> Result<(), ApiError> {
        let mut view = self.watch();
        if wanted(&view.borrow_and_update()) {
            return Ok(());
        }
        self.monitor_wakeup.notify_one();
        let (held, start) = (HeldRequest::new(self), Instant::now());
        let come = tokio::time::timeout(*budget, view.wait_for(wanted)).await;
        drop(held);
        *budget = budget.saturating_sub(start.elapsed());
        self.metrics.record_hold(start.elapsed());
        match come {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ApiError::from_unavailable(&UnavailableReason::ShuttingDown)),
            Err(_) => Err(self.timeout_error()),
        }
    }

    fn timeout_error(&self) -> ApiError {
        let what = match self.phase() {
            EnginePhase::Starting => "the engine has not started yet",
            EnginePhase::Lost => "the engine restarts",
            EnginePhase::Suspending | EnginePhase::Asleep | EnginePhase::Waking => "the engine wakes up",
            EnginePhase::Awake => "the engine ended the stream early",
        };
        ApiError::unavailable(what, RETRY_SOON_SECONDS)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut counts = self.gate.lock();
        counts.open -= 1;
        counts.touch();
    }
}

/// A request that waits in the gate.
struct HeldRequest<'a>(&'a RequestGate);

impl HeldRequest<'_> {
    fn new(gate: &RequestGate) -> HeldRequest<'_> {
        gate.lock().held += 1;
        gate.metrics.held_requests.add(1);
        HeldRequest(gate)
    }
}

impl Drop for HeldRequest<'_> {
    fn drop(&mut self) {
        self.0.lock().held -= 1;
        self.0.metrics.held_requests.add(-1);
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::config::SloConfig;

    use super::*;

    fn gate() -> RequestGate {
        RequestGate::new(Arc::new(Metrics::proxied("tiny", &SloConfig::default())))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn suspend_needs_all_guards_dropped() {
        let gate = gate();
        let places = [gate.admit(9, LONG).unwrap(), gate.admit(9, LONG).unwrap()];
        assert_eq!(gate.begin_suspend(), Err(2));
        drop(places);
        assert_eq!((gate.begin_suspend(), gate.phase()), (Ok(()), EnginePhase::Suspending));
    }

    #[tokio::test]
    async fn held_request_wakes_monitor_and_waits_for_engine() {
        let gate = gate();
        gate.set_phase(EnginePhase::Asleep);
        let mut place = gate.admit(9, LONG).unwrap();
        let held = tokio::spawn(async move { place.wait_awake().await.map(|()| place.budget) });
        gate.monitor_wakeup.notified().await;
        let mut view = gate.watch();
        while gate.counts().held == 0 {
            tokio::task::yield_now().await;
        }
        gate.on_probe(EnginePhase::Waking, Some(3));
        view.changed().await.unwrap();
        assert_eq!((gate.counts().held, gate.counts().open, gate.counts().waiting_in_engine), (1, 1, 3));
        gate.set_phase(EnginePhase::Awake);
        assert!(held.await.unwrap().unwrap() < LONG);
        assert_eq!((gate.counts().held, gate.counts().open), (0, 0));
    }

    #[tokio::test]
    async fn hold_budget_and_queue_limit_are_enforced() {
        let gate = gate();
        gate.set_phase(EnginePhase::Lost);
        let mut place = gate.admit(1, Duration::ZERO).unwrap();
        let refused = place.wait_awake().await.unwrap_err();
        assert!(refused.body().to_string().contains("restarts"), "{refused:?}");
        gate.on_probe(EnginePhase::Awake, Some(1));
        assert!(gate.admit(1, LONG).is_err(), "one waits in the engine");
        assert!(gate.admit(2, LONG).is_ok());
    }
}

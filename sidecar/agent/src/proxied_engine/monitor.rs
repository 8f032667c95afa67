//! Monitors the engine: probes it, puts an idle one to sleep and wakes it when a request waits.
//!
//! It is the only owner of the engine's phase. Requests wait in the [`RequestGate`] and wake it up.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluice_policy::ids::Nanos;
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use tokio::sync::{mpsc, oneshot, watch};

use super::engine::{EngineClient, EngineError};
use super::engine_metrics::gauge;
use super::request_gate::{EnginePhase, RequestGate};
use crate::directive::DirectiveStore;
use crate::metrics::Metrics;
use crate::peers::admin_call::{CallRejected, SleepLevel};
use crate::scheduler_handle::Status;

/// Interval between probes of a healthy engine.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between probes of an engine that does not respond or does not wake.
const PROBE_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Consecutive missed probes after which an engine is lost; a busy engine may miss some.
const MISSED_PROBES_MAX: u32 = 5;
/// Longest time to sleep or wake, in which all weights are copied over the link.
const SLEEP_WAKE_TIMEOUT: Duration = Duration::from_secs(300);
/// Error for a vLLM without sleep mode.
const NO_SLEEP_MODE: &str =
    "the engine has no sleep mode (vLLM: --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1)";

/// A command, and the channel for its result.
#[derive(Debug)]
pub enum EngineCommand {
    /// Release all device memory.
    Sleep(SleepLevel, oneshot::Sender<Result<(), CallRejected>>),
    /// Allocate the device memory again.
    WakeUp(oneshot::Sender<Result<(), CallRejected>>),
}

/// History of the engine, for the state.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineHistory {
    /// Number of engines found.
    pub engines_found: u64,
    /// Number of engines lost.
    pub engines_lost: u64,
    /// When the last engine was lost.
    pub lost_at: Option<SystemTime>,
    /// When the present engine was found.
    pub up_since: Option<SystemTime>,
    /// When the engine was last found or woken.
    pub awake_since: Option<SystemTime>,
}

/// Monitor of one engine.
#[derive(Debug)]
pub struct EngineMonitor {
    /// The engine.
    pub engine: EngineClient,
    /// Gate in which requests wait.
    pub gate: RequestGate,
    /// Commands from the admin port.
    pub commands: mpsc::UnboundedReceiver<EngineCommand>,
    /// Status for the probes.
    pub status: watch::Sender<Status>,
    /// History for the state.
    pub history: watch::Sender<EngineHistory>,
    /// Store of the active directive.
    pub directives: Arc<DirectiveStore>,
    /// Time without requests after which the engine sleeps, if no directive sets it; `None` = never.
    pub hibernate_after: Option<Duration>,
    /// Metrics of this sidecar.
    pub metrics: Arc<Metrics>,
    /// State of the present engine.
    pub state: MonitorState,
}

/// What the monitor knows about the present engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonitorState {
    /// Whether the engine has a sleep mode.
    has_sleep_mode: bool,
    /// Whether sleeping failed; then it is not retried automatically.
    has_refused_sleep: bool,
    missed_probes: u32,
    /// Whether the last attempt to wake the engine failed.
    has_wake_failed: bool,
}

impl EngineMonitor {
    /// Runs until the process exits.
    pub async fn run(mut self) {
        loop {
            self.probe().await;
            self.sleep_or_wake().await;
            let (nudge, next_look) = (self.gate.monitor_wakeup.clone(), self.next_probe_in());
            tokio::select! {
                Some(order) = self.commands.recv() => self.on_command(order).await,
                () = nudge.notified() => {}
                () = tokio::time::sleep(next_look) => {}
            }
        }
    }

    fn next_probe_in(&self) -> Duration {
        let trouble = self.state.has_wake_failed
            || matches!(self.gate.phase(), EnginePhase::Starting | EnginePhase::Lost);
        let usual = if trouble { PROBE_RETRY_INTERVAL } else { PROBE_INTERVAL };
        self.time_until_sleep().map_or(usual, |sleepy| usual.min(sleepy))
    }

    async fn probe(&mut self) {
        match self.engine.health().await {
            Ok(()) => self.on_answer().await,
            // The process is busy or has restarted: the next probe decides.
            Err(EngineError::Timeout | EngineError::Broken(_))
                if self.state.missed_probes < MISSED_PROBES_MAX =>
            {
                self.state.missed_probes += 1;
                self.gate.on_probe(self.gate.phase(), None);
            }
            Err(trouble) => self.on_no_answer(&trouble),
        }
    }

    async fn on_answer(&mut self) {
        self.state.missed_probes = 0;
        let phase = self.gate.phase();
        let new = matches!(phase, EnginePhase::Starting | EnginePhase::Lost);
        if new || self.state.has_sleep_mode {
            // Also asks a known engine, because any client of its port can put it to sleep or wake it.
            match self.engine.is_sleeping().await {
                Ok(is_sleeping) => return self.on_sleep_state(new, is_sleeping).await,
                Err(trouble) => tracing::debug!(%trouble, "its answer does not contain whether it sleeps"),
            }
        }
        let waiting = self.waiting_in_engine().await;
        self.gate.on_probe(phase, waiting);
    }

    /// Handles the sleep state of an engine that responded; `None` = it has no sleep mode.
    async fn on_sleep_state(&mut self, new: bool, sleeping: Option<bool>) {
        if new {
            self.on_engine_found(sleeping.is_some());
        }
        self.state.has_sleep_mode = sleeping.is_some();
        let waiting = self.waiting_in_engine().await;
        self.gate
            .on_probe(if sleeping == Some(true) { EnginePhase::Asleep } else { EnginePhase::Awake }, waiting);
    }

    async fn waiting_in_engine(&self) -> Option<u64> {
        gauge(&self.engine.metrics().await.ok()?, "vllm:num_requests_waiting")
    }

    fn on_engine_found(&mut self, sleeps: bool) {
        tracing::info!(sleeps, "the engine is ready");
        self.state = MonitorState { has_sleep_mode: sleeps, ..MonitorState::default() };
        self.history.send_modify(|lives| {
            let now = Some(SystemTime::now());
            (lives.engines_found, lives.up_since, lives.awake_since) = (lives.engines_found + 1, now, now);
        });
        self.status.send_replace(Status::Serving);
        self.gate.reset_idle();
    }

    fn on_no_answer(&mut self, trouble: &EngineError) {
        if self.gate.phase() == EnginePhase::Starting {
            tracing::debug!(%trouble, "the engine does not answer yet");
            return self.gate.on_probe(EnginePhase::Starting, None);
        }
        if self.gate.phase() != EnginePhase::Lost {
            tracing::warn!(%trouble, "the engine does not answer any more; requests are held");
            self.metrics.on_engine_lost();
            self.history.send_modify(|lives| {
                (lives.engines_lost, lives.lost_at, lives.up_since) =
                    (lives.engines_lost + 1, Some(SystemTime::now()), None);
            });
            self.status.send_replace(Status::EngineLost);
        }
        self.gate.on_probe(EnginePhase::Lost, Some(0));
    }

    /// Puts an idle engine to sleep, or wakes a sleeping one for a waiting request.
    async fn sleep_or_wake(&mut self) {
        let wanted = self.gate.counts().open > 0;
        let result = match self.gate.phase() {
            EnginePhase::Asleep if wanted => self.wake_up().await,
            EnginePhase::Awake if self.time_until_sleep() == Some(Duration::ZERO) => self.sleep().await,
            _ => return,
        };
        if let Err(unable) = result {
            tracing::warn!(%unable, "could not put the engine to sleep or wake it");
        }
        if self.gate.phase() == EnginePhase::Asleep && self.gate.counts().open > 0 {
            // A request arrived while the engine went to sleep.
            self.gate.monitor_wakeup.notify_one();
        }
    }

    /// Returns the time until the engine has been idle long enough to sleep; `None` = it will not sleep.
    fn time_until_sleep(&self) -> Option<Duration> {
        let counts = self.gate.counts();
        let may = self.state.has_sleep_mode
            && !self.state.has_refused_sleep
            && self.gate.phase() == EnginePhase::Awake;
        let after = self.hibernate_after().filter(|_| may && counts.open == 0)?;
        Some(after.saturating_sub(counts.changed_at.0.elapsed()))
    }

    fn hibernate_after(&self) -> Option<Duration> {
        let seconds =
            self.directives.active().map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        seconds.map_or(self.hibernate_after, |seconds| seconds.map(|s| Duration::from_secs(s.into())))
    }

    async fn on_command(&mut self, order: EngineCommand) {
        // The caller may have disconnected. The command keeps its effect, and a request undoes a sleep.
        match order {
            EngineCommand::Sleep(level, answer) => drop(answer.send(self.on_sleep_command(level).await)),
            EngineCommand::WakeUp(answer) => drop(answer.send(self.on_wake_command().await)),
        }
    }

    async fn on_sleep_command(&mut self, level: SleepLevel) -> Result<(), CallRejected> {
        if level == SleepLevel::Two {
            let why =
                "level 2 discards the weights, and vLLM does not load them again on wake-up; use level 1";
            return Err(CallRejected(why.into()));
        }
        match self.gate.phase() {
            EnginePhase::Asleep => Ok(()),
            EnginePhase::Awake => self.sleep().await,
            EnginePhase::Starting | EnginePhase::Lost | EnginePhase::Suspending | EnginePhase::Waking => {
                Err(CallRejected("the engine does not answer".into()))
            }
        }
    }

    async fn on_wake_command(&mut self) -> Result<(), CallRejected> {
        match self.gate.phase() {
            EnginePhase::Awake => Ok(()),
            EnginePhase::Asleep => self.wake_up().await,
            EnginePhase::Starting | EnginePhase::Lost | EnginePhase::Suspending | EnginePhase::Waking => {
                Err(CallRejected("the engine does not answer".into()))
            }
        }
    }

    async fn sleep(&mut self) -> Result<(), CallRejected> {
        if !self.state.has_sleep_mode {
            return Err(CallRejected(NO_SLEEP_MODE.into()));
        }
        self.gate.begin_suspend().map_err(|open| {
            CallRejected(format!("{open} requests are open; the tenant sleeps only without open requests"))
        })?;
        match self.engine.sleep(SLEEP_WAKE_TIMEOUT).await {
            Ok(()) => {
                tracing::info!("the engine sleeps");
                self.gate.set_phase(EnginePhase::Asleep);
                Ok(())
            }
            Err(trouble) => {
                // The engine's state is unknown, so probe it.
                self.state.has_refused_sleep = true;
                self.probe().await;
                Err(CallRejected(trouble.to_string()))
            }
        }
    }

    async fn wake_up(&mut self) -> Result<(), CallRejected> {
        let start = Instant::now();
        self.gate.set_phase(EnginePhase::Waking);
        let woken = self.engine.wake_up(SLEEP_WAKE_TIMEOUT).await;
        self.state.has_wake_failed = woken.is_err();
        match woken {
            Ok(()) => {
                tracing::info!(seconds = start.elapsed().as_secs_f64(), "the engine is awake");
                let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.metrics.record_wait(&WaitSpan {
                    kind: WaitKind::Wake,
                    since: Nanos(0),
                    until: Nanos(ns),
                });
                self.history.send_modify(|lives| lives.awake_since = Some(SystemTime::now()));
                self.gate.reset_idle();
                self.gate.set_phase(EnginePhase::Awake);
                Ok(())
            }
            Err(trouble) => {
                self.gate.set_phase(EnginePhase::Asleep);
                self.probe().await;
                Err(CallRejected(trouble.to_string()))
            }
        }
    }
}

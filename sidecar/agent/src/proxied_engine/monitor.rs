//! The keeper of the engine: looks whether it is there, puts it to sleep when nobody needs it, wakes it when somebody does.
//!
//! The one place that says what the engine is doing. Requests wait for it in the [`Lobby`] and nudge it.

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

/// How often a calm engine is looked at.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How often one that is not there, or that will not wake, is looked at.
const PROBE_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Silent looks in a row after which an engine counts as lost: a busy one may be late.
const MISSED_PROBES_MAX: u32 = 5;
/// How long falling asleep and waking may take: all weights pass the link.
const SLEEP_WAKE_TIMEOUT: Duration = Duration::from_secs(300);
/// What a vLLM that has no sleep mode lacks.
const NO_SLEEP_MODE: &str =
    "the engine has no sleep mode (vLLM: --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1)";

/// Something to do, and where it is said how it went.
#[derive(Debug)]
pub enum EngineCommand {
    /// Give up all device memory.
    Sleep(SleepLevel, oneshot::Sender<Result<(), CallRejected>>),
    /// Take it back.
    WakeUp(oneshot::Sender<Result<(), CallRejected>>),
}

/// What is told of the engine's lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineHistory {
    /// Engines that were found.
    pub engines_found: u64,
    /// Engines that were lost.
    pub engines_lost: u64,
    /// When the last one was lost.
    pub lost_at: Option<SystemTime>,
    /// Since when the present one is there.
    pub up_since: Option<SystemTime>,
    /// Since when it is awake, or when it was last.
    pub awake_since: Option<SystemTime>,
}

/// What a keeper is made of.
#[derive(Debug)]
pub struct EngineMonitor {
    /// The engine.
    pub engine: EngineClient,
    /// Where requests wait.
    pub gate: RequestGate,
    /// What the admin port wants.
    pub commands: mpsc::UnboundedReceiver<EngineCommand>,
    /// What probes are told.
    pub status: watch::Sender<Status>,
    /// What the state is told.
    pub history: watch::Sender<EngineHistory>,
    /// The directive in force.
    pub directives: Arc<DirectiveStore>,
    /// Without a request for so long the engine sleeps, where no directive says; `None` = never.
    pub hibernate_after: Option<Duration>,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// How it went so far.
    pub state: MonitorState,
}

/// What a keeper remembers of the present engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonitorState {
    /// It serves a sleep mode.
    has_sleep_mode: bool,
    /// It would not fall asleep: not asked again by itself.
    has_refused_sleep: bool,
    missed_probes: u32,
    /// The last attempt to wake it failed.
    has_wake_failed: bool,
}

impl EngineMonitor {
    /// Keeps until the process ends.
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
            // A process that listens and is busy, or that came back: the next look tells.
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
            // Also of one that is known: whoever reaches its port may have put it to sleep or woken it.
            match self.engine.is_sleeping().await {
                Ok(told) => return self.on_sleep_state(new, told).await,
                Err(trouble) => tracing::debug!(%trouble, "it does not say whether it sleeps"),
            }
        }
        let waiting = self.waiting_in_engine().await;
        self.gate.on_probe(phase, waiting);
    }

    /// It answered: `sleeping` says whether it sleeps, `None` = it has no sleep mode.
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
        tracing::info!(sleeps, "the engine answers");
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
            tracing::warn!(%trouble, "the engine is lost; requests are held");
            self.metrics.on_engine_lost();
            self.history.send_modify(|lives| {
                (lives.engines_lost, lives.lost_at, lives.up_since) =
                    (lives.engines_lost + 1, Some(SystemTime::now()), None);
            });
            self.status.send_replace(Status::EngineLost);
        }
        self.gate.on_probe(EnginePhase::Lost, Some(0));
    }

    /// Sleeps when it is time, wakes when a request waits.
    async fn sleep_or_wake(&mut self) {
        let wanted = self.gate.counts().open > 0;
        let result = match self.gate.phase() {
            EnginePhase::Asleep if wanted => self.wake_up().await,
            EnginePhase::Awake if self.time_until_sleep() == Some(Duration::ZERO) => self.sleep().await,
            _ => return,
        };
        if let Err(unable) = result {
            tracing::warn!(%unable, "sleeping or waking failed");
        }
        if self.gate.phase() == EnginePhase::Asleep && self.gate.counts().open > 0 {
            // Somebody came while it fell asleep.
            self.gate.monitor_wakeup.notify_one();
        }
    }

    /// In how long it will have been idle long enough to sleep; `None` = it will not.
    fn time_until_sleep(&self) -> Option<Duration> {
        let counts = self.gate.counts();
        let may = self.state.has_sleep_mode
            && !self.state.has_refused_sleep
            && self.gate.phase() == EnginePhase::Awake;
        let after = self.hibernate_after().filter(|_| may && counts.open == 0)?;
        Some(after.saturating_sub(counts.changed_at.0.elapsed()))
    }

    fn hibernate_after(&self) -> Option<Duration> {
        let told = self.directives.active().map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        told.map_or(self.hibernate_after, |seconds| seconds.map(|s| Duration::from_secs(s.into())))
    }

    async fn on_command(&mut self, order: EngineCommand) {
        // Whoever asked may have gone; what was done stays done, and a request undoes a sleep.
        match order {
            EngineCommand::Sleep(level, answer) => drop(answer.send(self.on_sleep_command(level).await)),
            EngineCommand::WakeUp(answer) => drop(answer.send(self.on_wake_command().await)),
        }
    }

    async fn on_sleep_command(&mut self, level: SleepLevel) -> Result<(), CallRejected> {
        if level == SleepLevel::Two {
            let why = "level 2 discards the weights, and the engine does not load them again by itself; use level 1";
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
        self.gate.begin_suspend().map_err(|open| CallRejected(format!("{open} requests are open")))?;
        match self.engine.sleep(SLEEP_WAKE_TIMEOUT).await {
            Ok(()) => {
                tracing::info!("the engine sleeps");
                self.gate.set_phase(EnginePhase::Asleep);
                Ok(())
            }
            Err(trouble) => {
                // Nobody knows how far it came: the look that follows asks.
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

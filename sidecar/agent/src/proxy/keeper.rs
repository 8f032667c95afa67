//! The keeper of the engine: looks whether it is there, puts it to sleep when nobody needs it, wakes it when somebody does.
//!
//! The one place that says what the engine is doing. Requests wait for it in the [`Lobby`] and nudge it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluice_policy::ids::Nanos;
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use tokio::sync::{mpsc, oneshot, watch};

use super::engine::{Engine, Trouble};
use super::figures::gauge;
use super::lobby::{Lobby, Phase};
use crate::directive::Directives;
use crate::metrics::Metrics;
use crate::neighbours::call::{SleepLevel, Unable};
use crate::service::Status;

/// How often a calm engine is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often one that is not there, or that will not wake, is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Silent looks in a row after which an engine counts as lost: a busy one may be late.
const SILENT_LOOKS_MAX: u32 = 5;
/// How long falling asleep and waking may take: all weights pass the link.
const REST_TIME: Duration = Duration::from_secs(300);
/// What a vLLM that has no sleep mode lacks.
const NO_SLEEP_MODE: &str =
    "the engine has no sleep mode (vLLM: --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1)";

/// Something to do, and where it is said how it went.
#[derive(Debug)]
pub enum Order {
    /// Give up all device memory.
    Sleep(SleepLevel, oneshot::Sender<Result<(), Unable>>),
    /// Take it back.
    WakeUp(oneshot::Sender<Result<(), Unable>>),
}

/// What is told of the engine's lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lives {
    /// Engines that were found.
    pub found: u64,
    /// Engines that were lost.
    pub lost: u64,
    /// When the last one was lost.
    pub lost_at: Option<SystemTime>,
    /// Since when the present one is there.
    pub since: Option<SystemTime>,
    /// Since when it is awake, or when it was last.
    pub awake_since: Option<SystemTime>,
}

/// What a keeper is made of.
#[derive(Debug)]
pub struct Keeper {
    /// The engine.
    pub engine: Engine,
    /// Where requests wait.
    pub lobby: Lobby,
    /// What the admin port wants.
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// What probes are told.
    pub status: watch::Sender<Status>,
    /// What the state is told.
    pub lives: watch::Sender<Lives>,
    /// The directive in force.
    pub directives: Arc<Directives>,
    /// Without a request for so long the engine sleeps, where no directive says; `None` = never.
    pub hibernate_after: Option<Duration>,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// How it went so far.
    pub habits: Habits,
}

/// What a keeper remembers of the present engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// It serves a sleep mode.
    sleeps: bool,
    /// It would not fall asleep: not asked again by itself.
    refused: bool,
    silent_looks: u32,
    /// The last attempt to wake it failed.
    stuck: bool,
}

impl Keeper {
    /// Keeps until the process ends.
    pub async fn keep(mut self) {
        loop {
            self.look().await;
            self.rest_or_rise().await;
            let (nudge, next_look) = (self.lobby.nudge.clone(), self.next_look());
            tokio::select! {
                Some(order) = self.orders.recv() => self.obey(order).await,
                () = nudge.notified() => {}
                () = tokio::time::sleep(next_look) => {}
            }
        }
    }

    fn next_look(&self) -> Duration {
        let trouble = self.habits.stuck || matches!(self.lobby.phase(), Phase::Starting | Phase::Lost);
        let usual = if trouble { LOOK_AGAIN } else { LOOK_EVERY };
        self.sleepy_in().map_or(usual, |sleepy| usual.min(sleepy))
    }

    async fn look(&mut self) {
        match self.engine.health().await {
            Ok(()) => self.there().await,
            // A process that listens and is busy, or that came back: the next look tells.
            Err(Trouble::Late | Trouble::Broken(_)) if self.habits.silent_looks < SILENT_LOOKS_MAX => {
                self.habits.silent_looks += 1;
                self.lobby.looked(self.lobby.phase(), None);
            }
            Err(trouble) => self.gone(&trouble),
        }
    }

    async fn there(&mut self) {
        self.habits.silent_looks = 0;
        let phase = self.lobby.phase();
        let new = matches!(phase, Phase::Starting | Phase::Lost);
        if new || self.habits.sleeps {
            // Also of one that is known: whoever reaches its port may have put it to sleep or woken it.
            match self.engine.is_sleeping().await {
                Ok(told) => return self.seen(new, told).await,
                Err(trouble) => tracing::debug!(%trouble, "it does not say whether it sleeps"),
            }
        }
        let waiting = self.waiting_there().await;
        self.lobby.looked(phase, waiting);
    }

    /// It answered: `sleeping` says whether it sleeps, `None` = it has no sleep mode.
    async fn seen(&mut self, new: bool, sleeping: Option<bool>) {
        if new {
            self.found(sleeping.is_some());
        }
        self.habits.sleeps = sleeping.is_some();
        let waiting = self.waiting_there().await;
        self.lobby.looked(if sleeping == Some(true) { Phase::Asleep } else { Phase::Awake }, waiting);
    }

    async fn waiting_there(&self) -> Option<u64> {
        gauge(&self.engine.metrics().await.ok()?, "vllm:num_requests_waiting")
    }

    fn found(&mut self, sleeps: bool) {
        tracing::info!(sleeps, "the engine answers");
        self.habits = Habits { sleeps, ..Habits::default() };
        self.lives.send_modify(|lives| {
            let now = Some(SystemTime::now());
            (lives.found, lives.since, lives.awake_since) = (lives.found + 1, now, now);
        });
        self.status.send_replace(Status::Serving);
        self.lobby.stir();
    }

    fn gone(&mut self, trouble: &Trouble) {
        if self.lobby.phase() == Phase::Starting {
            tracing::debug!(%trouble, "the engine does not answer yet");
            return self.lobby.looked(Phase::Starting, None);
        }
        if self.lobby.phase() != Phase::Lost {
            tracing::warn!(%trouble, "the engine is lost; requests are held");
            self.metrics.engine_lost();
            self.lives.send_modify(|lives| {
                (lives.lost, lives.lost_at, lives.since) = (lives.lost + 1, Some(SystemTime::now()), None);
            });
            self.status.send_replace(Status::EngineLost);
        }
        self.lobby.looked(Phase::Lost, Some(0));
    }

    /// Sleeps when it is time, wakes when a request waits.
    async fn rest_or_rise(&mut self) {
        let wanted = self.lobby.counts().open > 0;
        let result = match self.lobby.phase() {
            Phase::Asleep if wanted => self.wake_up().await,
            Phase::Awake if self.sleepy_in() == Some(Duration::ZERO) => self.sleep().await,
            _ => return,
        };
        if let Err(unable) = result {
            tracing::warn!(%unable, "sleeping or waking failed");
        }
        if self.lobby.phase() == Phase::Asleep && self.lobby.counts().open > 0 {
            // Somebody came while it fell asleep.
            self.lobby.nudge.notify_one();
        }
    }

    /// In how long it will have been idle long enough to sleep; `None` = it will not.
    fn sleepy_in(&self) -> Option<Duration> {
        let counts = self.lobby.counts();
        let may = self.habits.sleeps && !self.habits.refused && self.lobby.phase() == Phase::Awake;
        let after = self.hibernate_after().filter(|_| may && counts.open == 0)?;
        Some(after.saturating_sub(counts.changed.0.elapsed()))
    }

    fn hibernate_after(&self) -> Option<Duration> {
        let told =
            self.directives.in_force().map(|in_force| in_force.directive.tenant.hibernate_after_seconds);
        told.map_or(self.hibernate_after, |seconds| seconds.map(|s| Duration::from_secs(s.into())))
    }

    async fn obey(&mut self, order: Order) {
        // Whoever asked may have gone; what was done stays done, and a request undoes a sleep.
        match order {
            Order::Sleep(level, answer) => drop(answer.send(self.told_to_sleep(level).await)),
            Order::WakeUp(answer) => drop(answer.send(self.told_to_wake().await)),
        }
    }

    async fn told_to_sleep(&mut self, level: SleepLevel) -> Result<(), Unable> {
        if level == SleepLevel::Two {
            let why = "level 2 discards the weights, and the engine does not load them again by itself; use level 1";
            return Err(Unable(why.into()));
        }
        match self.lobby.phase() {
            Phase::Asleep => Ok(()),
            Phase::Awake => self.sleep().await,
            Phase::Starting | Phase::Lost | Phase::FallingAsleep | Phase::Waking => {
                Err(Unable("the engine does not answer".into()))
            }
        }
    }

    async fn told_to_wake(&mut self) -> Result<(), Unable> {
        match self.lobby.phase() {
            Phase::Awake => Ok(()),
            Phase::Asleep => self.wake_up().await,
            Phase::Starting | Phase::Lost | Phase::FallingAsleep | Phase::Waking => {
                Err(Unable("the engine does not answer".into()))
            }
        }
    }

    async fn sleep(&mut self) -> Result<(), Unable> {
        if !self.habits.sleeps {
            return Err(Unable(NO_SLEEP_MODE.into()));
        }
        self.lobby.close().map_err(|open| Unable(format!("{open} requests are open")))?;
        match self.engine.sleep(REST_TIME).await {
            Ok(()) => {
                tracing::info!("the engine sleeps");
                self.lobby.set(Phase::Asleep);
                Ok(())
            }
            Err(trouble) => {
                // Nobody knows how far it came: the look that follows asks.
                self.habits.refused = true;
                self.look().await;
                Err(Unable(trouble.to_string()))
            }
        }
    }

    async fn wake_up(&mut self) -> Result<(), Unable> {
        let start = Instant::now();
        self.lobby.set(Phase::Waking);
        let woken = self.engine.wake_up(REST_TIME).await;
        self.habits.stuck = woken.is_err();
        match woken {
            Ok(()) => {
                tracing::info!(seconds = start.elapsed().as_secs_f64(), "the engine is awake");
                let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.metrics.waited(&WaitSpan { kind: WaitKind::Wake, since: Nanos(0), until: Nanos(ns) });
                self.lives.send_modify(|lives| lives.awake_since = Some(SystemTime::now()));
                self.lobby.stir();
                self.lobby.set(Phase::Awake);
                Ok(())
            }
            Err(trouble) => {
                self.lobby.set(Phase::Asleep);
                self.look().await;
                Err(Unable(trouble.to_string()))
            }
        }
    }
}

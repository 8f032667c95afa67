//! Handles the messages of probes and admin port for a proxied engine: the state, and sleep and wake commands.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime};

use sluice_wire::State;
use sluice_wire::state::{Activity, EngineState, Figures, Phase as ReportedPhase, Queue, Tenant};
use tokio::sync::{mpsc, watch};

use super::engine::EngineClient;
use super::monitor::{EngineCommand, EngineHistory};
use super::request_gate::{EnginePhase, RequestCounts, RequestGate};
use crate::clock::unix_ms;
use crate::directive::DirectiveStore;
use crate::metrics::Metrics;
use crate::peers::admin_call::{AdminCall, CallRejected, reject_grant};
use crate::scheduler_handle::SchedulerMessage;

/// Replies to messages for a tenant with a proxied engine.
#[derive(Debug)]
pub struct AdminHandler {
    /// Identity of the tenant.
    pub tenant: Tenant,
    /// Named policy of the pool. It moves no memory here.
    pub policy: String,
    /// The engine.
    pub engine: EngineClient,
    /// Commands to the engine's monitor.
    pub commands: mpsc::UnboundedSender<EngineCommand>,
    /// Gate with the counts of requests.
    pub gate: RequestGate,
    /// History of the engine.
    pub history: watch::Receiver<EngineHistory>,
    /// Store of the active directive.
    pub directives: Arc<DirectiveStore>,
    /// Metrics of this sidecar.
    pub metrics: Arc<Metrics>,
    /// Last reported phase, and its start.
    pub reported: (ReportedPhase, SystemTime),
}

/// Forwards messages from a blocking channel to an async one, until [`SchedulerMessage::Stop`].
pub fn forward(
    messages: Receiver<SchedulerMessage>,
) -> std::io::Result<mpsc::UnboundedReceiver<SchedulerMessage>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("desk".into()).spawn(move || {
        for message in messages {
            if matches!(message, SchedulerMessage::Stop) || sender.send(message).is_err() {
                break;
            }
        }
    })?;
    Ok(receiver)
}

impl AdminHandler {
    /// Handles messages until all senders are dropped.
    pub async fn run(mut self, mut messages: mpsc::UnboundedReceiver<SchedulerMessage>) {
        loop {
            // Also updates the phase twice a second, so that its start is accurate.
            let message = tokio::time::timeout(Duration::from_millis(500), messages.recv()).await;
            self.update_phase(SystemTime::now());
            match message {
                Err(_) => {}
                Ok(None) => return,
                Ok(Some(message)) => self.on_message(message),
            }
        }
    }

    fn on_message(&mut self, message: SchedulerMessage) {
        match message {
            // Fails if the caller has disconnected.
            SchedulerMessage::State(answer) => drop(answer.send(Box::new(self.state()))),
            SchedulerMessage::Admin(call) => self.on_call(call),
            // A directive has arrived.
            SchedulerMessage::Wake => self.gate.monitor_wakeup.notify_one(),
            // A proxied tenant has no native requests, engine link or peers.
            SchedulerMessage::Submit(..)
            | SchedulerMessage::Cancel(_)
            | SchedulerMessage::Engine(_)
            | SchedulerMessage::Peer(_)
            | SchedulerMessage::Stop => {}
        }
    }

    fn on_call(&self, call: AdminCall) {
        let order = match call {
            // The engine owns its memory: there is none to lend, and a loan cannot be used.
            AdminCall::Grant(_, answer) => return reject_grant(answer),
            AdminCall::IsSleeping(answer) => {
                let engine = self.engine.clone();
                tokio::spawn(async move {
                    let is_sleeping =
                        engine.is_sleeping().await.map_err(|trouble| CallRejected(trouble.to_string()));
                    // An engine without sleep mode is awake.
                    answer.send(is_sleeping.map(|sleeping| sleeping.unwrap_or(false)))
                });
                return;
            }
            AdminCall::Sleep(level, answer) => EngineCommand::Sleep(level, answer),
            AdminCall::WakeUp(answer) => EngineCommand::WakeUp(answer),
        };
        // If the monitor is gone, the reply's sender is dropped and the caller gets an error.
        let _ = self.commands.send(order);
    }

    fn update_phase(&mut self, now: SystemTime) {
        let phase = self.phase(&self.gate.counts(), now);
        if phase != self.reported.0 {
            self.reported = (phase, now);
        }
    }

    fn phase(&self, counts: &RequestCounts, now: SystemTime) -> ReportedPhase {
        match self.gate.phase() {
            EnginePhase::Starting => ReportedPhase::Loading,
            EnginePhase::Lost => ReportedPhase::EngineLost,
            EnginePhase::Suspending | EnginePhase::Asleep => ReportedPhase::Hibernated,
            EnginePhase::Waking => ReportedPhase::Waking,
            EnginePhase::Awake => {
                let idle_for = now.duration_since(counts.changed_at.1).unwrap_or_default();
                let idle = counts.open == 0 && idle_for >= self.idle_after();
                if idle { ReportedPhase::Idle } else { ReportedPhase::Active }
            }
        }
    }

    /// Returns the time without requests after which the tenant counts as idle; zero without a directive.
    fn idle_after(&self) -> Duration {
        let seconds = self.directives.active().map(|in_force| in_force.directive.tenant.idle_after_seconds);
        Duration::from_secs(seconds.unwrap_or(0).into())
    }

    /// Builds the state. The sidecar does not know the engine's memory: sizes are 0 and there are no layers.
    fn state(&self) -> State {
        let (counts, lives) = (self.gate.counts(), *self.history.borrow());
        let (phase, since) = self.reported;
        let idle_since = (counts.open == 0).then(|| unix_ms(counts.changed_at.1));
        State {
            at_unix_ms: unix_ms(SystemTime::now()),
            tenant: self.tenant.clone(),
            phase,
            phase_since_unix_ms: unix_ms(since),
            idle_since_unix_ms: idle_since,
            policy: self.policy.clone(),
            queue: queue(&counts),
            streams: self.metrics.streams(),
            figures: self.figures(),
            slo: self.metrics.slo(),
            engine: engine(lives),
            activity: self.activity(&counts, lives, idle_since),
            ..State::default()
        }
    }

    fn figures(&self) -> Figures {
        let (prefill_tokens_total, decode_tokens_total) = self.metrics.tokens();
        Figures {
            engine_tbt: self.metrics.engine_tbt(),
            delivered_tbt: self.metrics.delivered_tbt(),
            ttft: self.metrics.ttft(),
            prefill_tokens_total,
            decode_tokens_total,
            ..Figures::default()
        }
    }

    fn activity(&self, counts: &RequestCounts, lives: EngineHistory, idle_since: Option<u64>) -> Activity {
        let awake = self.gate.phase() == EnginePhase::Awake;
        let resident = if awake { lives.awake_since } else { None };
        Activity {
            inactive_since_unix_ms: idle_since,
            last_used_unix_ms: counts.last_used_at.map(unix_ms),
            next_use_in_ms: None,
            resident_since_unix_ms: resident.map(unix_ms),
            lent_layers: 0,
        }
    }
}

fn queue(counts: &RequestCounts) -> Queue {
    let sent = counts.open.saturating_sub(counts.held);
    let waiting_there = counts.waiting_in_engine.min(sent);
    Queue { waiting: counts.held + waiting_there, running: sent - waiting_there, preempted: 0 }
}

fn engine(lives: EngineHistory) -> EngineState {
    EngineState {
        pid: None,
        restarts: lives.engines_lost,
        attempt: lives.engines_found,
        up_since_unix_ms: lives.up_since.map(unix_ms),
        lost_unix_ms: lives.lost_at.map(unix_ms),
        ..EngineState::default()
    }
}

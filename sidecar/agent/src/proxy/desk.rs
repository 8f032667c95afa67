//! What a scheduler's thread answers where there is one: the state, and the orders of the admin port.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime};

use sluice_wire::State;
use sluice_wire::state::{Activity, EngineState, Figures, Phase as Told, Queue, Tenant};
use tokio::sync::{mpsc, watch};

use super::engine::Engine;
use super::keeper::{Lives, Order};
use super::lobby::{Counts, Lobby, Phase};
use crate::clock::unix_ms;
use crate::directive::Directives;
use crate::metrics::Metrics;
use crate::neighbours::call::{Call, Unable, decline};
use crate::service::Message;

/// Answers what is asked about a tenant whose engine is proxied.
#[derive(Debug)]
pub struct Desk {
    /// Who this is.
    pub tenant: Tenant,
    /// Named policy of the pool. No memory is moved by it.
    pub policy: String,
    /// The engine.
    pub engine: Engine,
    /// Its keeper.
    pub orders: mpsc::UnboundedSender<Order>,
    /// Requests.
    pub lobby: Lobby,
    /// Engines so far.
    pub lives: watch::Receiver<Lives>,
    /// The directive in force.
    pub directives: Arc<Directives>,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// What was told last, and since when it is so.
    pub told: (Told, SystemTime),
}

/// Passes messages on from their queue, which blocks, to one that does not, until [`Message::Stop`].
pub fn pass_on(messages: Receiver<Message>) -> std::io::Result<mpsc::UnboundedReceiver<Message>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("desk".into()).spawn(move || {
        for message in messages {
            if matches!(message, Message::Stop) || sender.send(message).is_err() {
                break;
            }
        }
    })?;
    Ok(receiver)
}

impl Desk {
    /// Answers until nobody asks any more.
    pub async fn answer(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        loop {
            // Twice a second also unasked, so that the state knows since when it is what it is.
            let message = tokio::time::timeout(Duration::from_millis(500), messages.recv()).await;
            self.observe(SystemTime::now());
            match message {
                Err(_) => {}
                Ok(None) => return,
                Ok(Some(message)) => self.take(message),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            // Whoever asked may have gone.
            Message::State(answer) => drop(answer.send(Box::new(self.state()))),
            Message::Call(call) => self.call(call),
            // A directive has come.
            Message::Wake => self.lobby.nudge.notify_one(),
            // Of requests, engines and neighbours that this tenant does not have.
            Message::Submit(..)
            | Message::Cancel(_)
            | Message::Engine(_)
            | Message::Neighbour(_)
            | Message::Stop => {}
        }
    }

    fn call(&self, call: Call) {
        let order = match call {
            // Its memory is the engine's: there is nothing to lend, and no way to use a loan.
            Call::Grant(_, answer) => return decline(answer),
            Call::IsSleeping(answer) => {
                let engine = self.engine.clone();
                tokio::spawn(async move {
                    let told = engine.is_sleeping().await.map_err(|trouble| Unable(trouble.to_string()));
                    // One without a sleep mode is awake.
                    answer.send(told.map(|sleeping| sleeping.unwrap_or(false)))
                });
                return;
            }
            Call::Sleep(level, answer) => Order::Sleep(level, answer),
            Call::WakeUp(answer) => Order::WakeUp(answer),
        };
        // A keeper that has gone takes the answer with it, and whoever asked sees that.
        let _ = self.orders.send(order);
    }

    fn observe(&mut self, now: SystemTime) {
        let phase = self.phase(&self.lobby.counts(), now);
        if phase != self.told.0 {
            self.told = (phase, now);
        }
    }

    fn phase(&self, counts: &Counts, now: SystemTime) -> Told {
        match self.lobby.phase() {
            Phase::Starting => Told::Loading,
            Phase::Lost => Told::EngineLost,
            Phase::FallingAsleep | Phase::Asleep => Told::Hibernated,
            Phase::Waking => Told::Waking,
            Phase::Awake => {
                let idle_for = now.duration_since(counts.changed.1).unwrap_or_default();
                let idle = counts.open == 0 && idle_for >= self.idle_after();
                if idle { Told::Idle } else { Told::Active }
            }
        }
    }

    /// Without a request for so long the tenant counts as idle; at once where no directive says.
    fn idle_after(&self) -> Duration {
        let told = self.directives.in_force().map(|in_force| in_force.directive.tenant.idle_after_seconds);
        Duration::from_secs(told.unwrap_or(0).into())
    }

    /// The state. Of its memory nothing is known here, and nothing is told: sizes are 0, and there are no layers.
    fn state(&self) -> State {
        let (counts, lives) = (self.lobby.counts(), *self.lives.borrow());
        let (phase, since) = self.told;
        let idle_since = (counts.open == 0).then(|| unix_ms(counts.changed.1));
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

    fn activity(&self, counts: &Counts, lives: Lives, idle_since: Option<u64>) -> Activity {
        let awake = self.lobby.phase() == Phase::Awake;
        let resident = if awake { lives.awake_since } else { None };
        Activity {
            inactive_since_unix_ms: idle_since,
            last_used_unix_ms: counts.used.map(unix_ms),
            next_use_in_ms: None,
            resident_since_unix_ms: resident.map(unix_ms),
            absent_layers: 0,
        }
    }
}

fn queue(counts: &Counts) -> Queue {
    let sent = counts.open.saturating_sub(counts.held);
    let waiting_there = counts.waiting_there.min(sent);
    Queue { waiting: counts.held + waiting_there, running: sent - waiting_there, preempted: 0 }
}

fn engine(lives: Lives) -> EngineState {
    EngineState {
        pid: None,
        restarts: lives.lost,
        attempt: lives.found,
        up_since_unix_ms: lives.since.map(unix_ms),
        lost_unix_ms: lives.lost_at.map(unix_ms),
        ..EngineState::default()
    }
}

//! Inbox of a tenant that waits during its start: for its record in the ledger, its first engine or its floor. It
//! answers queries and buffers requests. Any event that may end the wait returns at once.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use sluice_ports::EngineHello;
use sluice_scheduler::Request;
use sluice_wire::State;
use sluice_wire::grants::{GrantAnswer, GrantRequest, RefusalReason};
use sluice_wire::state::{EngineState, Phase, SharingState};
use tokio::sync::mpsc::UnboundedSender;

use super::error::LoadError;
use crate::clock::unix_ms;
use crate::engine_loop::engine_event::{Attached, EngineConnEvent};
use crate::peers::admin_call::{AdminCall, CallRejected};
use crate::scheduler_handle::{RequestUpdate, SchedulerMessage};

/// Receiver of messages until the engine loop takes it over.
pub(super) struct StartupInbox {
    messages: Receiver<SchedulerMessage>,
    engine: Option<Attached>,
    requests: Vec<(Request, UnboundedSender<RequestUpdate>)>,
    state: State,
}

/// Handed over to the engine loop.
pub(super) struct Handoff {
    pub messages: Receiver<SchedulerMessage>,
    /// Requests received during the wait.
    pub buffered: Vec<SchedulerMessage>,
}

impl StartupInbox {
    /// Creates the inbox. `state` is the tenant's state so far.
    pub fn new(messages: Receiver<SchedulerMessage>, state: State) -> StartupInbox {
        let state = State { phase: Phase::Loading, phase_since_unix_ms: unix_ms(SystemTime::now()), ..state };
        StartupInbox { messages, engine: None, requests: Vec::new(), state }
    }

    /// Returns the hello of the attached engine.
    pub fn engine(&self) -> Option<&EngineHello> {
        self.engine.as_ref().map(|engine| &engine.hello)
    }

    /// Sets the peer state that is reported from now on.
    pub fn set_peer_state(&mut self, place: SharingState) {
        let memory = &mut self.state.memory;
        (memory.capacity_bytes, memory.owners.free_bytes) = (place.budget_bytes, place.budget_bytes);
        self.state.peers = Some(place);
    }

    /// Handles messages until an engine attaches or is lost, a wake-up arrives, or `limit` has passed.
    ///
    /// # Errors
    /// [`LoadError::Stopped`].
    pub fn wait(&mut self, limit: Duration) -> Result<(), LoadError> {
        let until = Instant::now() + limit;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) | Ok(SchedulerMessage::Stop) => {
                    return Err(LoadError::Stopped);
                }
                Ok(message) => {
                    if self.on_message(message) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Hands over the attached engine, if any, the inbox and the buffered requests.
    pub fn into_handoff(self) -> (Option<Attached>, Handoff) {
        let early =
            self.requests.into_iter().map(|(request, updates)| SchedulerMessage::Submit(request, updates));
        (self.engine, Handoff { messages: self.messages, buffered: early.collect() })
    }

    /// Sends the attached engine a goodbye, so that its supervisor need not kill it.
    pub fn shutdown_engine(&self) {
        if let Some(engine) = &self.engine {
            drop(engine.sender.send_bye());
        }
    }

    /// Returns true if the wait may be over.
    fn on_message(&mut self, message: SchedulerMessage) -> bool {
        match message {
            SchedulerMessage::Submit(request, updates) => self.requests.push((request, updates)),
            SchedulerMessage::Cancel(id) => self.requests.retain(|(request, _)| request.id != id),
            SchedulerMessage::Engine(news) => return self.on_engine_event(*news),
            SchedulerMessage::Wake => return true,
            // The receiver may be dropped.
            SchedulerMessage::State(reply) => drop(reply.send(Box::new(self.state()))),
            SchedulerMessage::Admin(call) => reply_not_loaded(call),
            // Peer events begin with the engine loop. `wait` handles `Stop`.
            SchedulerMessage::Peer(_) | SchedulerMessage::Stop => {}
        }
        false
    }

    fn on_engine_event(&mut self, news: EngineConnEvent) -> bool {
        match news {
            EngineConnEvent::Attached(engine) => self.engine = Some(engine),
            EngineConnEvent::Lost(why) => {
                tracing::warn!(why, "an engine was lost before its first use");
                self.engine = None;
                self.state.engine.restarts += 1;
            }
            // The engine has received no order, so it has nothing to answer.
            EngineConnEvent::Event(_) => return false,
        }
        true
    }

    fn state(&self) -> State {
        let pid = self.engine().map(|hello| hello.pid);
        let engine = EngineState { pid, ..self.state.engine.clone() };
        State { at_unix_ms: unix_ms(SystemTime::now()), engine, ..self.state.clone() }
    }
}

/// Replies to a call while the tenant holds no memory.
fn reply_not_loaded(call: AdminCall) {
    // Receivers of replies may be dropped, here and below.
    match call {
        AdminCall::Sleep(_, answer) | AdminCall::WakeUp(answer) => {
            drop(answer.send(Err(CallRejected("the tenant has not loaded yet".into()))));
        }
        AdminCall::IsSleeping(answer) => drop(answer.send(Ok(false))),
        AdminCall::Grant(request, answer) => drop(answer.send(grant_answer(&request))),
    }
}

fn grant_answer(request: &GrantRequest) -> GrantAnswer {
    match request {
        GrantRequest::Ask { .. } => GrantAnswer::refused(RefusalReason::Busy),
        GrantRequest::Cancel { nonce, .. } => GrantAnswer::Cancelled { nonce: *nonce },
        // Loans of an earlier instance ended with it.
        GrantRequest::Renew { .. } | GrantRequest::Revoke { .. } => {
            GrantAnswer::refused(RefusalReason::UnknownGrant)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_policy::ids::RequestId;
    use sluice_ports::sampling::Sampling;
    use sluice_wire::grants::Participant;
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::scheduler_handle::MessageSender;

    const SHORT_WAIT: Duration = Duration::from_millis(1);

    fn startup_inbox() -> (MessageSender, StartupInbox) {
        let (inbox, messages) = MessageSender::new();
        (inbox, StartupInbox::new(messages, State::default()))
    }

    fn request(id: u64) -> SchedulerMessage {
        let sampling = Arc::new(Sampling::default());
        let (id, prompt) = (RequestId(id), vec![1]);
        let request = Request { id, prompt, max_tokens: 1, sampling, priority: 0, salt: 0, paced: false };
        SchedulerMessage::Submit(request, mpsc::unbounded_channel().0)
    }

    #[test]
    fn queries_are_answered_and_live_requests_are_kept() {
        let (inbox, mut held_inbox) = startup_inbox();
        let waits_for = Some("room".to_owned());
        held_inbox.set_peer_state(SharingState {
            budget_bytes: 7,
            waits_for: waits_for.clone(),
            ..Default::default()
        });
        let ((state, state_reply), (asked, answered)) = (oneshot::channel(), oneshot::channel());
        let borrower = Participant { namespace: "n".into(), name: "a".into(), index: 0, instance: 1 };
        let ask = GrantRequest::Ask { borrower, nonce: 1, bytes: 1, ttl_ms: 1 };
        for message in [request(1), request(2), request(3), SchedulerMessage::Cancel(RequestId(2))] {
            inbox.send(message);
        }
        inbox.send(SchedulerMessage::State(state));
        inbox.send(SchedulerMessage::Admin(AdminCall::Grant(ask, asked)));
        held_inbox.wait(SHORT_WAIT).expect("it was not ordered to stop");
        let reported = state_reply.blocking_recv().expect("an answer");
        assert_eq!((reported.phase, reported.peers.clone().unwrap().waits_for), (Phase::Loading, waits_for));
        assert!(
            reported.memory.balances() && reported.at_unix_ms >= reported.phase_since_unix_ms,
            "{reported:?}"
        );
        assert_eq!(answered.blocking_recv().unwrap(), GrantAnswer::refused(RefusalReason::Busy));
        let ids = held_inbox.into_handoff().1.buffered.into_iter().map(|message| match message {
            SchedulerMessage::Submit(request, _) => request.id.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn wake_and_stop_end_a_wait() {
        let (inbox, mut held_inbox) = startup_inbox();
        let for_ever = Duration::from_secs(3600);
        inbox.send(SchedulerMessage::Wake);
        held_inbox.wait(for_ever).expect("it was woken");
        inbox.send(SchedulerMessage::Stop);
        assert!(matches!(held_inbox.wait(for_ever), Err(LoadError::Stopped)));
        drop(inbox);
        assert!(matches!(held_inbox.wait(for_ever), Err(LoadError::Stopped)), "no sender is left");
    }
}

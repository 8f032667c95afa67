//! Where a tenant waits before its room opens: for its record in the ledger, for its first engine, for its floor. Whoever asks
//! meanwhile is told that, requests are kept, and whatever may end the wait ends it at once.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use sluice_ports::EngineHello;
use sluice_scheduler::Request;
use sluice_wire::State;
use sluice_wire::grants::{GrantAnswer, GrantRequest, RefusalReason};
use sluice_wire::state::{EngineState, Neighbourhood, Phase};
use tokio::sync::mpsc::UnboundedSender;

use super::LoadError;
use crate::clock::unix_ms;
use crate::neighbours::call::{Call, Unable};
use crate::room::door::{Attached, News};
use crate::service::{Message, Update};

/// The reading end of the inbox until the room has it.
pub(super) struct Anteroom {
    messages: Receiver<Message>,
    engine: Option<Attached>,
    requests: Vec<(Request, UnboundedSender<Update>)>,
    state: State,
}

/// What the room takes over.
pub(super) struct Left {
    pub messages: Receiver<Message>,
    /// Those that came early.
    pub early: Vec<Message>,
}

impl Anteroom {
    /// `state` is what is known of the tenant so far.
    pub fn new(messages: Receiver<Message>, state: State) -> Anteroom {
        let state = State { phase: Phase::Loading, phase_since_unix_ms: unix_ms(SystemTime::now()), ..state };
        Anteroom { messages, engine: None, requests: Vec::new(), state }
    }

    /// What the engine that has come said of itself.
    pub fn engine(&self) -> Option<&EngineHello> {
        self.engine.as_ref().map(|engine| &engine.hello)
    }

    /// What is told of the tenant's place among its neighbours from now on.
    pub fn say(&mut self, place: Neighbourhood) {
        let memory = &mut self.state.memory;
        (memory.capacity_bytes, memory.owners.free_bytes) = (place.budget_bytes, place.budget_bytes);
        self.state.neighbourhood = Some(place);
    }

    /// Takes what comes, until an engine comes or goes, somebody wakes the tenant, or `limit` is over.
    ///
    /// # Errors
    /// [`LoadError::Stopped`].
    pub fn wait(&mut self, limit: Duration) -> Result<(), LoadError> {
        let until = Instant::now() + limit;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) | Ok(Message::Stop) => return Err(LoadError::Stopped),
                Ok(message) => {
                    if self.take(message) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Opens the door to the room: with the engine, if there is one.
    pub fn leave(self) -> (Option<Attached>, Left) {
        let early = self.requests.into_iter().map(|(request, updates)| Message::Submit(request, updates));
        (self.engine, Left { messages: self.messages, early: early.collect() })
    }

    /// An engine that nobody needs is told, or whoever ends it would have to kill it.
    pub fn dismiss(&self) {
        if let Some(engine) = &self.engine {
            drop(engine.sender.bye());
        }
    }

    /// True when it may be what was waited for.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Submit(request, updates) => self.requests.push((request, updates)),
            Message::Cancel(id) => self.requests.retain(|(request, _)| request.id != id),
            Message::Engine(news) => return self.hear(*news),
            Message::Wake => return true,
            // Whoever asked may have gone.
            Message::State(reply) => drop(reply.send(Box::new(self.state()))),
            Message::Call(call) => answer(call),
            // Of the office, which opens with the room, and of the loop above.
            Message::Neighbour(_) | Message::Stop => {}
        }
        false
    }

    fn hear(&mut self, news: News) -> bool {
        match news {
            News::Attached(engine) => self.engine = Some(engine),
            News::Lost(why) => {
                tracing::warn!(why, "an engine was lost before it was used");
                self.engine = None;
                self.state.engine.restarts += 1;
            }
            // Of an engine that was told nothing.
            News::Event(_) => return false,
        }
        true
    }

    fn state(&self) -> State {
        let pid = self.engine().map(|hello| hello.pid);
        let engine = EngineState { pid, ..self.state.engine.clone() };
        State { at_unix_ms: unix_ms(SystemTime::now()), engine, ..self.state.clone() }
    }
}

/// The answer of a tenant that holds nothing yet.
fn answer(call: Call) {
    // Whoever asked may have gone, here as below.
    match call {
        Call::Sleep(_, answer) | Call::WakeUp(answer) => {
            drop(answer.send(Err(Unable("the tenant has not loaded".into()))));
        }
        Call::IsSleeping(answer) => drop(answer.send(Ok(false))),
        Call::Grant(request, answer) => drop(answer.send(grant(&request))),
    }
}

fn grant(request: &GrantRequest) -> GrantAnswer {
    match request {
        GrantRequest::Ask { .. } => GrantAnswer::refused(RefusalReason::Busy),
        GrantRequest::Cancel { nonce, .. } => GrantAnswer::Cancelled { nonce: *nonce },
        // What a former life had went with it.
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
    use crate::service::Inbox;

    const SOON: Duration = Duration::from_millis(1);

    fn anteroom() -> (Inbox, Anteroom) {
        let (inbox, messages) = Inbox::new();
        (inbox, Anteroom::new(messages, State::default()))
    }

    fn request(id: u64) -> Message {
        let sampling = Arc::new(Sampling::default());
        let (id, prompt) = (RequestId(id), vec![1]);
        let request = Request { id, prompt, max_tokens: 1, sampling, priority: 0, salt: 0, paced: false };
        Message::Submit(request, mpsc::unbounded_channel().0)
    }

    #[test]
    fn whoever_asks_is_answered_and_requests_wait_unless_their_clients_have_gone() {
        let (inbox, mut anteroom) = anteroom();
        let waits_for = Some("room".to_owned());
        anteroom.say(Neighbourhood { budget_bytes: 7, waits_for: waits_for.clone(), ..Default::default() });
        let ((state, told), (asked, answered)) = (oneshot::channel(), oneshot::channel());
        let borrower = Participant { namespace: "n".into(), name: "a".into(), index: 0, instance: 1 };
        let ask = GrantRequest::Ask { borrower, nonce: 1, bytes: 1, ttl_ms: 1 };
        for message in [request(1), request(2), request(3), Message::Cancel(RequestId(2))] {
            inbox.send(message);
        }
        inbox.send(Message::State(state));
        inbox.send(Message::Call(Call::Grant(ask, asked)));
        anteroom.wait(SOON).expect("nobody has told it to stop");
        let told = told.blocking_recv().expect("an answer");
        assert_eq!((told.phase, told.neighbourhood.clone().unwrap().waits_for), (Phase::Loading, waits_for));
        assert!(told.memory.balances() && told.at_unix_ms >= told.phase_since_unix_ms, "{told:?}");
        assert_eq!(answered.blocking_recv().unwrap(), GrantAnswer::refused(RefusalReason::Busy));
        let ids = anteroom.leave().1.early.into_iter().map(|message| match message {
            Message::Submit(request, _) => request.id.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_directive_ends_a_wait_at_once_and_so_does_the_end() {
        let (inbox, mut anteroom) = anteroom();
        let for_ever = Duration::from_secs(3600);
        inbox.send(Message::Wake);
        anteroom.wait(for_ever).expect("it was woken");
        inbox.send(Message::Stop);
        assert!(matches!(anteroom.wait(for_ever), Err(LoadError::Stopped)));
        drop(inbox);
        assert!(matches!(anteroom.wait(for_ever), Err(LoadError::Stopped)), "nobody is left to tell it");
    }
}

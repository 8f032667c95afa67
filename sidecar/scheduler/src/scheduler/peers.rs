//! The turn, and what is traded with neighbours between two steps.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::SleepState;
use sluice_policy::peers::time_slice::{Decision, Holder, Quantum};
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};

use super::Scheduler;
use crate::config::Sharing;
use crate::event::{Command, SchedulerOutput};
use crate::sequence::Sequence;

/// One of so many steps is left to decodes that are thought to take most of a turn.
const LOOK_EVERY: u64 = 8;

/// The right to run steps, where tenants take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SliceState {
    /// Nobody has asked for it.
    #[default]
    NotQueued,
    /// It was asked for.
    Queued {
        /// When.
        since: Nanos,
    },
    /// It is here.
    Held {
        /// Of this turn.
        epoch: u64,
        /// Since when.
        since: Nanos,
        /// A step of this turn has begun.
        has_run: bool,
        /// A neighbour waits for it.
        requested_at: bool,
    },
}

impl Scheduler {
    /// A neighbour said something, or the turn has come.
    pub(super) fn on_peer_event(&mut self, now: Nanos, event: PeerPortEvent) {
        match (event, self.turn) {
            (PeerPortEvent::Peer(news), _) => {
                if let Some(trader) = &mut self.negotiator {
                    trader.on_event(now, news, &mut self.manager);
                }
            }
            (PeerPortEvent::SliceGranted { epoch }, SliceState::Queued { since }) => {
                self.counters.turns += 1;
                self.counters.turn_wait_ns += now.since(since);
                self.outputs.push(SchedulerOutput::Waited(WaitSpan {
                    kind: WaitKind::Turn,
                    since,
                    until: now,
                }));
                self.turn = SliceState::Held { epoch, since: now, has_run: false, requested_at: false };
            }
            (PeerPortEvent::SliceGranted { .. }, SliceState::NotQueued | SliceState::Held { .. }) => {}
            (PeerPortEvent::SliceTakenOver { epoch: lost }, SliceState::Held { epoch, since, .. })
                if lost == epoch =>
            {
                self.counters.turn_held_ns += now.since(since);
                (self.turn, self.quantum_expired) = (SliceState::NotQueued, false);
            }
            (PeerPortEvent::SliceTakenOver { .. }, _) => {}
            (PeerPortEvent::SliceRequested { epoch: wanted }, _) => {
                if let SliceState::Held { epoch, requested_at: sought, .. } = &mut self.turn {
                    // What was said of a turn before says nothing of this one.
                    *sought |= *epoch == wanted;
                }
            }
        }
    }

    /// Whether a step may begin now: always, or in the tenant's turn. Asks for the turn and gives it up.
    pub(super) fn can_run(&mut self, now: Nanos) -> bool {
        let busy = self.set_busy() && self.manager.sleep_state() == SleepState::Awake;
        self.manager.set_busy(busy && self.engine.is_some());
        let active = match self.config.sharing {
            Sharing::Exclusive => return true,
            Sharing::Spatial => busy,
            Sharing::Temporal(quantum) => self.should_keep_turn(now, quantum, busy),
        };
        self.manager.set_active(active);
        active
    }

    /// Whether the tenant may run steps as far as turns go: it holds the turn, or there are none.
    pub fn holds_turn(&self) -> bool {
        !matches!(self.config.sharing, Sharing::Temporal(_)) || matches!(self.turn, SliceState::Held { .. })
    }

    /// The epoch of the turn that the tenant holds.
    pub fn held_epoch(&self) -> Option<u64> {
        match self.turn {
            SliceState::Held { epoch, .. } => Some(epoch),
            SliceState::NotQueued | SliceState::Queued { .. } => None,
        }
    }

    fn should_keep_turn(&mut self, now: Nanos, quantum: Quantum, busy: bool) -> bool {
        if let SliceState::Held { since, has_run: ran, requested_at: sought, .. } = self.turn {
            let predicted_step_ns = self.predicted_step_ns(quantum);
            let holder = Holder { started: since, has_waiters: sought, has_work: busy, predicted_step_ns };
            match quantum.should_keep_slice(now, &holder) {
                Decision::Keep => return true,
                // A turn has its first step: what was to come before it took all of the quantum.
                Decision::Release
                    if busy && !ran && !self.manager.lacks_weights() && self.head_starved == 0 =>
                {
                    self.quantum_expired = true;
                    return true;
                }
                Decision::Release => self.release_turn(now),
            }
        }
        if busy && self.turn == SliceState::NotQueued && self.engine.is_some() {
            self.turn = SliceState::Queued { since: now };
            self.commands.push(Command::Turn(SliceCommand::Request));
        }
        false
    }

    /// How long the step to come takes: the decodes, and of the prompts as much as a turn that has just begun would take on. A
    /// turn does not end with crumbs of a prompt, for each of which all weights would be read.
    fn predicted_step_ns(&self, quantum: Quantum) -> u64 {
        let running = self.running.values().filter(|s| s.pending() > 1).map(Sequence::pending);
        let pending = running.chain(self.queue.iter().map(Sequence::len)).fold(0, u32::saturating_add);
        let measures = self.manager.step_stats();
        let decodes = self.decodes();
        let most = measures.prefill_tokens_within(decodes, quantum.max_ns());
        measures.step_ns(decodes, pending.min(most).min(self.config.max_step_tokens))
    }

    /// Tokens of a step that ends within the turn by what was measured: each running request's decode, and of prompts as many
    /// as fit, at least one. No bound where there are no turns.
    pub(super) fn fitting_tokens(&self, now: Nanos) -> u32 {
        let (Sharing::Temporal(quantum), SliceState::Held { since, has_run: ran, requested_at: sought, .. }) =
            (self.config.sharing, self.turn)
        else {
            return u32::MAX;
        };
        // What came before the first step may have taken all of the quantum: the step is as long as if it had not. While
        // nobody waits, whoever comes waits for no more than a step of a whole quantum.
        let left_ns = if ran && sought { quantum.left_ns(now, since) } else { quantum.max_ns() };
        // A step that waits for moving layers is no shorter for a prompt that was cut.
        let within_ns = left_ns.max(self.manager.streaming_ns());
        match self.decodes() {
            0 if self.is_decode_dominated(quantum) => {
                self.manager.step_stats().prefill_tokens_adding(within_ns)
            }
            decodes => {
                decodes.saturating_add(self.manager.step_stats().prefill_tokens_within(decodes, within_ns))
            }
        }
    }

    /// Whether decodes are thought to take half of a turn or more. Prompts beside them go on in crumbs then, one in every step for
    /// as long as one waits; and only a step without one tells how long decodes take by now.
    fn is_decode_dominated(&self, quantum: Quantum) -> bool {
        2 * self.manager.step_stats().decode_step_ns() >= u128::from(quantum.max_ns())
    }

    /// Whether the next step is left to the decodes, to see how long they take.
    pub(super) fn prefers_decodes(&self) -> bool {
        let Sharing::Temporal(quantum) = self.config.sharing else { return false };
        let due = self.next_step.is_multiple_of(LOOK_EVERY) && self.is_decode_dominated(quantum);
        due && self.decodes() > 0 && !self.manager.weights_loading()
    }

    /// Running requests that decode.
    pub(super) fn decodes(&self) -> u32 {
        self.running.values().filter(|s| s.pending() == 1).count() as u32
    }

    /// Gives the turn up, if it is here.
    pub(super) fn release_turn(&mut self, now: Nanos) {
        if let SliceState::Held { since, .. } = self.turn {
            self.counters.turn_held_ns += now.since(since);
            (self.turn, self.quantum_expired) = (SliceState::NotQueued, false);
            self.commands.push(Command::Turn(SliceCommand::Release));
        }
    }

    /// A turn without an engine, or with memory that failed, is the neighbours': nobody knows when a step could begin. It is
    /// wished for again when one can.
    pub(super) fn leave_idle_turn(&mut self, now: Nanos) {
        let computes = self.in_flight.as_ref().is_some_and(|step| !step.lost);
        if !self.serving() && !computes {
            self.release_turn(now);
        }
    }

    /// The epoch that a step carries.
    pub(super) fn epoch(&self) -> u64 {
        match self.turn {
            SliceState::Held { epoch, .. } => epoch,
            SliceState::NotQueued | SliceState::Queued { .. } => 0,
        }
    }

    /// A step of this turn begins.
    pub(super) fn record_turn_use(&mut self) {
        self.quantum_expired = false;
        if let SliceState::Held { has_run: ran, .. } = &mut self.turn {
            *ran = true;
        }
    }

    /// What goes to neighbours and comes from them at a boundary. What must go and has no room costs the youngest request, or by
    /// loss the one that loses least.
    pub(super) fn negotiate(&mut self, now: Nanos) {
        self.continue_negotiation(now);
        while self.manager.debt_is_blocked() && self.running.len() > 1 {
            match self.manager.params().compares_losses() {
                true => self.evict_cheapest(now),
                false => self.preempt_youngest(now),
            }
            self.manager.boundary(now, &mut self.actions);
        }
        if self.manager.debt_is_blocked() {
            // KV that is left is of the oldest, or of requests that wait with theirs.
            self.manager.force_reclaim();
            self.manager.boundary(now, &mut self.actions);
        }
        // Who falls asleep drops them by itself.
        while self.manager.debt_is_blocked()
            && self.manager.sleep_state() == SleepState::Awake
            && self.drop_suspended_kv(|manager, id| manager.on_device(id))
        {
            self.manager.boundary(now, &mut self.actions);
        }
    }

    fn continue_negotiation(&mut self, now: Nanos) {
        let Some(trader) = &mut self.negotiator else { return };
        let waited = self.manager.awaits_loans();
        trader.boundary(now, &mut self.manager, &mut self.actions);
        if waited && !self.manager.awaits_loans() && !self.manager.is_blocked() {
            // What lent layers waited for is here, or is waited for no longer: they come back now, not with the next event.
            self.manager.boundary(now, &mut self.actions);
        }
        self.commands.extend(trader.take_commands().into_iter().map(Command::Peer));
    }

    /// The floor of a new life is with its neighbours: they are told, and it is tried again.
    pub(super) fn claim_floor(&mut self, now: Nanos) {
        let (Some(chunks), Some(trader)) = (self.manager.missing_floor_chunks(), &mut self.negotiator) else {
            return;
        };
        trader.claim(now, chunks);
        self.commands.extend(trader.take_commands().into_iter().map(Command::Peer));
        self.manager.claim_floor(&mut self.actions);
    }

    /// Tells which waits for neighbours have ended.
    pub(super) fn record_waits(&mut self, now: Nanos) {
        let Some(trader) = &self.negotiator else { return };
        let ended = self.waits.sample(now, &self.manager, trader, self.next_step);
        self.outputs.extend(ended.map(SchedulerOutput::Waited));
    }

    /// A step waits for the memory of neighbours: they are asked. True when they have said no, so that another remedy is
    /// due at once.
    pub(super) fn borrow_denied(&mut self, now: Nanos) -> bool {
        if self.manager.borrow_request().is_none() {
            return false;
        }
        self.negotiate(now);
        self.manager.borrow_request().is_none() && !self.manager.is_blocked()
    }
}

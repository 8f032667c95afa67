//! Host memory and the engine behind the link, as the scheduler's two ports.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_link::control::{ControlPage, Patience, Wait};
use sluice_link::error::LinkError;
use sluice_link::server::{EngineEvent, EngineSender};
use sluice_link::tables::TableWriter;
use sluice_memory::{EngineConnection, HostMemory, LayerGate};
use sluice_policy::action::Reback;
use sluice_policy::hang::Work;
use sluice_policy::ids::{ActionId, Generation, LayerId, Nanos, RowId, StepId};
use sluice_ports::compute::{
    Compute, ComputeEvent, EngineHello, FailedSequence, SequenceFailure, Step, StepDone,
};
use sluice_scheduler::Driver;

use super::door::Attached;
use super::engine_watch::Ordered;

/// Names the transfer of the whole mapping to a new engine; the policy's own ids begin at 1 and never come this far.
const SNAPSHOT: ActionId = ActionId(u64::MAX);

/// The control page as transfers see it.
#[derive(Clone, Debug)]
pub struct PageGate(pub Arc<ControlPage>);

/// Waits of transfers have a limit and no other end.
static NEVER: AtomicBool = AtomicBool::new(false);

impl LayerGate for PageGate {
    fn is_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.0.done(layer).is_ok_and(|done| done >= generation)
    }

    fn wait_done(&self, layer: LayerId, generation: Generation, limit: Duration) -> bool {
        let patience = Patience { abort: &NEVER, limit: Some(limit) };
        matches!(self.0.wait_done(layer, generation, patience), Ok(Wait::Reached))
    }

    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation) {
        // The global slab never moves: nobody waits for it.
        let Some(layer) = layer else { return };
        self.0.publish_ready(layer, generation).expect("the ledger names only layers of the model");
    }

    fn is_kv_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.0.kv_done(layer).is_ok_and(|done| done >= generation)
    }

    fn wait_kv_done(&self, layer: LayerId, generation: Generation, limit: Duration) -> bool {
        let patience = Patience { abort: &NEVER, limit: Some(limit) };
        matches!(self.0.wait_kv_done(layer, generation, patience), Ok(Wait::Reached))
    }

    fn publish_kv_ready(&self, layer: LayerId, generation: Generation) {
        self.0.publish_kv_ready(layer, generation).expect("a fetch names only layers of the model");
    }
}

/// The attached engine, if there is one, as memory sees it.
#[derive(Clone, Debug, Default)]
pub struct Peer(Arc<Mutex<PeerState>>);

#[derive(Debug, Default)]
struct PeerState {
    engine: Option<EngineSender>,
    /// The order that is awaited, the addresses that it changes, and when it was sent.
    awaited: Option<(ActionId, u32, Instant)>,
    /// Addresses and times of the orders that were carried out.
    rebacked: Vec<(u32, Duration)>,
}

impl Peer {
    fn state(&self) -> std::sync::MutexGuard<'_, PeerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, engine: Option<EngineSender>) {
        *self.state() = PeerState { engine, ..PeerState::default() };
    }

    /// `id` was carried out; false if it is not the awaited one: answers to anything else are stray.
    fn answered(&self, id: ActionId) -> bool {
        let answered = self.closed(id);
        if answered.is_none() {
            tracing::warn!(action = id.0, "the engine answered an order that it was not given");
        }
        self.state().rebacked.extend(answered);
        answered.is_some()
    }

    /// The engine has nothing more to do for `id`: the addresses of that order and the time since it was sent, if it is the
    /// awaited one.
    fn closed(&self, id: ActionId) -> Option<(u32, Duration)> {
        let (_, addresses, sent) = self.state().awaited.take_if(|(awaited, ..)| *awaited == id)?;
        Some((addresses, sent.elapsed()))
    }
}

impl EngineConnection for Peer {
    fn reback(&mut self, id: ActionId, ops: &[Reback]) -> bool {
        let mut state = self.state();
        let Some(engine) = &state.engine else { return false };
        match engine.send_reback(id, ops) {
            Ok(()) => {
                let addresses = u32::try_from(ops.len()).unwrap_or(u32::MAX);
                state.awaited = Some((id, addresses, Instant::now()));
            }
            // Cut off, so that the receiver's thread reports the loss, which completes the order.
            Err(error) => {
                tracing::warn!(%error, "an order to the engine was not sent");
                engine.shutdown();
            }
        }
        true
    }
}

/// A step that the engine has not answered.
struct OpenStep {
    id: StepId,
    /// Tokens of each sequence.
    tokens: Vec<(RowId, u32)>,
    sent: Instant,
}

impl OpenStep {
    fn of(step: &Step) -> OpenStep {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let tokens = step.sequences.iter().map(|one| (one.row, count(one.tokens.len()))).collect();
        OpenStep { id: step.id, tokens, sent: Instant::now() }
    }

    /// Its tokens but for those of some rows.
    fn tokens_without(&self, rows: &[RowId]) -> u32 {
        self.tokens.iter().filter(|(row, _)| !rows.contains(row)).map(|(_, tokens)| tokens).sum()
    }
}

/// The engine as the scheduler sees it.
pub struct LinkCompute {
    tables: Arc<Mutex<TableWriter>>,
    peer: Peer,
    engine: Option<EngineSender>,
    /// Messages of the engines before.
    past_messages: u64,
    /// An engine that maps its memory, and what it said of itself.
    mapping: Option<EngineHello>,
    /// The step that is in flight.
    step: Option<OpenStep>,
    /// Tokens and times of the steps that have finished.
    finished: Vec<(u32, Duration)>,
    /// Orders that the engine was given: each has a number.
    orders: u64,
    events: VecDeque<ComputeEvent>,
}

impl LinkCompute {
    /// No engine yet.
    pub fn new(tables: Arc<Mutex<TableWriter>>, peer: Peer) -> Self {
        LinkCompute {
            tables,
            peer,
            engine: None,
            past_messages: 0,
            mapping: None,
            step: None,
            finished: Vec::new(),
            orders: 0,
            events: VecDeque::new(),
        }
    }

    /// Tells the engine to end.
    pub fn bye(&mut self) {
        if let Some(engine) = self.engine.take() {
            // An engine that is gone already needs no telling.
            let _ = engine.bye();
            self.past_messages += engine.messages();
        }
    }

    /// Messages to and from engines, handshakes apart.
    pub fn messages(&self) -> u64 {
        self.past_messages + self.engine.as_ref().map_or(0, EngineSender::messages)
    }

    /// What the engine was ordered to do and has not answered. At most one order is open: nothing is re-backed in a step.
    pub fn ordered(&self) -> Option<Ordered> {
        if self.mapping.is_some() {
            return Some(Ordered { number: self.orders, work: Work::Attach });
        }
        if let Some(tokens) = self.step.as_ref().map(|step| step.tokens_without(&[])) {
            return Some(Ordered { number: self.orders, work: Work::Step { tokens } });
        }
        let awaited = self.peer.state().awaited;
        awaited.map(|(id, addresses, _)| Ordered { number: id.0, work: Work::Reback { addresses } })
    }

    /// Tokens and times of the steps that have finished since the last call.
    pub fn take_steps(&mut self) -> Vec<(u32, Duration)> {
        std::mem::take(&mut self.finished)
    }

    /// Addresses and times of the changes of mappings since the last call.
    pub fn take_rebacks(&mut self) -> Vec<(u32, Duration)> {
        std::mem::take(&mut self.peer.state().rebacked)
    }

    /// The step in flight went to its end. Time in which this process was stopped is no time of the step; sequences that the
    /// engine refused did not run, and where none ran there is no time.
    fn done(&mut self, done: &StepDone) {
        let Some(step) = self.answered(done.id) else { return };
        let refused = |one: &&FailedSequence| matches!(one.failure, SequenceFailure::Refused(_));
        let refused: Vec<_> = done.failed.iter().filter(refused).map(|one| one.row).collect();
        let took = Duration::from_nanos(done.total_ns).min(step.sent.elapsed());
        self.finished.extend(Some((step.tokens_without(&refused), took)).filter(|(tokens, _)| *tokens > 0));
    }

    /// The step in flight was answered.
    fn answered(&mut self, id: StepId) -> Option<OpenStep> {
        self.step.take_if(|step| step.id == id)
    }

    fn mapped(&mut self) {
        self.events.extend(self.mapping.take().map(ComputeEvent::Attached));
    }
}

impl Compute for LinkCompute {
    fn submit(&mut self, _now: Nanos, step: Step) {
        let Some(engine) = &self.engine else { return };
        // The door holds the tables for a send to a successor at most.
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        match engine.send_step(&step, &mut tables) {
            Ok(()) => {
                (self.step, self.orders) = (Some(OpenStep::of(&step)), self.orders + 1);
            }
            // No engine could run it.
            Err(error @ LinkError::Table(_)) => {
                tracing::error!(%error, step = step.id.0, "a step does not fit the tables");
                let (id, attempt, message) = (step.id, step.attempt, error.to_string());
                self.events.push_back(ComputeEvent::Refused { id, attempt, message });
            }
            // Cut off, so that the receiver's thread reports the loss, and the step is replayed.
            Err(error) => {
                tracing::warn!(%error, step = step.id.0, "a step was not sent");
                engine.shutdown();
            }
        }
    }

    fn poll(&mut self, _now: Nanos) -> Option<ComputeEvent> {
        self.events.pop_front()
    }
}

type Body = Driver<HostMemory, LinkCompute>;

/// A new engine: it is sent everything that is mapped; it counts as attached when it has mapped it.
pub fn attach(driver: &mut Body, link: Attached) {
    let snapshot = driver.memory().snapshot();
    let sent = link.sender.send_reback(SNAPSHOT, &snapshot);
    let compute = driver.compute();
    compute.peer.set(Some(link.sender.clone()));
    match sent {
        Ok(()) => (compute.mapping, compute.orders) = (Some(link.hello), compute.orders + 1),
        // Cut off, so that the receiver's thread reports the loss.
        Err(error) => {
            tracing::warn!(%error, "the mapping was not sent to a new engine");
            link.sender.shutdown();
        }
    }
    compute.engine = Some(link.sender);
}

/// The engine has answered.
pub fn event(driver: &mut Body, event: EngineEvent) {
    match event {
        EngineEvent::Applied { id: SNAPSHOT } => driver.compute().mapped(),
        EngineEvent::Applied { id } => {
            if driver.compute().peer.answered(id) {
                driver.memory().on_acknowledge(id, true);
            }
        }
        EngineEvent::Refused { id, message } => {
            tracing::error!(action = id.0, message, "the engine refused a change of its mappings");
            match id {
                // Its table is not ours: nothing that it computes could be trusted.
                SNAPSHOT => driver.compute().engine.iter().for_each(EngineSender::shutdown),
                id => {
                    driver.compute().peer.closed(id);
                    driver.memory().on_acknowledge(id, false);
                }
            }
        }
        EngineEvent::Done(done) => {
            driver.compute().done(&done);
            driver.compute().events.push_back(ComputeEvent::Done(done));
        }
        EngineEvent::TurnPassed { id, attempt } => {
            driver.compute().answered(id);
            driver.compute().events.push_back(ComputeEvent::StaleEpoch { id, attempt });
        }
        EngineEvent::StepRefused { id, attempt, message } => {
            driver.compute().answered(id);
            driver.compute().events.push_back(ComputeEvent::Refused { id, attempt, message });
        }
        EngineEvent::Bye => {}
    }
}

/// The engine is dead.
pub fn lost(driver: &mut Body) {
    driver.compute().peer.set(None);
    driver.memory().on_engine_lost();
    let compute = driver.compute();
    compute.past_messages = compute.messages();
    compute.engine = None;
    (compute.mapping, compute.step) = (None, None);
    compute.events.push_back(ComputeEvent::Lost);
}

#[cfg(test)]
mod tests {
    use sluice_link::tables::TableShape;

    use super::*;

    #[test]
    fn an_order_that_the_engine_refused_is_open_no_longer_and_tells_no_time() {
        let peer = Peer::default();
        let shape = TableShape { rows: 1, max_columns: 1, max_history: 1, layers: 1 };
        let tables = Arc::new(Mutex::new(TableWriter::create(shape).unwrap()));
        let mut compute = LinkCompute::new(tables, peer.clone());
        peer.state().awaited = Some((ActionId(3), 7, Instant::now()));
        assert_eq!(peer.closed(ActionId(2)), None, "a stray answer");
        let ordered = Ordered { number: 3, work: Work::Reback { addresses: 7 } };
        assert_eq!(compute.ordered(), Some(ordered));
        assert!(peer.closed(ActionId(3)).is_some());
        assert_eq!((compute.ordered(), compute.take_rebacks().len()), (None, 0));
    }

    /// Otherwise a few steps that ran nothing would shorten the limit of those that do.
    #[test]
    fn sequences_that_the_engine_refused_tell_no_time_of_a_step() {
        let shape = TableShape { rows: 1, max_columns: 1, max_history: 1, layers: 1 };
        let tables = Arc::new(Mutex::new(TableWriter::create(shape).unwrap()));
        let mut compute = LinkCompute::new(tables, Peer::default());
        let failure = |row, failure| FailedSequence { row: RowId(row), failure };
        let refused = |row| failure(row, SequenceFailure::Refused("unknown".into()));
        for (failed, told) in [
            (vec![], Some(47)),
            (vec![refused(1)], Some(7)),
            (vec![refused(1), refused(2)], None),
            // Those ran, and no token could be chosen.
            (vec![failure(1, SequenceFailure::NoCandidate), refused(2)], Some(40)),
        ] {
            let sent = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
            compute.step =
                Some(OpenStep { id: StepId(3), tokens: vec![(RowId(1), 40), (RowId(2), 7)], sent });
            let done = StepDone {
                id: StepId(3),
                attempt: 0,
                sampled: Vec::new(),
                failed: failed.clone(),
                layer_ns: Vec::new(),
                stall_ns: Vec::new(),
                kv_stall_ns: Vec::new(),
                total_ns: 5_000_000,
            };
            compute.done(&done);
            let wanted: Vec<_> = told.map(|tokens| (tokens, Duration::from_millis(5))).into_iter().collect();
            assert_eq!((compute.take_steps(), compute.ordered()), (wanted, None), "{failed:?}");
        }
    }
}

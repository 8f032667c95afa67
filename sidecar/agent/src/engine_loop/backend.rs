//! Ports of the scheduler: host memory, and the engine behind the link.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_link::control::{ControlPage, WaitLimit, WaitResult};
use sluice_link::error::LinkError;
use sluice_link::message::CHUNKS_PER_MESSAGE;
use sluice_link::server::{EngineEvent, EngineSender};
use sluice_link::tables::TableWriter;
use sluice_memory::{ChunkPool, DeviceMemory, EngineConnection, LayerGate, PoolError};
use sluice_policy::action::MapOp;
use sluice_policy::hang::Work;
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerId, Nanos, RowId, StepId};
use sluice_ports::compute::{
    Compute, ComputeEvent, EngineHello, FailedSequence, SequenceFailure, Step, StepDone,
};
use sluice_scheduler::Driver;

use super::engine_event::Attached;
use super::engine_watch::PendingWork;

/// Id of the transfer of the whole mapping to a new engine. The policy's own ids count up from 1 and never reach it.
pub const SNAPSHOT_ACTION: ActionId = ActionId(u64::MAX);

/// Layer progress for transfers, read from the control page.
#[derive(Clone, Debug)]
pub struct ControlPageGate(pub Arc<ControlPage>);

/// Waits of transfers end only by their time limit.
static NEVER_ABORT: AtomicBool = AtomicBool::new(false);

impl LayerGate for ControlPageGate {
    fn is_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.0.done(layer).is_ok_and(|done| done >= generation)
    }

    fn wait_done(&self, layer: LayerId, generation: Generation, limit: Duration) -> bool {
        let patience = WaitLimit { abort: &NEVER_ABORT, limit: Some(limit) };
        matches!(self.0.wait_done(layer, generation, patience), Ok(WaitResult::Reached))
    }

    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation) {
        // The global slab never moves, so nothing waits for it.
        let Some(layer) = layer else { return };
        self.0.publish_ready(layer, generation).expect("the ledger names only layers of the model");
    }

    fn is_kv_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.0.kv_done(layer).is_ok_and(|done| done >= generation)
    }

    fn wait_kv_done(&self, layer: LayerId, generation: Generation, limit: Duration) -> bool {
        let patience = WaitLimit { abort: &NEVER_ABORT, limit: Some(limit) };
        matches!(self.0.wait_kv_done(layer, generation, patience), Ok(WaitResult::Reached))
    }

    fn publish_kv_ready(&self, layer: LayerId, generation: Generation) {
        self.0.publish_kv_ready(layer, generation).expect("a fetch names only layers of the model");
    }
}

/// The commands that change the memory of an engine, whatever schedules it.
pub trait MappingCommands: Clone + Send {
    /// As [`EngineSender::send_remap`].
    fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError>;

    /// As [`EngineSender::send_chunks`].
    fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError>;

    /// As [`EngineSender::send_release`].
    fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError>;

    /// Cuts the link: the engine exits.
    fn shutdown(&self);
}

impl MappingCommands for EngineSender {
    fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError> {
        EngineSender::send_remap(self, id, ops)
    }

    fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        EngineSender::send_chunks(self, chunks)
    }

    fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError> {
        EngineSender::send_release(self, id, chunks)
    }

    fn shutdown(&self) {
        EngineSender::shutdown(self);
    }
}

/// Handle of the attached engine, if any, for the memory backend.
#[derive(Clone, Debug)]
pub struct EngineHandle<S = EngineSender>(Arc<Mutex<EngineHandleState<S>>>);

impl<S> Default for EngineHandle<S> {
    fn default() -> Self {
        EngineHandle(Arc::default())
    }
}

#[derive(Debug)]
struct EngineHandleState<S> {
    engine: Option<S>,
    /// Remap that the engine has not answered: its id, its number of addresses, and the time it was sent.
    pending: Option<(ActionId, u32, Instant)>,
    /// Numbers of addresses and durations of completed remaps.
    remap_times: Vec<(u32, Duration)>,
    /// Chunks of a GPU that the engine has imported and not released.
    imported: BTreeSet<ChunkId>,
    /// Pool whose chunks are exported one by one; `None` if the engine maps them from one file.
    exported_pool: Option<Arc<ChunkPool>>,
}

impl<S> Default for EngineHandleState<S> {
    fn default() -> Self {
        EngineHandleState {
            engine: None,
            pending: None,
            remap_times: Vec::new(),
            imported: BTreeSet::new(),
            exported_pool: None,
        }
    }
}

impl<S: MappingCommands> EngineHandleState<S> {
    /// Exports the chunks that `ops` map and the engine does not have yet, and sends them.
    fn export(&mut self, engine: &S, ops: &[MapOp]) -> Result<(), ExportError> {
        let Some(pool) = &self.exported_pool else { return Ok(()) };
        let mapped = ops.iter().filter_map(|op| match *op {
            MapOp::Map(_, chunk) => Some(chunk),
            MapOp::Unmap(..) => None,
        });
        let missing: BTreeSet<ChunkId> = mapped.filter(|chunk| !self.imported.contains(chunk)).collect();
        let missing: Vec<ChunkId> = missing.into_iter().collect();
        for batch in missing.chunks(CHUNKS_PER_MESSAGE) {
            let descriptors = pool.export(batch)?;
            let chunks: Vec<_> = batch.iter().copied().zip(descriptors).collect();
            engine.send_chunks(&chunks)?;
            self.imported.extend(batch);
        }
        Ok(())
    }
}

/// Why chunks did not reach the engine.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("exporting chunks: {0}")]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl<S: MappingCommands> EngineHandle<S> {
    fn state(&self) -> std::sync::MutexGuard<'_, EngineHandleState<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exports chunks one by one from `pool`, the memory of a GPU.
    pub fn export_from(&self, pool: Arc<ChunkPool>) {
        self.state().exported_pool = Some(pool);
    }

    /// Sets the attached engine, which has imported nothing.
    pub fn set(&self, engine: Option<S>) {
        let mut state = self.state();
        let exported_pool = state.exported_pool.take();
        *state = EngineHandleState { engine, exported_pool, ..EngineHandleState::default() };
    }

    /// Sends a new engine the whole mapping, with the chunks in it.
    pub fn send_snapshot(&self, snapshot: &[MapOp]) -> Result<(), String> {
        let mut state = self.state();
        let Some(engine) = state.engine.clone() else { return Ok(()) };
        state.export(&engine, snapshot).map_err(|error| error.to_string())?;
        engine.send_remap(SNAPSHOT_ACTION, snapshot).map_err(|error| error.to_string())
    }

    /// Records that `id` was completed. Returns false if `id` is not pending, because then the answer is stray.
    pub fn complete(&self, id: ActionId) -> bool {
        let answered = self.close(id);
        if answered.is_none() {
            tracing::warn!(action = id.0, "the engine acknowledged a mapping change that was not requested");
        }
        self.state().remap_times.extend(answered);
        answered.is_some()
    }

    /// Removes the pending remap `id`. Returns its number of addresses and the time since it was sent, or `None` if it
    /// is not pending.
    pub fn close(&self, id: ActionId) -> Option<(u32, Duration)> {
        let (_, addresses, sent) = self.state().pending.take_if(|(awaited, ..)| *awaited == id)?;
        Some((addresses, sent.elapsed()))
    }
}

impl<S: MappingCommands> EngineConnection for EngineHandle<S> {
    fn remap(&mut self, id: ActionId, ops: &[MapOp]) -> bool {
        let mut state = self.state();
        let Some(engine) = state.engine.clone() else { return false };
        let sent = state.export(&engine, ops).and_then(|()| Ok(engine.send_remap(id, ops)?));
        match sent {
            Ok(()) => {
                let addresses = u32::try_from(ops.len()).unwrap_or(u32::MAX);
                state.pending = Some((id, addresses, Instant::now()));
            }
            // Shutting down the link makes the receiver thread report the loss, which completes the order.
            Err(error) => {
                tracing::warn!(%error, "could not send a mapping change to the engine");
                engine.shutdown();
            }
        }
        true
    }

    fn release(&mut self, id: ActionId, chunks: &[ChunkId]) -> bool {
        let mut state = self.state();
        let Some(engine) = state.engine.clone() else { return false };
        let held: Vec<ChunkId> =
            chunks.iter().copied().filter(|chunk| state.imported.remove(chunk)).collect();
        if held.is_empty() {
            return false;
        }
        match engine.send_release(id, &held) {
            Ok(()) => state.pending = Some((id, 0, Instant::now())),
            Err(error) => {
                tracing::warn!(%error, "could not ask the engine to release chunks");
                engine.shutdown();
            }
        }
        true
    }
}

/// Step that the engine has not answered.
struct PendingStep {
    id: StepId,
    /// Tokens per row.
    tokens: Vec<(RowId, u32)>,
    sent: Instant,
}

impl PendingStep {
    fn of(step: &Step) -> PendingStep {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let tokens = step.sequences.iter().map(|one| (one.row, count(one.tokens.len()))).collect();
        PendingStep { id: step.id, tokens, sent: Instant::now() }
    }

    /// Returns the step's tokens without those of `rows`.
    fn tokens_without(&self, rows: &[RowId]) -> u32 {
        self.tokens.iter().filter(|(row, _)| !rows.contains(row)).map(|(_, tokens)| tokens).sum()
    }
}

/// The engine as the scheduler's [`Compute`] port.
pub struct EngineCompute {
    tables: Arc<Mutex<TableWriter>>,
    engine_handle: EngineHandle,
    engine: Option<EngineSender>,
    /// Messages exchanged with earlier engines.
    past_messages: u64,
    /// Hello of an engine that has not mapped its memory yet.
    mapping_hello: Option<EngineHello>,
    /// Step in flight.
    step: Option<PendingStep>,
    /// Tokens and durations of finished steps.
    step_times: Vec<(u32, Duration)>,
    /// Orders sent to engines. Each order has a number.
    commands_sent: u64,
    events: VecDeque<ComputeEvent>,
}

impl EngineCompute {
    /// Creates the port without an engine.
    pub fn new(tables: Arc<Mutex<TableWriter>>, peer: EngineHandle) -> Self {
        EngineCompute {
            tables,
            engine_handle: peer,
            engine: None,
            past_messages: 0,
            mapping_hello: None,
            step: None,
            step_times: Vec::new(),
            commands_sent: 0,
            events: VecDeque::new(),
        }
    }

    /// Sends the engine a goodbye.
    pub fn send_bye(&mut self) {
        if let Some(engine) = self.engine.take() {
            // The engine may have exited already.
            let _ = engine.send_bye();
            self.past_messages += engine.messages();
        }
    }

    /// Returns the number of messages exchanged with engines, without handshakes.
    pub fn messages(&self) -> u64 {
        self.past_messages + self.engine.as_ref().map_or(0, EngineSender::messages)
    }

    /// Returns the work that the engine was ordered to do and has not answered. At most one order is pending: no remap
    /// happens during a step.
    pub fn pending_work(&self) -> Option<PendingWork> {
        if self.mapping_hello.is_some() {
            return Some(PendingWork { number: self.commands_sent, work: Work::Attach });
        }
        if let Some(tokens) = self.step.as_ref().map(|step| step.tokens_without(&[])) {
            return Some(PendingWork { number: self.commands_sent, work: Work::Step { tokens } });
        }
        let awaited = self.engine_handle.state().pending;
        awaited.map(|(id, addresses, _)| PendingWork { number: id.0, work: Work::Remap { addresses } })
    }

    /// Returns tokens and durations of the steps that finished since the last call.
    pub fn take_step_times(&mut self) -> Vec<(u32, Duration)> {
        std::mem::take(&mut self.step_times)
    }

    /// Returns numbers of addresses and durations of the remaps that finished since the last call.
    pub fn take_remap_times(&mut self) -> Vec<(u32, Duration)> {
        std::mem::take(&mut self.engine_handle.state().remap_times)
    }

    /// Records the duration of the finished step. Excludes time in which this process was stopped. Tokens of refused
    /// sequences do not count because they did not run; if no sequence ran, no time is recorded.
    fn on_step_done(&mut self, done: &StepDone) {
        let Some(step) = self.complete(done.id) else { return };
        let refused = |one: &&FailedSequence| matches!(one.failure, SequenceFailure::Refused(_));
        let refused: Vec<_> = done.failed.iter().filter(refused).map(|one| one.row).collect();
        let took = Duration::from_nanos(done.total_ns).min(step.sent.elapsed());
        self.step_times.extend(Some((step.tokens_without(&refused), took)).filter(|(tokens, _)| *tokens > 0));
    }

    /// Removes the step in flight if it has this id.
    fn complete(&mut self, id: StepId) -> Option<PendingStep> {
        self.step.take_if(|step| step.id == id)
    }

    fn on_mapped(&mut self) {
        self.events.extend(self.mapping_hello.take().map(ComputeEvent::Attached));
    }
}

impl Compute for EngineCompute {
    fn submit(&mut self, _now: Nanos, step: Step) {
        let Some(engine) = &self.engine else { return };
        // The acceptor holds this lock only while it sends the tables to a new engine.
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        match engine.send_step(&step, &mut tables) {
            Ok(()) => {
                (self.step, self.commands_sent) = (Some(PendingStep::of(&step)), self.commands_sent + 1);
            }
            // No engine could run this step.
            Err(error @ LinkError::Table(_)) => {
                tracing::error!(%error, step = step.id.0, "a step does not fit into the block tables");
                let (id, attempt, message) = (step.id, step.attempt, error.to_string());
                self.events.push_back(ComputeEvent::Refused { id, attempt, message });
            }
            // Shutting down the link makes the receiver thread report the loss, and the step is replayed.
            Err(error) => {
                tracing::warn!(%error, step = step.id.0, "could not send a step to the engine");
                engine.shutdown();
            }
        }
    }

    fn poll(&mut self, _now: Nanos) -> Option<ComputeEvent> {
        self.events.pop_front()
    }
}

type EngineDriver = Driver<DeviceMemory, EngineCompute>;

/// Sends a new engine the whole mapping. The engine counts as attached when it has applied the mapping.
pub fn on_attached(driver: &mut EngineDriver, link: Attached) {
    let snapshot = driver.memory().snapshot();
    let compute = driver.compute();
    compute.engine_handle.set(Some(link.sender.clone()));
    let sent = compute.engine_handle.send_snapshot(&snapshot);
    match sent {
        Ok(()) => {
            (compute.mapping_hello, compute.commands_sent) = (Some(link.hello), compute.commands_sent + 1)
        }
        // Shutting down the link makes the receiver thread report the loss.
        Err(error) => {
            tracing::warn!(%error, "could not send the mapping to a new engine");
            link.sender.shutdown();
        }
    }
    compute.engine = Some(link.sender);
}

/// Handles an answer of the engine.
pub fn on_event(driver: &mut EngineDriver, event: EngineEvent) {
    match event {
        EngineEvent::Applied { id: SNAPSHOT_ACTION } => driver.compute().on_mapped(),
        EngineEvent::Applied { id } => {
            if driver.compute().engine_handle.complete(id) {
                driver.memory().on_acknowledge(id, true);
            }
        }
        EngineEvent::Refused { id, message } => {
            tracing::error!(action = id.0, message, "the engine rejected a mapping change");
            match id {
                // Without the mapping, the engine's results cannot be trusted.
                SNAPSHOT_ACTION => driver.compute().engine.iter().for_each(EngineSender::shutdown),
                id => {
                    driver.compute().engine_handle.close(id);
                    driver.memory().on_acknowledge(id, false);
                }
            }
        }
        EngineEvent::Done(done) => {
            driver.compute().on_step_done(&done);
            driver.compute().events.push_back(ComputeEvent::Done(done));
        }
        EngineEvent::StaleEpoch { id, attempt } => {
            driver.compute().complete(id);
            driver.compute().events.push_back(ComputeEvent::StaleEpoch { id, attempt });
        }
        EngineEvent::StepRefused { id, attempt, message } => {
            driver.compute().complete(id);
            driver.compute().events.push_back(ComputeEvent::Refused { id, attempt, message });
        }
        EngineEvent::Bye => {}
    }
}

/// Handles the confirmed exit of the engine.
pub fn on_lost(driver: &mut EngineDriver) {
    driver.compute().engine_handle.set(None);
    driver.memory().on_engine_lost();
    let compute = driver.compute();
    compute.past_messages = compute.messages();
    compute.engine = None;
    (compute.mapping_hello, compute.step) = (None, None);
    compute.events.push_back(ComputeEvent::Lost);
}

#[cfg(test)]
mod tests {
    use sluice_link::tables::TableShape;

    use super::*;

    #[test]
    fn refused_remap_is_closed_without_a_time() {
        let peer = EngineHandle::default();
        let shape = TableShape { rows: 1, max_kv_blocks: 1, max_history: 1, layers: 1 };
        let tables = Arc::new(Mutex::new(TableWriter::create(shape).unwrap()));
        let mut compute = EngineCompute::new(tables, peer.clone());
        peer.state().pending = Some((ActionId(3), 7, Instant::now()));
        assert_eq!(peer.close(ActionId(2)), None, "a stray answer");
        let ordered = PendingWork { number: 3, work: Work::Remap { addresses: 7 } };
        assert_eq!(compute.pending_work(), Some(ordered));
        assert!(peer.close(ActionId(3)).is_some());
        assert_eq!((compute.pending_work(), compute.take_remap_times().len()), (None, 0));
    }

    /// Otherwise steps that ran nothing would shorten the limit of real steps.
    #[test]
    fn refused_sequences_do_not_count_in_step_time() {
        let shape = TableShape { rows: 1, max_kv_blocks: 1, max_history: 1, layers: 1 };
        let tables = Arc::new(Mutex::new(TableWriter::create(shape).unwrap()));
        let mut compute = EngineCompute::new(tables, EngineHandle::default());
        let failure = |row, failure| FailedSequence { row: RowId(row), failure };
        let refused = |row| failure(row, SequenceFailure::Refused("unknown".into()));
        for (failed, counted_tokens) in [
            (vec![], Some(47)),
            (vec![refused(1)], Some(7)),
            (vec![refused(1), refused(2)], None),
            // This sequence ran, but no token could be sampled.
            (vec![failure(1, SequenceFailure::NoCandidate), refused(2)], Some(40)),
        ] {
            let sent = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
            compute.step =
                Some(PendingStep { id: StepId(3), tokens: vec![(RowId(1), 40), (RowId(2), 7)], sent });
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
            compute.on_step_done(&done);
            let wanted: Vec<_> =
                counted_tokens.map(|tokens| (tokens, Duration::from_millis(5))).into_iter().collect();
            assert_eq!((compute.take_step_times(), compute.pending_work()), (wanted, None), "{failed:?}");
        }
    }
}

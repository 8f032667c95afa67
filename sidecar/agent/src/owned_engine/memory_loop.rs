//! The loop of an engine that schedules by itself: one thread owns its memory, its block budget and its links.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_link::control::{ControlPage, WaitLimit};
use sluice_link::message::KvLayout;
use sluice_link::server::scheduler::SchedulerEvent;
use sluice_link::server::worker::{WorkerEvent, WorkerSender};
use sluice_memory::DeviceMemory;
use sluice_policy::ids::ActionId;
use sluice_scheduler::block_budget::BudgetDriver;

use super::engine::{OwnedEngine, backed_kv};
use super::held_fills::HeldFills;
use super::message::{EngineMessage, LoopMessage};
use super::worker_connection::of_layers;
use crate::clock::Clock;
use crate::engine_loop::backend::SNAPSHOT_ACTION;

/// Longest sleep when nothing is due.
const MAX_IDLE_WAIT: Duration = Duration::from_millis(500);

/// What the loop shows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStatus {
    /// KV blocks of the engine that have memory.
    pub granted_blocks: u32,
    /// Layers that share slots.
    pub moving_layers: u16,
    /// Requests that the engine has preempted to give memory back.
    pub preemptions: u64,
    /// Engines that were lost.
    pub engine_losses: u64,
    /// Times that the engine was held.
    pub holds: u64,
    /// Whether the engine's weights are in host memory.
    pub is_loaded: bool,
}

/// The memory of an engine that schedules by itself.
pub struct MemoryLoop {
    driver: BudgetDriver<HeldFills<DeviceMemory>, OwnedEngine>,
    inbox: Receiver<LoopMessage>,
    clock: Clock,
    /// Chunks of the engine's KV range, and tokens of its longest request.
    kv: (u32, u32),
    worker: Option<WorkerSender>,
    /// The worker waits for the reply to `Loaded`.
    awaits_capture: bool,
    status: Arc<Mutex<LoopStatus>>,
    watch: PassWatch,
}

impl MemoryLoop {
    /// The loop of a driver whose engine reads `control`. `kv`: chunks of its KV range, tokens of its longest request.
    pub fn new(
        driver: BudgetDriver<HeldFills<DeviceMemory>, OwnedEngine>,
        (inbox, wake): (Receiver<LoopMessage>, Sender<LoopMessage>),
        (clock, control): (Clock, Arc<ControlPage>),
        kv: (u32, u32),
    ) -> MemoryLoop {
        let (worker, awaits_capture, status) = (None, false, Arc::default());
        let watch = PassWatch::start(control, wake);
        MemoryLoop { driver, inbox, clock, kv, worker, awaits_capture, status, watch }
    }

    /// Returns what the loop shows of itself.
    pub fn status(&self) -> Arc<Mutex<LoopStatus>> {
        self.status.clone()
    }

    /// Runs until [`LoopMessage::Stop`].
    pub fn run(mut self) {
        let mut due = Some(self.clock.now());
        loop {
            let now = self.clock.now();
            let sleep =
                due.map_or(MAX_IDLE_WAIT, |due| Duration::from_nanos(due.since(now)).min(MAX_IDLE_WAIT));
            let mut message = match self.inbox.recv_timeout(sleep) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            while let Some(one) = message {
                match one {
                    LoopMessage::Stop => return,
                    LoopMessage::Wake => {}
                    LoopMessage::Event(event) => self.driver.push(*event),
                    LoopMessage::Engine(message) => self.on_engine(message),
                }
                message = self.inbox.try_recv().ok();
            }
            due = self.driver.step(self.clock.now());
            self.reply_captured();
            self.show();
        }
    }

    fn on_engine(&mut self, message: EngineMessage) {
        match message {
            EngineMessage::WorkerAttached(worker) => self.on_worker(worker),
            EngineMessage::Worker(event) => self.on_worker_event(event),
            EngineMessage::SchedulerConnected(scheduler) => {
                self.driver.engine().on_scheduler(scheduler);
            }
            EngineMessage::Scheduler(SchedulerEvent::Held(held)) => self.driver.engine().on_held(held),
            EngineMessage::Scheduler(SchedulerEvent::Retired(retired)) => {
                self.driver.engine().on_retired(&retired)
            }
            EngineMessage::Scheduler(SchedulerEvent::Demand(demand)) => {
                self.driver.engine().on_demand(&demand)
            }
            EngineMessage::Scheduler(SchedulerEvent::Bye) => {}
            EngineMessage::Lost(why) => self.on_lost(&why),
        }
    }

    /// Maps the weights of a new worker. It loads them.
    fn on_worker(&mut self, worker: WorkerSender) {
        let weights = of_layers(&self.driver.memory().memory().snapshot());
        let engine = self.driver.engine();
        engine.on_worker(worker.clone());
        let handle = engine.handle();
        handle.set(Some(worker.clone()));
        // A memory that has no chunks yet maps them later.
        let sent = if weights.is_empty() { Ok(()) } else { handle.send_snapshot(&weights) };
        if let Err(error) = sent {
            tracing::warn!(%error, "could not send the mapping to a new worker");
            worker.shutdown();
        }
        self.worker = Some(worker);
    }

    fn on_worker_event(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::Applied { id: SNAPSHOT_ACTION } => {}
            WorkerEvent::Applied { id } => self.on_applied(id, true),
            WorkerEvent::Refused { id, message } => {
                tracing::error!(action = id.0, message, "the worker refused a change of memory");
                self.on_applied(id, false);
                // Its addresses are not what the sidecar takes them for.
                self.worker.iter().for_each(WorkerSender::shutdown);
            }
            WorkerEvent::Loaded(_) => {
                self.awaits_capture = true;
                let now = self.clock.now();
                self.driver.memory().release(now);
            }
            WorkerEvent::KvLayout(layout) => self.on_kv_layout(layout),
            WorkerEvent::Bye => {}
        }
    }

    fn on_applied(&mut self, id: ActionId, done: bool) {
        let engine = self.driver.engine();
        if done && engine.on_applied(id) {
            return;
        }
        let known = if done { engine.handle().complete(id) } else { engine.handle().close(id).is_some() };
        if known {
            self.driver.memory().memory().on_acknowledge(id, done);
        }
    }

    fn on_kv_layout(&mut self, layout: KvLayout) {
        let backed = backed_kv(&self.driver.memory().memory().snapshot());
        let Some(worker) = &self.worker else { return };
        let answered = match self.driver.engine().on_kv_layout(layout, self.kv, backed) {
            Ok(extents) => worker.send_kv_accepted(extents),
            Err(problem) => worker.refuse_layout(problem),
        };
        if let Err(error) = answered {
            tracing::warn!(%error, "could not answer the worker");
            worker.shutdown();
        }
    }

    /// The worker goes on when the sidecar has its weights.
    fn reply_captured(&mut self) {
        if !self.awaits_capture || !self.driver.scheduler().manager().status().is_loaded() {
            return;
        }
        self.awaits_capture = false;
        if let Some(Err(error)) = self.worker.as_ref().map(WorkerSender::send_captured) {
            tracing::warn!(%error, "could not answer the worker");
        }
    }

    fn on_lost(&mut self, why: &str) {
        tracing::warn!(why, "engine lost; its KV is lost, its weights stay");
        (self.worker, self.awaits_capture) = (None, false);
        self.driver.engine().on_lost();
        self.driver.memory().hold();
        self.driver.memory().memory().on_engine_lost();
    }

    fn show(&mut self) {
        let scheduler = self.driver.scheduler();
        let figures = scheduler.manager().figures();
        let status = LoopStatus {
            granted_blocks: scheduler.granted_blocks(),
            moving_layers: figures.layout().moving.len() as u16,
            preemptions: scheduler.counters().preemptions,
            engine_losses: scheduler.counters().engine_losses,
            holds: scheduler.counters().holds,
            is_loaded: scheduler.manager().status().is_loaded(),
        };
        self.watch.set_active(status.moving_layers > 0);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// Wakes the loop when a pass begins, while layers move.
struct PassWatch {
    active: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PassWatch {
    fn start(control: Arc<ControlPage>, wake: Sender<LoopMessage>) -> PassWatch {
        let (active, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_active, ends) = (active.clone(), stop.clone());
        let watch = move || {
            while !ends.load(Ordering::Relaxed) {
                if !is_active.load(Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(50));
                    continue;
                }
                let next = control.passes_begun() + 1;
                control.wait_pass_begun(
                    next,
                    WaitLimit { abort: &ends, limit: Some(Duration::from_millis(50)) },
                );
                if wake.send(LoopMessage::Wake).is_err() {
                    return;
                }
            }
        };
        // Without the thread passes are leased when the loop looks, which is later and not wrong.
        let thread = std::thread::Builder::new().name("engine-passes".into()).spawn(watch).ok();
        PassWatch { active, stop, thread }
    }

    fn set_active(&self, active: bool) {
        if self.active.swap(active, Ordering::Relaxed) != active {
            self.thread.iter().for_each(|thread| thread.thread().unpark());
        }
    }
}

impl Drop for PassWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}

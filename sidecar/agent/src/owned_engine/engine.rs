//! The port of the block budget: carries orders out over the links to the worker and to the scheduler of the engine.
//!
//! A `Resume` is carried out in steps, each of which the worker acknowledges: mappings of KV, zeros in new extents, the
//! layers that may move. Then the scheduler goes on. The first `Resume` of an engine is the reply to its scheduler's
//! hello.

use std::collections::VecDeque;
use std::sync::Arc;

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::{
    Demand, Held, KvExtents, KvLayout, Moving, Resume as ResumeMessage, Retired, SchedulerHello,
    SchedulerSetup,
};
use sluice_link::server::scheduler::SchedulerSender;
use sluice_link::server::worker::WorkerSender;
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId, LayerId, Nanos};
use sluice_ports::block_budget::{
    BudgetEngine, EngineDemand, EngineKv, EngineOrder, EngineReport, ExtentId, Resume,
};

use super::extent_map::ExtentMap;
use super::passes::ReportedPasses;
use super::worker_connection::WorkerConnection;
use crate::engine_loop::backend::EngineHandle;

/// Commands of this port count down from here. Those of the memory manager count up and never reach it.
const FIRST_ID: u64 = u64::MAX - 1;

/// The scheduler of an engine, before and after it knows its extents.
pub trait SchedulerEnd: Send + std::fmt::Debug {
    /// Returns its identity.
    fn hello(&self) -> &SchedulerHello;

    /// Replies to the hello: these extents have memory.
    fn welcome(&mut self, setup: &SchedulerSetup) -> Result<(), LinkError>;

    /// Returns the commands, after the welcome.
    fn commands(&self) -> Option<&SchedulerSender>;
}

/// What a worker has been ordered to do and has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Mapped(ActionId),
    Zeroed(ActionId),
    Announced(ActionId),
}

impl Awaited {
    fn id(self) -> ActionId {
        match self {
            Awaited::Mapped(id) | Awaited::Zeroed(id) | Awaited::Announced(id) => id,
        }
    }
}

/// A `Resume` that is being carried out.
#[derive(Debug)]
struct Change {
    resume: Resume,
    awaited: Awaited,
}

/// An engine that schedules by itself, behind its two links.
#[derive(Debug)]
pub struct OwnedEngine {
    connection: WorkerConnection,
    control: Arc<ControlPage>,
    layers: u16,
    chunk_bytes: u64,
    worker: Option<WorkerSender>,
    scheduler: Option<Box<dyn SchedulerEnd>>,
    extents: Option<KvExtents>,
    /// The first extents, until the scheduler knows them.
    welcome: Option<Vec<u32>>,
    /// An order to hold came before the scheduler, or before it went on.
    holds_next: bool,
    change: Option<Change>,
    /// The layers that the worker waits for.
    announced: Vec<LayerId>,
    passes: ReportedPasses,
    reports: VecDeque<EngineReport>,
    next_id: u64,
}

impl OwnedEngine {
    /// A port without an engine.
    pub fn new(
        connection: WorkerConnection,
        control: Arc<ControlPage>,
        layers: u16,
        chunk_bytes: u64,
    ) -> Self {
        OwnedEngine {
            connection,
            passes: ReportedPasses::after_all(&control),
            control,
            layers,
            chunk_bytes,
            worker: None,
            scheduler: None,
            extents: None,
            welcome: None,
            holds_next: false,
            change: None,
            announced: Vec::new(),
            reports: VecDeque::new(),
            next_id: FIRST_ID,
        }
    }

    /// A worker has attached. Its weights are mapped by the caller.
    pub fn on_worker(&mut self, worker: WorkerSender) {
        self.passes = ReportedPasses::after_all(&self.control);
        self.worker = Some(worker);
        self.reports.push_back(EngineReport::Started);
    }

    /// The worker has laid its KV out. `backed` are the chunks of the memory manager's KV chunks, and `max_model_len` the
    /// tokens of the longest request. Returns the extents. The first of them get memory before the scheduler comes: the
    /// worker waits for it.
    ///
    /// # Errors
    /// KV of this layout cannot be given and taken back by chunks.
    pub fn on_kv_layout(
        &mut self,
        layout: KvLayout,
        (kv_chunks, max_model_len): (u32, u32),
        backed: impl IntoIterator<Item = (KvChunkId, ChunkId)>,
    ) -> Result<KvExtents, String> {
        let extents = layout.extents(self.chunk_bytes, kv_chunks).map_err(|error| error.to_string())?;
        let map = ExtentMap::new(layout, extents, self.chunk_bytes, backed);
        let chunks = map.positions_of(ExtentId::NULL).len() as u32;
        if !chunks.is_multiple_of(u32::from(self.layers)) {
            return Err(format!(
                "an extent has {chunks} chunks, which is no multiple of {} layers",
                self.layers
            ));
        }
        let chunks_per_layer = map.chunks_per_layer(u32::from(self.layers));
        *self.connection.map() = Some(map);
        self.extents = Some(extents);
        // The null block is one more.
        let blocks = max_model_len.div_ceil(layout.block_tokens) + 1;
        self.reports.push_back(EngineReport::Attached(EngineKv {
            extents: extents.extents,
            blocks_per_extent: extents.extent_blocks,
            chunks_per_layer,
            guaranteed_extents: blocks.div_ceil(extents.extent_blocks).min(extents.extents),
        }));
        Ok(extents)
    }

    /// The scheduler has connected. It is welcomed when it has extents.
    pub fn on_scheduler(&mut self, link: Box<dyn SchedulerEnd>) {
        self.scheduler = Some(link);
        self.passes = ReportedPasses::after_all(&self.control);
        self.welcome_scheduler();
    }

    /// The worker has carried a command out. Returns whether it is one of this port.
    pub fn on_applied(&mut self, id: ActionId) -> bool {
        let Some(change) = self.change.take_if(|change| change.awaited.id() == id) else { return false };
        match change.awaited {
            Awaited::Mapped(_) => {
                self.connection.handle().complete(id);
                self.zero(change.resume);
            }
            Awaited::Zeroed(_) => self.announce(change.resume),
            Awaited::Announced(_) => self.resume_scheduler(change.resume),
        }
        true
    }

    /// The scheduler runs no step.
    pub fn on_held(&mut self, held: Held) {
        // All passes have ended: their reports come first.
        self.collect_passes();
        let idle = held.idle.into_iter().map(ExtentId).collect();
        let demand =
            EngineDemand { wanted_blocks: held.wanted_blocks, waiting: held.waiting, running: held.running };
        self.reports.push_back(EngineReport::Held { idle, demand });
    }

    /// The scheduler has given extents back.
    pub fn on_retired(&mut self, retired: &Retired) {
        let extents: Vec<_> = retired.extents.iter().copied().map(ExtentId).collect();
        self.reports.push_back(EngineReport::Retired { extents, preempted: retired.preempted });
    }

    /// What the scheduler lacks has changed.
    pub fn on_demand(&mut self, demand: &Demand) {
        let Demand { wanted_blocks, waiting, running, .. } = *demand;
        self.reports.push_back(EngineReport::Demand(EngineDemand { wanted_blocks, waiting, running }));
    }

    /// A process of the engine has exited.
    pub fn on_lost(&mut self) {
        self.connection.handle().set(None);
        *self.connection.map() = None;
        (self.worker, self.scheduler, self.extents, self.change) = (None, None, None, None);
        (self.welcome, self.holds_next) = (None, false);
        self.announced.clear();
        self.reports.clear();
        self.passes = ReportedPasses::after_all(&self.control);
        self.reports.push_back(EngineReport::Lost);
    }

    /// Returns the handle of the worker.
    pub fn handle(&self) -> &EngineHandle<WorkerSender> {
        self.connection.handle()
    }

    fn take_id(&mut self) -> ActionId {
        self.next_id -= 1;
        ActionId(self.next_id)
    }

    fn collect_passes(&mut self) {
        while let Some(report) = self.passes.next(&self.control, self.layers) {
            self.reports.push_back(report);
        }
    }
}

/// The steps of a `Resume`.
impl OwnedEngine {
    fn map(&mut self, resume: Resume) {
        let ops: Vec<MapOp> = match &mut *self.connection.map() {
            Some(map) => map.apply(&resume.withdrawn, &resume.memory),
            None => Vec::new(),
        };
        if ops.is_empty() {
            return self.zero(resume);
        }
        let id = self.take_id();
        self.change = Some(Change { resume, awaited: Awaited::Mapped(id) });
        self.connection.remap_at_worker(id, &ops);
    }

    fn zero(&mut self, resume: Resume) {
        let positions: Vec<KvChunkId> = match &*self.connection.map() {
            Some(map) => resume.granted.iter().flat_map(|extent| map.positions_of(*extent)).collect(),
            None => Vec::new(),
        };
        let Some(worker) = self.worker.clone().filter(|_| !positions.is_empty()) else {
            return self.announce(resume);
        };
        let id = self.take_id();
        self.change = Some(Change { resume, awaited: Awaited::Zeroed(id) });
        send(&worker, worker.send_zero(id, &positions));
    }

    fn announce(&mut self, resume: Resume) {
        let Some(worker) = self.worker.clone().filter(|_| resume.leased_layers != self.announced) else {
            return self.resume_scheduler(resume);
        };
        let id = self.take_id();
        self.announced.clone_from(&resume.leased_layers);
        let (layers, first_pass) = (resume.leased_layers.clone(), self.control.passes_begun() + 1);
        self.change = Some(Change { resume, awaited: Awaited::Announced(id) });
        send(&worker, worker.send_moving(Moving { id, layers, first_pass }));
    }

    fn resume_scheduler(&mut self, resume: Resume) {
        let numbers = |extents: Vec<ExtentId>| extents.into_iter().map(|extent| extent.0).collect::<Vec<_>>();
        let granted = numbers(resume.granted);
        if self.commands().is_none() {
            self.welcome.get_or_insert_default().extend(granted);
            return self.welcome_scheduler();
        }
        let withdrawn = numbers(resume.withdrawn);
        self.command(|scheduler, id| scheduler.send_resume(ResumeMessage { id, granted, withdrawn }));
        self.hold_next();
    }

    /// Replies to the scheduler's hello once it has come and its first extents have memory.
    fn welcome_scheduler(&mut self) {
        let (Some(scheduler), Some(KvExtents { extent_blocks, extents })) =
            (&mut self.scheduler, self.extents)
        else {
            return;
        };
        let Some(granted) = self.welcome.take() else { return };
        let sent = scheduler.welcome(&SchedulerSetup { extent_blocks, extents, granted });
        self.check_sent(sent);
        self.hold_next();
    }

    /// Gives the order to hold that came too early.
    fn hold_next(&mut self) {
        if std::mem::take(&mut self.holds_next) {
            self.hold();
        }
    }

    /// Holds the scheduler: at once if it runs, else when it goes on.
    fn hold(&mut self) {
        if self.commands().is_none() || self.change.is_some() {
            self.holds_next = true;
            return;
        }
        self.command(|scheduler, id| scheduler.send_hold(id));
    }

    fn commands(&self) -> Option<&SchedulerSender> {
        self.scheduler.as_ref().and_then(|scheduler| scheduler.commands())
    }

    fn command(&mut self, command: impl FnOnce(&SchedulerSender, ActionId) -> Result<(), LinkError>) {
        let id = self.take_id();
        let sent = self.commands().map(|commands| command(commands, id));
        self.check_sent(sent.unwrap_or(Ok(())));
    }

    /// An engine whose scheduler cannot be reached ends as a whole.
    fn check_sent(&self, sent: Result<(), LinkError>) {
        if let (Err(error), Some(worker)) = (sent, &self.worker) {
            tracing::warn!(%error, "could not order the scheduler of the engine");
            worker.shutdown();
        }
    }

    fn lease(&self, pass: u64, generations: &[(LayerId, sluice_policy::ids::Generation)]) {
        for layer in &self.announced {
            let named = generations.iter().find(|(one, _)| one == layer).map(|(_, generation)| *generation);
            self.control.publish_lease(*layer, pass, named).expect("the layer is one of the model's");
        }
    }
}

/// A link that fails is cut: the receiver's thread reports the loss of the worker, which ends every change.
fn send(worker: &WorkerSender, sent: Result<(), LinkError>) {
    if let Err(error) = sent {
        tracing::warn!(%error, "could not order the worker of the engine");
        worker.shutdown();
    }
}

impl BudgetEngine for OwnedEngine {
    fn submit(&mut self, _now: Nanos, order: EngineOrder) {
        match order {
            EngineOrder::Hold => self.hold(),
            EngineOrder::Retire { extents } => {
                self.command(|scheduler, id| scheduler.send_retire(id, extents))
            }
            EngineOrder::Resume(resume) => self.map(resume),
            EngineOrder::Lease { pass, generations } => self.lease(pass, &generations),
            EngineOrder::Abort => {
                tracing::error!("the engine has lost KV, or its reports contradict each other: ending it");
                self.worker.iter().for_each(WorkerSender::shutdown);
            }
        }
    }

    fn poll(&mut self, _now: Nanos) -> Option<EngineReport> {
        if self.reports.is_empty() && self.worker.is_some() && self.scheduler.is_some() {
            self.collect_passes();
        }
        self.reports.pop_front()
    }
}

/// Returns the chunks of KV among the mappings of device memory.
pub fn backed_kv(mappings: &[MapOp]) -> Vec<(KvChunkId, ChunkId)> {
    let kv = |op: &MapOp| match *op {
        MapOp::Map(Address::Kv(at), chunk) => Some((at, chunk)),
        _ => None,
    };
    mappings.iter().filter_map(kv).collect()
}

//! The interface to an engine that schedules its requests by itself, such as vLLM: it has a budget of KV blocks.
//!
//! Memory changes while the engine is held, between two forward passes. An order has at most one answer, and the engine
//! reports in the order in which things happen.

use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos};
use sluice_policy::memory_manager::StepTimes;

/// A KV extent of the engine: the fewest consecutive KV blocks that fill whole chunks in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

impl ExtentId {
    /// The extent with the engine's null block. It is never withdrawn.
    pub const NULL: ExtentId = ExtentId(0);
}

/// How the engine lays its KV out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineKv {
    /// Extents that the engine has addresses for, at least 1.
    pub extents: u32,
    /// KV blocks of the engine in an extent, at least 1.
    pub blocks_per_extent: u32,
    /// Chunks of an extent in one layer, at least 1.
    pub chunks_per_layer: u32,
    /// Extents that hold the longest request of the engine, [`ExtentId::NULL`] included.
    pub guaranteed_extents: u32,
}

/// What the engine's requests lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineDemand {
    /// KV blocks that its requests lack for their next tokens.
    pub wanted_blocks: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
}

impl EngineDemand {
    /// Whether a request waits or runs.
    pub fn has_requests(self) -> bool {
        self.waiting > 0 || self.running > 0
    }
}

/// A report of the engine. The reports of a pass come in order, the last one before [`EngineReport::Held`].
#[derive(Clone, Debug, PartialEq)]
pub enum EngineReport {
    /// A worker has attached. It loads the weights of all layers into their chunks.
    Started,
    /// Its weights are loaded and its KV is laid out. It runs no request before [`EngineOrder::Resume`].
    Attached(EngineKv),
    /// No pass runs, and none begins before [`EngineOrder::Resume`].
    Held {
        /// Granted extents of which no request uses a block, the one that was used longest ago first.
        idle: Vec<ExtentId>,
        /// What its requests lack.
        demand: EngineDemand,
    },
    /// It gave these extents back.
    Retired {
        /// The extents, at most as many as were asked for.
        extents: Vec<ExtentId>,
        /// Requests that it preempted for them.
        preempted: u32,
    },
    /// What its requests lack has changed.
    Demand(EngineDemand),
    /// A forward pass begins. Passes count from 1.
    PassBegun {
        /// Its number.
        pass: u64,
    },
    /// The pass that began last has ended.
    PassEnded(StepTimes),
    /// A process of it has exited (confirmed), and its KV is lost.
    Lost,
}

/// The memory behind an extent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtentMemory {
    /// The extent.
    pub extent: ExtentId,
    /// The part of the extent in each layer, `0..chunks_per_layer`.
    pub part: u32,
    /// The KV chunk of the memory manager that backs this part, by layer. A KV chunk has one layer block.
    pub layers: Vec<LayerBlockId>,
}

/// What the engine must know before it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resume {
    /// Epoch of the time slice; 0 where there are none.
    pub epoch: u64,
    /// Extents that have memory now and had none. They are filled with zeros.
    pub granted: Vec<ExtentId>,
    /// Extents that have no memory any more.
    pub withdrawn: Vec<ExtentId>,
    /// Memory of extents that is new or has moved.
    pub memory: Vec<ExtentMemory>,
    /// Layers that a pass reads only after [`EngineOrder::Lease`] named what they must show.
    pub leased_layers: Vec<LayerId>,
}

/// An order to the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EngineOrder {
    /// Begin no further pass, and report [`EngineReport::Held`] when all have ended.
    Hold,
    /// While held: give extents back, idle ones first, then those that cost the fewest preemptions.
    Retire {
        /// How many.
        extents: u32,
    },
    /// Passes may begin.
    Resume(Resume),
    /// End: its KV is lost, or its reports contradict each other. [`EngineReport::Lost`] follows.
    Abort,
    /// The pass may read these layers when they show these generations; other layers are there.
    Lease {
        /// Its number.
        pass: u64,
        /// In layer order.
        generations: Vec<(LayerId, Generation)>,
    },
}

/// An engine with a block budget.
pub trait BudgetEngine {
    /// Gives an order. No order follows [`EngineOrder::Hold`] or [`EngineOrder::Retire`] before its answer, except
    /// [`EngineOrder::Lease`].
    fn submit(&mut self, now: Nanos, order: EngineOrder);

    /// Returns the next report by `now`.
    fn poll(&mut self, now: Nanos) -> Option<EngineReport>;

    /// Returns when the next report comes if it is known; `None` if another event must come first.
    fn next_due(&self) -> Option<Nanos> {
        None
    }
}

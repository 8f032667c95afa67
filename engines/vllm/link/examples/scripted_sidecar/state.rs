//! What the stand-in knows, and the orders that it sends.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sluice_link::control::{ControlPage, PassCursor};
use sluice_link::message::{Held, KvExtents, KvLayout, Moving, Resume, Retired, WorkerSetup};
use sluice_link::server::scheduler::SchedulerSender;
use sluice_link::server::worker::WorkerSender;
use sluice_link::vocabulary::{ActionId, Address, ChunkId, KvChunkId, LayerId, MapOp};

use crate::copier::Copier;
use crate::options::Options;
use crate::pool::Pool;

/// Longest wait for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(120);

/// The stand-in.
pub(crate) struct Sidecar {
    pub(crate) options: Options,
    pub(crate) control: ControlPage,
    state: Mutex<State>,
    changed: Condvar,
}

/// Everything that changes.
pub(crate) struct State {
    pub(crate) pool: Pool,
    /// The chunks behind each layer. Moving layers have those of the first of them.
    pub(crate) layers: Vec<Vec<u32>>,
    /// The master copy of each layer, once the worker has loaded.
    pub(crate) master: Vec<Vec<u8>>,
    pub(crate) layout: Option<(KvLayout, KvExtents)>,
    /// The chunks of each extent with memory.
    pub(crate) extents: BTreeMap<u32, Vec<u32>>,
    pub(crate) worker: Option<WorkerSender>,
    pub(crate) scheduler: Option<SchedulerSender>,
    /// Replies of the worker that were not read yet.
    pub(crate) replies: BTreeMap<ActionId, Result<(), String>>,
    pub(crate) held: Option<Held>,
    pub(crate) retired: Option<Retired>,
    /// What the next `Resume` carries.
    pub(crate) granted: Vec<u32>,
    pub(crate) withdrawn: Vec<u32>,
    pub(crate) is_held: bool,
    /// Whether a worker's link has ended and its KV was not taken back yet.
    pub(crate) is_ending: bool,
    /// Whether KV was given to the worker, so that a scheduler may begin.
    pub(crate) has_kv: bool,
    pub(crate) moving: Vec<LayerId>,
    pub(crate) copier: Option<Copier>,
    pub(crate) poison: bool,
    pub(crate) copy_delay: Duration,
    /// Refuses the next hello.
    pub(crate) refusal: Option<String>,
    pub(crate) passes: PassCursor,
    last_id: u64,
}

/// Prints one line.
pub(crate) fn print(line: &Value) {
    println!("{line}");
}

impl Sidecar {
    pub(crate) fn new(options: Options) -> anyhow::Result<Sidecar> {
        let layers = u16::try_from(options.layer_chunks.len())?;
        let control = ControlPage::create_with_passes(layers)?;
        let mut pool = Pool::new(options.chunk_bytes, options.capacity_chunks)?;
        let layers: Result<_, _> =
            options.layer_chunks.iter().map(|chunks| pool.take(*chunks as usize)).collect();
        let state = State {
            pool,
            layers: layers?,
            master: Vec::new(),
            layout: None,
            extents: BTreeMap::new(),
            worker: None,
            scheduler: None,
            replies: BTreeMap::new(),
            held: None,
            retired: None,
            granted: Vec::new(),
            withdrawn: Vec::new(),
            is_held: false,
            is_ending: false,
            has_kv: false,
            moving: Vec::new(),
            copier: None,
            poison: false,
            copy_delay: Duration::ZERO,
            refusal: None,
            passes: PassCursor::default(),
            last_id: 0,
        };
        Ok(Sidecar { options, control, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Returns the sizes for a worker.
    pub(crate) fn setup(&self) -> WorkerSetup {
        WorkerSetup {
            device: sluice_link::message::Device::Host,
            chunk_bytes: self.options.chunk_bytes,
            capacity_chunks: self.options.capacity_chunks,
            layer_chunks: self.options.layer_chunks.clone(),
            kv_chunks: self.options.kv_chunks,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all waiters.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = Instant::now() + REPLY_LIMIT;
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(value);
            }
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no {what} within {REPLY_LIMIT:?}");
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends an order to the worker and waits for its reply.
    pub(crate) fn order(
        &self,
        send: impl FnOnce(&WorkerSender, ActionId) -> Result<(), sluice_link::error::LinkError>,
    ) -> anyhow::Result<()> {
        let (worker, id) = {
            let mut state = self.lock();
            let id = state.next_id();
            (state.worker.clone().context("no worker is connected")?, id)
        };
        send(&worker, id)?;
        let reply = self.wait_for("reply of the worker", |state| match state.worker {
            None => Some(Err("the worker has exited".to_owned())),
            Some(_) => state.replies.remove(&id),
        })?;
        reply.map_err(|reason| anyhow::anyhow!("the worker refuses: {reason}"))
    }

    /// Lets the layers of `moving` move from the next pass on. No pass runs.
    pub(crate) fn announce_moving(&self, moving: &[LayerId]) -> anyhow::Result<u64> {
        let first_pass = self.control.passes_begun() + 1;
        self.order(|worker, id| worker.send_moving(Moving { id, layers: moving.to_vec(), first_pass }))?;
        Ok(first_pass)
    }

    /// Holds the scheduler.
    pub(crate) fn hold(&self) -> anyhow::Result<Held> {
        let (scheduler, id) = {
            let mut state = self.lock();
            ensure!(!state.is_held, "the scheduler is held already");
            state.held = None;
            let id = state.next_id();
            (state.scheduler.clone().context("no scheduler is connected")?, id)
        };
        scheduler.send_hold(id)?;
        let held = self.wait_scheduler("Held", |state| state.held.clone())?;
        self.change(|state| state.is_held = true);
        Ok(held)
    }

    /// Lets a held scheduler give up extents, and takes their memory.
    pub(crate) fn retire(&self, extents: u32) -> anyhow::Result<Retired> {
        let (scheduler, id) = {
            let mut state = self.lock();
            ensure!(state.is_held, "the scheduler is not held");
            state.retired = None;
            let id = state.next_id();
            (state.scheduler.clone().context("no scheduler is connected")?, id)
        };
        scheduler.send_retire(id, extents)?;
        let retired = self.wait_scheduler("Retired", |state| state.retired.clone())?;
        self.unmap_extents(&retired.extents)?;
        Ok(retired)
    }

    /// Takes the memory of up to `count` idle extents of a held scheduler. The next `Resume` names them.
    pub(crate) fn withdraw(&self, count: usize) -> anyhow::Result<Vec<u32>> {
        let idle = {
            let state = self.lock();
            ensure!(state.is_held, "the scheduler is not held");
            let idle = state.held.as_ref().map_or(&[][..], |held| &held.idle);
            let still: Vec<u32> = idle.iter().copied().filter(|e| state.extents.contains_key(e)).collect();
            still.into_iter().take(count).collect::<Vec<_>>()
        };
        self.unmap_extents(&idle)?;
        self.change(|state| state.withdrawn.extend(&idle));
        Ok(idle)
    }

    /// Resumes a held scheduler with what was granted and withdrawn.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        let (scheduler, resume) = {
            let mut state = self.lock();
            ensure!(state.is_held, "the scheduler is not held");
            state.is_held = false;
            let id = state.next_id();
            let granted = std::mem::take(&mut state.granted);
            let withdrawn = std::mem::take(&mut state.withdrawn);
            let scheduler = state.scheduler.clone().context("no scheduler is connected")?;
            (scheduler, Resume { id, granted, withdrawn })
        };
        Ok(scheduler.send_resume(resume)?)
    }

    fn wait_scheduler<T>(&self, what: &str, ready: impl Fn(&State) -> Option<T>) -> anyhow::Result<T> {
        self.wait_for(what, |state| match state.scheduler {
            None => Some(None),
            Some(_) => ready(state).map(Some),
        })?
        .context("the scheduler has exited")
    }

    /// Maps `count` more extents and lets the worker fill them with zeros. Returns them.
    pub(crate) fn map_extents(&self, count: usize) -> anyhow::Result<Vec<u32>> {
        let (new, ops, positions) = {
            let mut state = self.lock();
            let (layout, extents) = state.layout.context("the worker has no KV layout yet")?;
            let new: Vec<u32> =
                (0..extents.extents).filter(|e| !state.extents.contains_key(e)).take(count).collect();
            ensure!(new.len() == count, "{} extents are left, {count} are asked for", new.len());
            let (mut ops, mut all) = (Vec::new(), Vec::new());
            for extent in &new {
                let positions = layout.extent_chunks(self.options.chunk_bytes, extents, *extent);
                let chunks = state.pool.take(positions.len())?;
                let pairs = positions.iter().zip(&chunks);
                ops.extend(pairs.map(|(at, chunk)| MapOp::Map(Address::Kv(*at), ChunkId(*chunk))));
                state.extents.insert(*extent, chunks);
                all.extend(positions);
            }
            (new, ops, all)
        };
        self.order(|worker, id| worker.send_remap(id, &ops))?;
        self.order(|worker, id| worker.send_zero(id, &positions))?;
        Ok(new)
    }

    fn unmap_extents(&self, extents: &[u32]) -> anyhow::Result<()> {
        let mut ops = Vec::new();
        {
            let state = self.lock();
            for extent in extents {
                let chunks = state.extents.get(extent).with_context(|| format!("no extent {extent}"))?;
                let pairs = self.positions(&state, *extent)?.into_iter().zip(chunks);
                ops.extend(pairs.map(|(at, chunk)| MapOp::Unmap(Address::Kv(at), ChunkId(*chunk))));
            }
        }
        self.order(|worker, id| worker.send_remap(id, &ops))?;
        let mut state = self.lock();
        for extent in extents {
            let chunks = state.extents.remove(extent).context("it was there before")?;
            let poison = state.poison;
            state.pool.give_back(&chunks, poison)?;
        }
        Ok(())
    }

    pub(crate) fn positions(&self, state: &State, extent: u32) -> anyhow::Result<Vec<KvChunkId>> {
        let Some((layout, extents)) = state.layout else { bail!("the worker has no KV layout yet") };
        Ok(layout.extent_chunks(self.options.chunk_bytes, extents, extent))
    }
}

impl State {
    pub(crate) fn next_id(&mut self) -> ActionId {
        self.last_id += 1;
        ActionId(self.last_id)
    }

    /// Returns what a test may want to know.
    pub(crate) fn describe(&self, control: &ControlPage) -> anyhow::Result<Value> {
        let copies = self.copier.as_ref().map_or(0, Copier::copies);
        Ok(json!({
            "free_chunks": self.pool.free_chunks(),
            "pool_bytes": self.pool.resident_bytes()?,
            "extents": self.extents.keys().collect::<Vec<_>>(),
            "extent_blocks": self.layout.map(|(_, extents)| extents.extent_blocks),
            "all_extents": self.layout.map(|(_, extents)| extents.extents),
            "moving": self.moving.iter().map(|layer| layer.0).collect::<Vec<_>>(),
            "copies": copies,
            "is_held": self.is_held,
            "worker": self.worker.is_some(),
            "scheduler": self.scheduler.is_some(),
            "loaded": !self.master.is_empty(),
            "passes_begun": control.passes_begun(),
            "passes_ended": control.passes_ended(),
        }))
    }
}

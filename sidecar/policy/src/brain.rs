//! The decisions: what is where, what moves, and when.
//!
//! Oneiros (when, how many and which own layers become KV, and when they come back), eLLM (activations lent to KV) and
//! the plain remedies, over one ledger. At most one change of holdings is under way at a time, and only between steps;
//! copies run beside steps, ordered by generations.

use alloc::vec;
use alloc::vec::Vec;

mod check;
mod crowd;
mod deadlines;
mod fetches;
mod fills;
mod hibernate;
mod hunger;
mod lend;
mod lendable;
mod losses;
mod measure;
mod offload;
mod overlap;
mod place;
mod plan;
mod prompts;
mod regrow;
mod remedy;
mod reshape;
mod revert;
mod said;
mod share;
mod sizes;
mod start;
mod trade;
mod view;
mod wake;
mod whole;

pub use crowd::{Crowd, Runner, Waiter};
pub use fills::FILL_RETRIES;
pub use hibernate::Rest;
pub use losses::Stalling;
pub use measure::Measures;
pub use said::{Failed, Prepared, StepLease, StepNeed, StepTimes, TableChange};
pub use share::{fits, floor};
pub use trade::{Claim, Traded};
pub use view::Residency;

use crate::action::{Action, Work};
use crate::event::Completion;
use crate::geometry::Geometry;
use crate::ids::{Generation, Nanos, RequestId};
use crate::kv::Kv;
use crate::ledger::{Holdings, Ledger};
use crate::params::{ForcedRemap, Params};
use crate::pending::{Pending, PendingActions};
use crate::reason::Reason;
use crate::refused::Refused;
use crate::revert::Hysteresis;
use crate::slots::{Generations, Slots};
use crate::step_model::Layout;

use fills::Slabs;
use reshape::Goal;
use sizes::Sizes;
use trade::Trade;

/// Constants by which decisions are made and that nobody sets, with their names: for whoever has to say which ones a run had.
pub const CONSTANTS: [(&str, u64); 13] = [
    ("most_stall_permille", losses::MOST_STALL_PERMILLE),
    ("decline_memory_steps", remedy::DECLINE_MEMORY_STEPS),
    ("write_piece_ns", offload::WRITE_PIECE_NS),
    ("most_piece_bytes", offload::MOST_PIECE_BYTES),
    ("most_wait_ns", offload::MOST_WAIT_NS),
    ("retry_boundaries", revert::RETRY_BOUNDARIES),
    ("regrow_boundaries", regrow::REGROW_BOUNDARIES),
    ("regrow_piece_bytes", regrow::REGROW_PIECE_BYTES),
    ("idle_boundaries", hunger::IDLE_BOUNDARIES as u64),
    ("waited_permille", measure::WAITED_PERMILLE),
    ("least_moving", place::LEAST_MOVING as u64),
    ("swap_piece_bytes", hibernate::SWAP_PIECE_BYTES),
    ("patience_ns", crate::arbiter::PATIENCE_NS),
];

/// Every decision about one tenant's memory on one GPU.
#[derive(Clone, Debug)]
pub struct Brain {
    params: Params,
    geometry: Geometry,
    sizes: Sizes,
    /// The layout that the configuration orders.
    forced: Option<ForcedRemap>,
    ledger: Ledger,
    holdings: Holdings,
    kv: Kv,
    slabs: Slabs,
    /// No own chunks wait for a copy.
    slabs_settled: bool,
    slots: Slots,
    generations: Generations,
    /// By layer: the newest generation that a lease named. Its reader may be done with everything up to it.
    leased: Vec<Generation>,
    pending: PendingActions,
    measures: Measures,
    hysteresis: Hysteresis,
    goal: Option<Goal>,
    trade: Trade,
    rest: Rest,
    /// KV is not kept while the tenant sleeps.
    discard: bool,
    /// Copies to the host tier that failed in a row.
    swap_failures: u32,
    /// What is away while its requests run.
    offload: offload::Offload,
    /// Requests whose KV was lost on its way.
    lost: Vec<RequestId>,
    /// Requests that were admitted again at this boundary, with the KV that they have.
    resumed: Vec<RequestId>,
    /// Some ran when this boundary came.
    some_ran: bool,
    /// Layers without memory, counted when the holdings of layers change: every step asks.
    absent: u16,
    /// Why the last layout was taken: the reason of the copies it needs.
    fill_reason: Reason,
    /// The layout without load: all resident, or what the tenant needs to fit at all.
    base: Layout,
    loaded: bool,
    in_step: bool,
    moments: deadlines::Moments,
    /// The step under way, or the last one, began while weights were on their way.
    behind: bool,
    /// A step lost its engine and will be begun again: nothing that it names may move meanwhile.
    unfinished: bool,
    failure: Option<Failed>,
    create_piece: u32,
    create_tries: u32,
    map_tries: u32,
    fill_failures: u32,
    fill_retries: u64,
    /// Changes that the backend failed in a row.
    failed_changes: u32,
    /// No change that can wait is tried before this boundary.
    retry_at: u64,
    /// Remappings that hide and were declined, and those that stall.
    declined: remedy::Declined,
    declined_stalling: remedy::Declined,
    moved_at_step: Option<u64>,
    /// Steps that had ended when own layers were last taken for KV.
    remapped_at_step: Option<u64>,
    boundaries: u64,
    steps: u64,
    counters: [u64; Reason::ALL.len()],
    /// Chunks that changed their owner, by reason.
    moved_chunks: [u64; Reason::ALL.len()],
}

impl Brain {
    /// A brain that has ordered nothing yet.
    pub fn new(params: Params, geometry: Geometry) -> Result<Brain, Refused> {
        let sizes = Sizes::new(&params, &geometry)?;
        Ok(Brain {
            forced: params.forced,
            ledger: Ledger::new(geometry.capacity_chunks, geometry.chunk_bytes),
            holdings: Holdings::new(&geometry, sizes.kv_limit),
            kv: Kv::new(
                sizes.layers,
                sizes.kv_limit,
                sizes.blocks_per_chunk,
                sizes.host_columns,
                params.prefix_caching,
            ),
            slabs: Slabs::new(sizes.layers),
            slabs_settled: false,
            slots: Slots::default(),
            absent: sizes.layers,
            generations: Generations::default(),
            leased: vec![Generation(0); usize::from(sizes.layers)],
            pending: PendingActions::default(),
            measures: Measures::new(&params, &geometry.slab_bytes),
            hysteresis: Hysteresis::new(params.revert_patience_steps, params.revert_reserve_permille),
            goal: None,
            trade: Trade::new(
                sizes.share,
                Hysteresis::new(params.revert_patience_steps, params.revert_reserve_permille),
            ),
            rest: Rest::Awake,
            discard: false,
            swap_failures: 0,
            offload: offload::Offload::new(&params, sizes.layers, sizes.host_columns),
            lost: Vec::new(),
            resumed: Vec::new(),
            some_ran: false,
            fill_reason: Reason::Load,
            base: Layout::resident(),
            loaded: false,
            in_step: false,
            moments: deadlines::Moments::default(),
            behind: false,
            unfinished: false,
            failure: None,
            create_piece: u32::MAX,
            create_tries: 0,
            map_tries: 0,
            fill_failures: 0,
            fill_retries: 0,
            failed_changes: 0,
            retry_at: 0,
            declined: remedy::Declined::default(),
            declined_stalling: remedy::Declined::default(),
            moved_at_step: None,
            remapped_at_step: None,
            boundaries: 0,
            steps: 0,
            counters: [0; Reason::ALL.len()],
            moved_chunks: [0; Reason::ALL.len()],
            params,
            geometry,
            sizes,
        })
    }

    /// Orders everything that serving needs: chunks, mappings, slabs.
    pub fn start(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.moments.now = now;
        assert_eq!(self.pending.ordered(), 0, "a tenant starts once");
        self.create_next(out);
    }

    /// An ordered action has ended.
    pub fn complete(&mut self, now: Nanos, done: &Completion, out: &mut Vec<Action>) {
        self.moments.now = now;
        match self.pending.take(done.id) {
            Pending::Create(chunks) => self.created(&chunks, done.outcome, out),
            Pending::Release(chunks) => self.released(&chunks, done.outcome),
            Pending::Regrow(chunks) => self.regrown(&chunks, done.outcome),
            Pending::Accept(chunks, earmark, claim) => self.accepted(&chunks, earmark, claim, done.outcome),
            Pending::Lend(chunks, spare, earmark, claim) => {
                self.lent(&chunks, spare, (earmark, claim), done.outcome)
            }
            Pending::Reback(change) => self.rebacked(*change, done.outcome, out),
            Pending::Fill { target, generation } => self.filled(target, generation, done.outcome, out),
            Pending::Move(moves) => self.moved(&moves, done.outcome),
            Pending::SwapOut(swaps) => self.swapped_out(&swaps, done.outcome),
            Pending::SwapIn(swaps) | Pending::ComeHome(swaps) => self.swapped_in(&swaps, done.outcome),
            Pending::Fetch { layer, buffer, generation, copies } => {
                self.fetched((layer, buffer), (generation, copies), done.outcome, out);
            }
            Pending::WriteBack(written) => self.written_back(&written, done.outcome),
            Pending::Spill(name) => self.spilled(name, done.outcome),
            Pending::Cede(chunks) => self.ceded(&chunks, done.outcome),
            Pending::Drop => self.dropped(out),
        }
    }

    /// No copy is under way: a change of layout that waited for it goes on, else what is due is ordered again.
    fn dropped(&mut self, out: &mut Vec<Action>) {
        let waiting = self.goal.as_ref().is_some_and(|goal| goal.target.moves_weights());
        if waiting && !self.in_step && !self.unfinished && !self.pending.blocking() {
            self.advance(out);
        }
        self.order_fills(out);
        self.order_fetches_again(out);
    }

    /// Every slab was committed once (moving layers: the first instance of each slot).
    pub fn loaded(&self) -> bool {
        self.loaded && self.failure.is_none()
    }

    /// An action is pending beside which no step may begin: anything but a fill.
    pub fn blocked(&self) -> bool {
        self.pending.blocking()
    }

    /// Nothing would change at the coming boundaries if no request came: everything borrowed is back.
    pub fn at_rest(&self) -> bool {
        self.settled()
    }

    /// Begins a request's KV and references the cached full columns of its prefix. Returns the tokens cached: a
    /// multiple of 16, less than `tokens.len()`.
    pub fn open(&mut self, request: RequestId, salt: u64, tokens: &[u32]) -> u32 {
        let cached = self.kv.open(request, salt, tokens);
        self.join(request);
        cached
    }

    /// The KV of these tokens, which follow those committed before, is written: full columns become shareable.
    pub fn commit(&mut self, request: RequestId, tokens: &[u32]) {
        self.kv.commit(request, tokens);
    }

    /// Ends a request's KV: shareable columns stay as cache, the rest is freed. Unknown requests are ignored.
    pub fn close(&mut self, request: RequestId) {
        self.kv.close(request);
    }

    /// Columns that the request holds.
    pub fn columns(&self, request: RequestId) -> u32 {
        self.kv.columns(request)
    }

    /// Every column of an open request whose blocks are new or moved since last taken.
    pub fn take_table_changes(&mut self) -> Vec<TableChange> {
        self.kv.take_table_changes()
    }

    /// Asks for a step's memory, all or nothing. Only at a step boundary.
    pub fn prepare(&mut self, now: Nanos, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        self.moments.now = now;
        if self.in_step || self.blocked() || !self.loaded() {
            return Prepared::Wait;
        }
        self.prepare_step(need, out)
    }

    /// The step starts. Orders its fills and the early ones of the next. Called again within a step it returns the same
    /// lease.
    ///
    /// # Panics
    /// If the brain is blocked or not loaded.
    pub fn begin(&mut self, now: Nanos, out: &mut Vec<Action>) -> StepLease {
        self.moments.now = now;
        assert!(!self.dormant(), "a step begins when every layer has memory");
        assert_eq!(self.kv.wanted_blocks(), 0, "a step begins when its KV is on the device");
        assert!(self.loaded() && (self.in_step || !self.blocked()), "a step begins when nothing is pending");
        if !self.in_step {
            (self.in_step, self.unfinished) = (true, false);
            self.moments.began = now;
            self.behind = !self.slabs_settled;
            self.slots.extend_step(&mut self.generations);
            self.order_slot_fills(out);
            self.begin_fetches(out);
        }
        let mut generations: Vec<_> = self.slots.lease().collect();
        if !self.slabs_settled {
            generations.extend(self.slabs.arriving());
            generations.sort_unstable();
        }
        for (layer, generation) in &generations {
            self.leased[layer.index()] = *generation;
        }
        // Stale addresses lie behind them: the engine does not touch what a lease does not reach.
        let chunks = self.holdings.activation.len() as u64;
        StepLease {
            generations,
            kv_generations: self.kv.fetch_lease(),
            activation_limit_bytes: chunks * self.geometry.chunk_bytes,
        }
    }

    /// The step is done.
    pub fn finish(&mut self, _now: Nanos, times: &StepTimes, _out: &mut Vec<Action>) {
        assert!(self.in_step, "a step that ends has begun");
        self.in_step = false;
        self.steps += 1;
        if self.slots.step_over() {
            self.note_slots();
        }
        self.observe_step(times);
        self.kv.end_fetches();
        if !self.behind {
            self.measures.stepped(times);
        }
    }

    /// A step boundary, also an idle one: reversion, compaction, draining.
    pub fn boundary(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.moments.now = now;
        self.boundaries += 1;
        self.resumed.clear();
        self.some_ran = self.kv.runners().next().is_some();
        // A boundary means that no step is waiting to be replayed.
        self.unfinished = false;
        self.forget_step();
        self.trade.denied = false;
        if !self.in_step && !self.blocked() && self.loaded() {
            self.at_boundary(out);
        }
    }

    /// The engine is dead. Committed KV stays; slots are filled again under new generations; the lease of an unfinished
    /// step is void and [`Brain::begin`] is called again.
    pub fn engine_lost(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.moments.now = now;
        self.unfinished |= self.in_step;
        self.in_step = false;
        self.count(Reason::Rebuild);
        self.slots.forget();
        self.note_slots();
        self.kv.forget_fetches();
        if self.pending.fills() > 0 || self.pending.fetches() {
            self.drop_fills(Reason::Rebuild, out);
        } else {
            self.order_fills(out);
        }
    }

    /// Sets or lifts the fixed layout. It is taken at the next boundary at which it is feasible. For tests only: it passes
    /// no queue of events, so a journal would not repeat it.
    #[cfg(feature = "testing")]
    pub fn force(&mut self, forced: Option<ForcedRemap>) -> Result<(), Refused> {
        if let Some(forced) = forced {
            sizes::refuse_forced(forced, self.sizes.layers)?;
        }
        self.forced = forced;
        self.retry_at = self.boundaries;
        Ok(())
    }

    /// Orders what a step, or a change between two, waits for.
    fn order(&mut self, work: Work, reason: Reason, effect: Pending, out: &mut Vec<Action>) {
        self.order_by(Some(self.moments.now), work, reason, effect, out);
    }

    fn count(&mut self, reason: Reason) {
        self.count_many(reason, 1);
    }

    fn count_many(&mut self, reason: Reason, times: u32) {
        self.counters[reason as usize] += u64::from(times);
    }

    fn count_moved(&mut self, reason: Reason, chunks: u32) {
        self.moved_chunks[reason as usize] += u64::from(chunks);
    }
}

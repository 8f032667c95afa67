//! The memory manager: every decision about one tenant's memory on one GPU.
//!
//! It owns components that know nothing of it: `chunks` (which chunk backs what), `weights` (copies of layers), `kv`
//! (requests, blocks, prefix cache, host tier), `offload` (what is known and planned for KV that leaves the device),
//! `loans` (share and loans), `sleep` and `transitions` (the transition under way). A method here that needs two of
//! them names its steps. Logic that truly needs several parts is a small struct that borrows them, made here:
//! `Offloading` of `crate::offload` places KV and orders its copies. What a policy reclaims, and in which order, is in
//! [`crate::reclaim`]. At most one transition is under way at a time, and only between two steps; copies run during
//! steps, ordered by generations.
//!
//! # Interface
//!
//! A scheduler needs these calls. The example `external_scheduler` of this crate serves requests with them.
//!
//! | when | calls |
//! |---|---|
//! | the tenant starts; an action ends | [`start`](MemoryManager::start), [`complete`](MemoryManager::complete) |
//! | between two steps | [`set_demand`](MemoryManager::set_demand), [`boundary`](MemoryManager::boundary) |
//! | a request is admitted | [`cached_prefix`](MemoryManager::cached_prefix), then [`StepNeed::admit`] |
//! | a step begins | [`prepare`](MemoryManager::prepare), then [`begin`](MemoryManager::begin) |
//! | a step ends | [`on_tokens_computed`](MemoryManager::on_tokens_computed), [`finish`](MemoryManager::finish) |
//! | a request waits or ends | [`suspend`](MemoryManager::suspend), [`close`](MemoryManager::close) |
//! | a waiting request is cancelled | [`cancel`](MemoryManager::cancel) |
//! | KV was lost in a failed copy | [`take_lost_requests`](MemoryManager::take_lost_requests) |
//! | the engine is lost | [`engine_lost`](MemoryManager::engine_lost) |
//! | its step runs again, or never | `begin`, or [`abandon_step`](MemoryManager::abandon_step) |
//! | the tenant sleeps | [`sleep`](MemoryManager::sleep), [`wake_up`](MemoryManager::wake_up) |
//!
//! An engine that schedules by itself gets the table changes by
//! [`take_table_changes`](MemoryManager::take_table_changes) before its steps.
//!
//! Policies that plan placements (OrbitFlow, Unified) also need [`note`](MemoryManager::note),
//! [`ask_plan`](MemoryManager::ask_plan) and [`planned`](MemoryManager::planned); those that compare costs
//! [`stalling_remap`](MemoryManager::stalling_remap) and
//! [`apply_stalling_remap`](MemoryManager::apply_stalling_remap). A directive is
//! [`set_policy`](MemoryManager::set_policy) or [`set_bounds`](MemoryManager::set_bounds).
//!
//! Views only read: [`status`](MemoryManager::status), [`kv_of`](MemoryManager::kv_of) a request,
//! [`after`](MemoryManager::after) planned admissions, [`offload_view`](MemoryManager::offload_view),
//! [`prices`](MemoryManager::prices), [`timing`](MemoryManager::timing), [`loans`](MemoryManager::loans) and
//! [`figures`](MemoryManager::figures). The negotiator of loans changes them by
//! [`loans_mut`](MemoryManager::loans_mut), which is a [`LoanControl`](crate::loan_negotiator::LoanControl).
//!
//! # Files
//!
//! Methods of a file call those of files below it, and `cargo xtask check` refuses circles of such calls.
//!
//! | file | what it does |
//! |---|---|
//! | this one | the calls of the interface, and the ends of actions |
//! | `boundary` | takes due work one action further: sleep, loans, and what the policy wants |
//! | `prepare` | takes the memory of a step one action further |
//! | `load` | the steps of loading |
//! | `stalling` | finds and begins remaps that stall |
//! | `prepare_plan`, `revert` | decide, and change nothing |
//! | `transition` | finds the next action of a transition, and carries it out |
//! | `step_demand`, `views`, `parts` | values of a step, and borrows of parts |
//! | `loan_control` | the calls of the negotiator of loans |
//! | `step_api`, `constants` | values of the interface, no methods of the manager |
//! | `invariants` | the audit of tests |

use alloc::vec::Vec;

mod boundary;
mod constants;
mod invariants;
mod load;
mod loan_control;
mod parts;
mod prepare;
mod prepare_plan;
mod revert;
mod stalling;
mod step_api;
mod step_demand;
mod transition;
mod views;

pub use crate::cost::{StepStats, StepTimes};
pub use crate::kv::admissions::{Admission, AdmittedKv};
pub use crate::kv::cached_prefix::CachedPrefix;
pub use crate::kv::request_kv::RequestKv;
pub use crate::kv::table_change::TableChange;
pub use crate::loans::audit::LoanAudit;
pub use crate::loans::view::LoanView;
pub use crate::loans::{TransferKind, TransferResult};
pub use crate::offload::OffloadView;
pub use crate::offload::admission::{AdmissionView, PlanAdmission, PlannedAdmissions, PrefillOffload};
pub use crate::offload::scheduler_view::{RunningRequest, SchedulerView, WaitingRequest};
pub use crate::sizes::{fits, floor};
pub use crate::sleep::SleepState;
pub use crate::weights::FILL_RETRIES;
pub use constants::CONSTANTS;
pub use loan_control::LoansMut;
pub use stalling::StallingRemap;
pub use step_api::{
    Demand, Failed, MemoryNotes, Prepared, StallsTooLong, StepLease, StepNeed, SuspendReason,
};
pub use views::{Figures, PriceView, Residency, StatusView, TimingView};

use crate::action::{Action, FillTarget};
use crate::chunks::Chunks;
use crate::config_error::ConfigError;
use crate::event::{Completion, Outcome};
use crate::geometry::Geometry;
use crate::ids::{Generation, Nanos, RequestId};
use crate::kv::Kv;
use crate::loans::Loans;
use crate::offload::{FetchesFailed, Offload};
use crate::orders::Orders;
use crate::orders::pending::{Pending, PendingTransaction};
use crate::params::{Bounds, ForcedRemap, Params};
use crate::placement_planner::request::{PlanAnswer, PlanRequest};
use crate::reason::Reason;
use crate::reclaim::PolicyName;
use crate::revert::Hysteresis;
use crate::sizes::Sizes;
use crate::sleep::Sleep;
use crate::slots::Generations;
use crate::step_model::Layout;
use crate::transition::TransitionState;
use crate::weights::{FillFailed, Weights};

/// The memory of one tenant on one GPU.
#[derive(Clone, Debug)]
pub struct MemoryManager {
    params: Params,
    geometry: Geometry,
    sizes: Sizes,
    /// The layout that the configuration fixes.
    forced: Option<ForcedRemap>,
    chunks: Chunks,
    kv: Kv,
    weights: Weights,
    generations: Generations,
    /// What is ordered, counted and under way.
    orders: Orders,
    step_stats: StepStats,
    transitions: TransitionState,
    loans: Loans,
    sleep: Sleep,
    /// KV that is offloaded while its requests run.
    offload: Offload,
    /// The layout without load: all layers resident, or as many as fit.
    base: Layout,
    loaded: bool,
    failure: Option<Failed>,
}

impl MemoryManager {
    /// A memory manager that has ordered nothing yet.
    pub fn new(params: Params, geometry: Geometry) -> Result<MemoryManager, ConfigError> {
        let sizes = Sizes::new(&params, &geometry)?;
        Ok(MemoryManager {
            forced: params.forced,
            chunks: Chunks::new(&geometry, sizes.kv_limit),
            kv: Kv::new(
                sizes.layers,
                sizes.kv_limit,
                sizes.layer_blocks_per_chunk,
                sizes.host_kv_blocks,
                params.prefix_caching,
            ),
            weights: Weights::new(sizes.layers),
            generations: Generations::default(),
            orders: Orders::new(params.link_by_deadline),
            step_stats: StepStats::new(&params, &geometry.slab_bytes),
            transitions: TransitionState::new(Hysteresis::new(
                params.revert_patience_steps,
                params.revert_reserve_permille,
            )),
            loans: Loans::new(
                sizes.share,
                Hysteresis::new(params.revert_patience_steps, params.revert_reserve_permille),
            ),
            sleep: Sleep::default(),
            offload: Offload::new(&params, sizes.layers, sizes.host_kv_blocks),
            base: Layout::resident(),
            loaded: false,
            failure: None,
            params,
            geometry,
            sizes,
        })
    }

    /// Orders everything that serving needs: chunks, mappings, copies of weights.
    pub fn start(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.orders.set_now(now);
        assert_eq!(self.orders.pending().ordered(), 0, "a tenant starts once");
        self.create_next(out);
    }

    /// Handles the end of an ordered action.
    pub fn complete(&mut self, now: Nanos, done: &Completion, out: &mut Vec<Action>) {
        self.orders.set_now(now);
        match self.orders.take(done.id) {
            Pending::Create(chunks) => self.on_created(&chunks, done.outcome, out),
            Pending::Release(chunks) => self.on_released(&chunks, done.outcome),
            Pending::Recreate(chunks) => self.transfers().on_recreated(&chunks, done.outcome),
            Pending::Accept(chunks, earmark, kind) => {
                self.transfers().on_accepted(&chunks, earmark, kind, done.outcome)
            }
            Pending::Lend(chunks, spare, earmark, kind) => {
                self.transfers().on_lent(&chunks, spare, (earmark, kind), done.outcome)
            }
            Pending::Transaction(ended) => self.on_transaction_ended(*ended, done.outcome, out),
            Pending::Fill { target, generation } => self.on_filled(target, generation, done.outcome, out),
            Pending::Move(moves) => self.on_moved(&moves, done.outcome),
            Pending::SwapOut(swaps) => self.on_swapped_out(&swaps, done.outcome),
            Pending::SwapIn(swaps) | Pending::AsyncSwapIn(swaps) => {
                self.offloading().on_swapped_in(&swaps, done.outcome)
            }
            Pending::Fetch { layer, buffer, generation, copies } => {
                let content = (generation, copies);
                let end = self.offloading().on_fetched((layer, buffer), content, done.outcome, out);
                if let Err(FetchesFailed { layer }) = end {
                    self.failure = Some(Failed::Fetch { layer });
                }
            }
            Pending::WriteBack(written) => self.offloading().on_written_back(&written, done.outcome),
            Pending::Spill(name) => self.offloading().on_spilled(name, done.outcome),
            Pending::ReleaseShare(chunks) => {
                let assigned = self.sizes.share;
                self.transfers().on_share_released(&chunks, assigned, done.outcome)
            }
            Pending::Drop => self.on_dropped(out),
        }
    }

    /// A copy of weights has ended.
    fn on_filled(
        &mut self,
        target: FillTarget,
        generation: Generation,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        let end = self.weight_copies().on_filled(target, generation, outcome, out);
        if let Err(FillFailed(target)) = end {
            self.failure = Some(Failed::Fill { target });
        }
        if !self.loaded && self.failure.is_none() {
            self.loaded = self.weights.all_loaded();
        }
    }

    /// Handles the end of a transaction.
    fn on_transaction_ended(&mut self, ended: PendingTransaction, outcome: Outcome, out: &mut Vec<Action>) {
        if matches!(outcome, Outcome::Done { .. }) {
            self.apply(ended);
        } else {
            self.orders.count(Reason::BackendFailed);
            if self.chunks.is_unmapped() && !self.loaded {
                self.first_mapping_failed(out);
                return;
            }
            self.transitions.failed(self.orders.boundaries());
            self.abort_transition();
        }
        self.weight_copies().order_due(out);
    }

    /// No copy is under way any more. A transition that waited for this continues; else due copies are ordered
    /// again.
    fn on_dropped(&mut self, out: &mut Vec<Action>) {
        let waiting = self.transitions.current().is_some_and(|transition| transition.target.moves_weights());
        if waiting && !self.orders.step().holds_lease() && !self.orders.pending().blocking() {
            self.advance_transition(out);
        }
        self.weight_copies().order_due(out);
        self.offloading().reorder_fetches(out);
    }

    /// Finds the cached full blocks of a new request's first tokens. They stay valid until the next change of memory.
    pub fn cached_prefix(&self, salt: u64, tokens: &[u32]) -> CachedPrefix {
        self.kv.cached_prefix(salt, tokens)
    }

    /// The KV of these tokens is written. They follow the tokens computed before; full blocks become shareable.
    pub fn on_tokens_computed(&mut self, request: RequestId, tokens: &[u32]) {
        self.kv.on_tokens_computed(request, tokens);
    }

    /// A running request waits with its KV from now on. [`AdmittedKv::Suspended`] admits it again.
    pub fn suspend(&mut self, request: RequestId, reason: SuspendReason) {
        self.kv.suspend(request);
        if reason == SuspendReason::Pause {
            self.orders.count(Reason::Pause);
        }
    }

    /// Ends the KV of a request. Shareable blocks stay as cache, others are freed. Unknown requests are ignored.
    pub fn close(&mut self, request: RequestId) {
        self.kv.close(request);
    }

    /// Ends a waiting request: [`MemoryManager::close`], and no plan admits it any more.
    pub fn cancel(&mut self, request: RequestId) {
        self.offload.drop_waiter(request);
        self.kv.close(request);
    }

    /// Takes the requests whose KV was lost in a failed copy: they must be closed and recomputed.
    pub fn take_lost_requests(&mut self) -> Vec<RequestId> {
        self.kv.take_lost_requests()
    }

    /// Asks for the memory of a step, all or nothing. Only at a step boundary. Nothing else opens or resumes KV.
    pub fn prepare(&mut self, now: Nanos, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        self.orders.set_now(now);
        if !self.orders.is_between_steps() || !self.status().is_loaded() {
            return Prepared::Wait;
        }
        self.prepare_step(need, out)
    }

    /// Begins the step. Orders its copies and the early ones of the next step. Called again within a step it returns
    /// the same lease, without table changes.
    ///
    /// # Panics
    /// If the memory manager is blocked or not loaded.
    pub fn begin(&mut self, now: Nanos, out: &mut Vec<Action>) -> StepLease {
        self.orders.set_now(now);
        assert!(!self.status().lacks_weights(), "a step begins when every layer has memory");
        assert_eq!(self.kv.missing_layer_block_count(), 0, "a step begins when its KV is on the device");
        assert!(
            self.status().is_loaded()
                && (self.orders.step().is_running() || !self.orders.pending().blocking()),
            "a step begins when nothing is pending"
        );
        let begins_again = self.orders.step().holds_lease();
        if !self.orders.step().is_running() {
            self.orders.begin_step(!self.weights.is_settled());
            self.weights.begin_step(&mut self.generations);
            self.weight_copies().order_due_slots(out);
            self.offloading().begin_fetches(out);
        }
        let generations = self.weights.lease();
        // Stale addresses are behind the limit: the engine does not access what its lease does not reach.
        let chunks = u64::from(self.chunks.activation_chunks());
        StepLease {
            generations,
            kv_generations: self.kv.layer_offload().fetch_lease(),
            activation_limit_bytes: chunks * self.geometry.chunk_bytes,
            table_changes: if begins_again { Vec::new() } else { self.kv.take_table_changes() },
        }
    }

    /// The step has finished.
    pub fn finish(&mut self, times: &StepTimes) {
        self.orders.finish_step();
        if self.weights.finish_step() {
            self.weight_copies().record_slots();
        }
        self.offloading().observe_step(times);
        self.kv.end_fetches();
        if !self.orders.step().waited_for_weights() {
            self.step_stats.on_step(times);
        }
    }

    /// The step of a lost engine is not repeated: the KV that it should have written is lost.
    pub fn abandon_step(&mut self) {
        self.offloading().abandon_step();
    }

    /// Sets what the tenant has to do. Until the first call it is active, without requests.
    pub fn set_demand(&mut self, demand: Demand) {
        self.loans.set_demand(demand.is_active, demand.has_requests);
    }

    /// Handles a step boundary, also an idle one: reversion, compaction, draining.
    pub fn boundary(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.orders.set_now(now);
        self.orders.on_boundary();
        self.offload.on_boundary(self.kv.requests().running().next().is_some());
        self.abandon_step();
        self.loans.on_boundary();
        if self.orders.is_between_steps() && self.status().is_loaded() {
            self.at_boundary(out);
        }
    }

    /// Remembers what planning found.
    pub fn note(&mut self, notes: &MemoryNotes) {
        self.offload.note_admission(notes.blocked_head, notes.skips_early_fetches);
        if notes.pauses_are_made {
            self.offload.clear_pauses();
        }
        if notes.probes_link {
            self.offload.request_probe(self.orders.boundaries());
        }
        if let Some(declined) = notes.stalls_too_long {
            self.decline_stalling_remap(declined);
        }
        if let Some(violations) = notes.slo_violations {
            self.offload.on_iteration(violations);
        }
    }

    /// The request for a plan of these requests. The driver answers with [`MemoryManager::planned`], however long it
    /// takes.
    pub fn ask_plan(&mut self, view: &SchedulerView) -> PlanRequest {
        self.offloading().ask_plan(view)
    }

    /// The same for running requests alone, none of which may be paused, if a plan is due. For tests only.
    #[cfg(feature = "testing")]
    pub fn take_plan_request(&mut self) -> Option<PlanRequest> {
        let view = self.offload_view().running_alone();
        let is_due = self.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default());
        is_due.then(|| self.ask_plan(&view))
    }

    /// Handles a placement plan. The next boundary carries it out, unless something else is due by then.
    pub fn planned(&mut self, answer: PlanAnswer) {
        self.offload.on_planned(answer);
    }

    /// The engine is lost. Computed KV stays; slots are filled again under new generations. The lease of an unfinished
    /// step is void, and [`MemoryManager::begin`] is called again.
    pub fn engine_lost(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.orders.set_now(now);
        self.orders.on_engine_lost();
        self.orders.count(Reason::Rebuild);
        self.weights.on_engine_lost();
        self.weight_copies().record_slots();
        self.kv.forget_fetches();
        if self.orders.pending().fills() > 0 || self.orders.pending().fetches() {
            self.orders.drop_copies(Reason::Rebuild, out);
        } else {
            self.weight_copies().order_due(out);
        }
    }

    /// Puts the tenant to sleep: it gives up all memory, and no step may begin before [`MemoryManager::wake_up`]. With
    /// `keep_kv`, cache and KV of open requests are kept as far as the host tier has space; else they are dropped. No
    /// effect before the tenant has loaded.
    pub fn sleep(&mut self, keep_kv: bool) {
        self.sleep.set_keeps_kv(keep_kv);
        if self.status().is_loaded() && self.sleep.suspend() {
            self.loans.on_suspend();
        }
        if self.sleep.discards_kv() && self.sleep.state() == SleepState::Asleep {
            self.give_up_cache();
        }
    }

    /// Wakes the tenant.
    pub fn wake_up(&mut self) {
        if self.sleep.state() != SleepState::Awake {
            // A tenant that is not asleep yet is awake at once: this boundary may be the last one for long.
            self.sleep.wake(!self.chunks.is_unmapped() && !self.orders.pending().blocking());
            // Loans are revoked before anything is mapped.
            self.loans.await_loans();
        }
    }

    /// Puts another named policy in force from the next boundary on. Memory that the former one moved is reverted as
    /// without load; its paused requests resume as before.
    ///
    /// # Errors
    /// If the floor under the policy does not fit: nothing has changed then.
    pub fn set_policy(&mut self, policy: PolicyName) -> Result<(), ConfigError> {
        self.set_params(Params { policy, ..self.params.clone() })?;
        if self.offload.prompts_in_force().is_none() {
            self.kv.disable_prefill_spill();
        }
        self.offload.forget_plans();
        Ok(())
    }

    /// Sets the share and the remap cap. A larger share holds at once; a smaller one is reached as memory is released
    /// ([`LoanView::share_chunks`]). Layers beyond a lower cap are restored as memory allows.
    ///
    /// # Errors
    /// If the floor does not fit: nothing has changed then.
    pub fn set_bounds(&mut self, bounds: Bounds) -> Result<(), ConfigError> {
        let Bounds { share_chunks, remap_cap_permille } = bounds;
        self.set_params(Params { share_chunks, remap_cap_permille, ..self.params.clone() })?;
        self.loans.assign_share(self.sizes.share);
        self.transitions.forget_declined();
        if self.loaded && self.forced.is_none() {
            self.base =
                self.layout_search().starting(self.sizes.useful()).unwrap_or_else(|| self.base.clone());
        }
        Ok(())
    }

    /// Takes the table changes of the next lease between two steps, for an engine that schedules by itself: it learns
    /// them before it may begin a step.
    pub fn take_table_changes(&mut self) -> Vec<TableChange> {
        self.kv.take_table_changes()
    }

    /// Fixes the layout or frees it again, at the next boundary at which that is feasible. For tests only: it passes no
    /// event, so a journal does not repeat it.
    #[cfg(feature = "testing")]
    pub fn force_layout(&mut self, forced: Option<ForcedRemap>) -> Result<(), ConfigError> {
        if let Some(forced) = forced {
            crate::sizes::refuse_forced(forced, self.sizes.layers)?;
        }
        self.forced = forced;
        self.transitions.retry_now(self.orders.boundaries());
        Ok(())
    }

    /// Puts other parameters in force, with the sizes and the offload that follow from them.
    ///
    /// # Errors
    /// If the floor does not fit: nothing has changed then.
    fn set_params(&mut self, params: Params) -> Result<(), ConfigError> {
        self.sizes = Sizes::new(&params, &self.geometry)?;
        self.offload.set_policy(&params, self.sizes.layers, self.sizes.host_kv_blocks);
        self.orders.set_by_deadline(params.link_by_deadline);
        self.params = params;
        Ok(())
    }
}

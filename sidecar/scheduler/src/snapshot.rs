//! State and totals for operators and metrics. Nothing here affects decisions.

use sluice_policy::memory_manager::SleepState;

use crate::event::StepOutput;

/// Totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that completed.
    pub steps: u64,
    /// Prompt tokens computed, including recomputed ones.
    pub prefill_tokens: u64,
    /// Tokens decoded.
    pub decode_tokens: u64,
    /// Tokens recomputed after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens looked up in the prefix cache.
    pub queried_tokens: u64,
    /// Tokens found there.
    pub cached_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Pauses with KV.
    pub pauses: u64,
    /// Requests whose prompt was computed with its KV offloaded to the host tier.
    pub prefills_offloaded: u64,
    /// Engine losses.
    pub engine_losses: u64,
    /// Steps submitted again after an engine loss, or undone for it.
    pub replays: u64,
    /// Steps that the engine refused.
    pub refused_steps: u64,
    /// Time slices granted.
    pub slices: u64,
    /// Time that time slices were held, nanoseconds.
    pub slice_held_ns: u64,
    /// Time from requesting time slices to their grant, nanoseconds.
    pub slice_wait_ns: u64,
    /// Time the engine waited for remapped layers, nanoseconds.
    pub stall_ns: u64,
    /// Time the engine waited for loading weights, such as after a wake-up, nanoseconds.
    pub arrival_ns: u64,
    /// Time the engine waited for KV from the host tier, nanoseconds.
    pub kv_stall_ns: u64,
    /// Engine time, including stalls, nanoseconds.
    pub engine_ns: u64,
}

impl Counters {
    pub(crate) fn add_step(&mut self, step: &StepOutput) {
        self.steps += 1;
        self.prefill_tokens += u64::from(step.prefill_tokens);
        self.decode_tokens += u64::from(step.decodes);
        self.recomputed_tokens += u64::from(step.recomputed_tokens);
        self.stall_ns = self.stall_ns.saturating_add(step.stall_ns);
        self.arrival_ns = self.arrival_ns.saturating_add(step.arrival_ns);
        self.kv_stall_ns = self.kv_stall_ns.saturating_add(step.kv_stall_ns);
        self.engine_ns = self.engine_ns.saturating_add(step.engine_ns);
    }
}

/// The scheduler's state at one moment. The memory manager reports its own figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests waiting for admission.
    pub waiting: u32,
    /// Waiting requests that ran before and were preempted or paused.
    pub preempted: u32,
    /// Running requests.
    pub running: u32,
    /// Whether an engine is attached.
    pub engine_attached: bool,
    /// The engine's process id.
    pub engine_pid: Option<u32>,
    /// Whether it is loaded and has an engine.
    pub serving: bool,
    /// Whether the tenant holds memory.
    pub sleep_state: SleepState,
    /// Whether it sleeps by order, so that a request does not wake it.
    pub is_sleep_requested: bool,
    /// Totals since the start.
    pub counters: Counters,
}

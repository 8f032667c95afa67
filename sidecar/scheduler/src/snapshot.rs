//! Figures for people and scrapers. Nothing here decides anything.

use sluice_policy::memory_manager::SleepState;

use crate::event::StepOutput;

/// Totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps answered.
    pub steps: u64,
    /// Tokens of prompts computed, recomputed ones included.
    pub prefill_tokens: u64,
    /// Tokens decoded.
    pub decode_tokens: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens looked up in the prefix cache.
    pub queried_tokens: u64,
    /// Tokens found there.
    pub cached_tokens: u64,
    /// Requests that lost their memory.
    pub preemptions: u64,
    /// Requests that were paused with their KV.
    pub pauses: u64,
    /// Requests whose prompts were computed with their KV in the host tier.
    pub prefills_offloaded: u64,
    /// Engines that died.
    pub engine_losses: u64,
    /// Steps run again for a successor.
    pub replays: u64,
    /// Steps that the engine refused.
    pub refused_steps: u64,
    /// Turns that came.
    pub turns: u64,
    /// Time that turns were held.
    pub turn_held_ns: u64,
    /// Time from asking for a turn to having it.
    pub turn_wait_ns: u64,
    /// Time the engine waited for moving layers.
    pub stall_ns: u64,
    /// Time the engine waited for weights that were on their way, as after waking.
    pub arrival_ns: u64,
    /// Time the engine waited for KV that came from the host tier.
    pub kv_stall_ns: u64,
    /// Time the engine computed, stalls included.
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

/// The scheduler at one moment. Memory's figures are the memory manager's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests waiting for admission.
    pub waiting: u32,
    /// Of these, requests that ran before and lost their memory.
    pub preempted: u32,
    /// Requests that run.
    pub running: u32,
    /// An engine is attached.
    pub engine_attached: bool,
    /// Its process id.
    pub engine_pid: Option<u32>,
    /// Loaded, with an engine.
    pub serving: bool,
    /// Whether it holds memory.
    pub sleep_state: SleepState,
    /// It sleeps by order: a request does not wake it.
    pub is_sleep_requested: bool,
    /// Totals.
    pub counters: Counters,
}

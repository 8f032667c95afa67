//! The plan of the next step: what it admits, what leaves for it and what it computes. Planning changes nothing, and
//! one function carries a plan out (`Scheduler::commit`). If memory refuses it, the next plan follows from the answer.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{
    Admission, AdmittedKv, CachedPrefix, MemoryManager, MemoryNotes, PlannedAdmissions, SchedulerView,
    StallingRemap, SuspendReason,
};

use crate::batch::Batch;

/// A waiting request that the step admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAdmission {
    /// The request.
    pub id: RequestId,
    /// The cached part of a new request's tokens. `None`: a suspended request resumes with its KV.
    pub prefix: Option<CachedPrefix>,
    /// KV blocks of the whole prompt.
    pub prompt_kv_blocks: u32,
    /// Whether the KV of its prompt goes to the host tier.
    pub prefill_offloaded: bool,
    /// Layer blocks that it takes on the device.
    pub layer_blocks: u32,
}

impl PlannedAdmission {
    /// Returns the admission as the memory manager sees it.
    pub fn admission(&self) -> Admission {
        let new = |prefix: &CachedPrefix| AdmittedKv::New {
            prefix: prefix.clone(),
            spilled_kv_blocks: self.prefill_offloaded.then_some(self.prompt_kv_blocks),
        };
        Admission { request: self.id, kv: self.prefix.as_ref().map_or(AdmittedKv::Suspended, new) }
    }
}

/// What leaves the device, or gives its memory away, before the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// A running request waits with its KV.
    Suspend(RequestId, SuspendReason),
    /// A running request waits and is recomputed.
    Preempt(RequestId),
    /// A waiting request loses its KV and is recomputed.
    DropSuspended(RequestId),
    /// Own layers give their memory to KV, and steps stall. The step waits for it.
    Remap {
        /// The layers that move.
        stalling: StallingRemap,
        /// KV blocks that the step lacks.
        missing_kv_blocks: u32,
    },
    /// Own layers give their memory for what is owed.
    ReclaimLayers,
}

impl Eviction {
    /// A running request is paused for others.
    pub const fn pause(id: RequestId) -> Eviction {
        Eviction::Suspend(id, SuspendReason::Pause)
    }
}

/// Facts that planning finds and that outlive the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanNotes {
    /// What the memory manager must know.
    pub memory: MemoryNotes,
    /// Memory refused an admission.
    pub refused_admission: bool,
    /// Memory refused admissions beyond those that fit.
    pub refused_extra: bool,
}

/// The plan of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The requests to admit, in this order.
    pub admit: Vec<PlannedAdmission>,
    /// What leaves before the step.
    pub evict: Vec<Eviction>,
    /// What the step computes, after the evictions. It stays as it was if own layers move first.
    pub batch: Batch,
    /// The smaller step that runs while memory moves for this one. Its memory is there.
    pub fallback: Option<Box<StepPlan>>,
    /// The requests of a placement plan that is due.
    pub placement: Option<SchedulerView>,
    /// Nothing is left to try for the oldest request.
    pub is_starved: bool,
    /// Limits of this plan and of those that replace it.
    pub limits: PlanLimits,
    /// The sum of the admissions, as the memory manager sees it.
    pub planned: PlannedAdmissions,
    /// What planning found.
    pub notes: PlanNotes,
    /// Running requests lacked KV when the admissions were planned. The loads take memory that planning does not count.
    pub lacked_kv: bool,
    /// Number of changes of the prefix cache when its prefixes were found.
    pub cache_epoch: u64,
}

/// Limits of a plan, which become tighter each time memory refuses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanLimits {
    /// Admissions for which running requests may be paused: under deadline scheduling those that fit and one more. The
    /// rest are admitted only with memory that is free of cost, from peers or from layers whose streaming is hidden,
    /// which arrives in large pieces.
    pub sure: usize,
    /// Tokens of the step.
    pub max_tokens: u32,
    /// Tokens of a step that does not take whole prompts through each layer.
    pub usual_tokens: u32,
    /// Requests were paused for the admissions. Only once: if the memory freed by then does not help, more pauses would
    /// not either.
    pub has_made_room: bool,
    /// Offloaded prefills wait.
    pub prefills_wait: bool,
    /// Own layers are not remapped for this step.
    pub keeps_layers: bool,
}

/// The admissions of a plan that waits for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPlan {
    /// The requests to admit.
    pub admit: Vec<PlannedAdmission>,
    /// As [`PlanLimits::sure`].
    pub sure: usize,
    /// As [`StepPlan::cache_epoch`].
    pub cache_epoch: u64,
    /// What the plan depends on besides memory.
    pub stamp: u64,
    /// Chunks of the tenant when the plan was made: memory may come for it, but must not go.
    pub budget_chunks: u32,
}

impl KeptPlan {
    /// Returns a fingerprint of the plan.
    pub fn digest_word(&self) -> u64 {
        self.stamp ^ self.admit.len() as u64
    }
}

impl StepPlan {
    /// Returns the admissions as the memory manager sees them.
    pub fn admissions(&self) -> Vec<Admission> {
        self.admit.iter().map(PlannedAdmission::admission).collect()
    }

    /// Whether own layers move before the step.
    pub fn moves_layers(&self) -> bool {
        self.evict.iter().any(|eviction| matches!(eviction, Eviction::Remap { .. }))
    }

    /// Whether the request leaves the running ones for the step.
    pub fn evicts(&self, id: RequestId) -> bool {
        let leaves = |eviction: &Eviction| match eviction {
            Eviction::Suspend(one, _) | Eviction::Preempt(one) => *one == id,
            Eviction::DropSuspended(_) | Eviction::Remap { .. } | Eviction::ReclaimLayers => false,
        };
        self.evict.iter().any(leaves)
    }

    /// Whether the step admits the request.
    pub fn admits(&self, id: RequestId) -> bool {
        self.admit.iter().any(|one| one.id == id)
    }

    /// Returns the KV blocks that an admitted new request finds in the cache; `None` if the step admits no such
    /// request.
    pub fn cached_kv_blocks(&self, id: RequestId) -> Option<u32> {
        let one = self.admit.iter().find(|one| one.id == id)?;
        one.prefix.as_ref().map(CachedPrefix::kv_block_count)
    }

    /// Adds the admissions up again, after they or the memory have changed.
    pub fn add_up(&mut self, manager: &MemoryManager) {
        let memory = manager.offload_view();
        self.planned = PlannedAdmissions::default();
        for one in &self.admit {
            self.planned.add(&one.admission(), one.layer_blocks, &memory);
        }
    }
}

//! The plan of the next step: what it admits, what leaves for it and what it computes. Planning changes nothing;
//! [`crate::Scheduler`] carries a plan out when memory has space for it.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{
    Admission, AdmittedKv, CachedPrefix, MemoryManager, MemoryNotes, PlannedAdmissions, StallingRemap,
};

use crate::batch::Batch;

/// A waiting request that the step admits.
#[derive(Clone, Debug)]
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

/// What leaves the device, or gives its memory to KV, before the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// A running request waits with its KV.
    Pause(RequestId),
    /// A running request waits and is recomputed.
    Preempt(RequestId),
    /// A waiting request loses its KV and is recomputed.
    DropSuspended(RequestId),
    /// Own layers give their memory to KV, and steps stall.
    Remap(StallingRemap),
}

/// Facts that planning finds and that outlive the plan.
#[derive(Clone, Debug, Default)]
pub struct PlanNotes {
    /// What the memory manager must know.
    pub memory: MemoryNotes,
    /// Memory refused an admission.
    pub refused_admission: bool,
    /// Memory refused admissions beyond those that fit.
    pub refused_burst: bool,
}

/// The plan of a step.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// The requests to admit, in this order.
    pub admit: Vec<PlannedAdmission>,
    /// What leaves before the step.
    pub evict: Vec<Eviction>,
    /// What the step computes.
    pub batch: Batch,
    /// Limits of this plan and of those that replace it.
    pub limits: PlanLimits,
    /// What planning found.
    pub notes: PlanNotes,
    /// Running requests lacked KV when the admissions were planned. The loads take memory that planning does not count.
    pub lacked_kv: bool,
    /// Number of changes of the prefix cache when its prefixes were found.
    pub cache_epoch: u64,
}

/// Limits of a plan, which become tighter each time memory refuses it.
#[derive(Clone, Debug, Default)]
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
#[derive(Debug)]
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

    /// Takes the remap out of the evictions.
    pub fn take_remap(&mut self) -> Option<StallingRemap> {
        match self.evict.pop()? {
            Eviction::Remap(stalling) => Some(stalling),
            other => {
                self.evict.push(other);
                None
            }
        }
    }

    /// Whether the step admits the request.
    pub fn admits(&self, id: RequestId) -> bool {
        self.admit.iter().any(|one| one.id == id)
    }

    /// Returns the KV blocks that an admitted new request finds in the cache; `None` if the step admits no such request.
    pub fn cached_kv_blocks(&self, id: RequestId) -> Option<u32> {
        let one = self.admit.iter().find(|one| one.id == id)?;
        one.prefix.as_ref().map(CachedPrefix::kv_block_count)
    }

    /// Returns the sum of the admissions.
    pub fn planned(&self, manager: &MemoryManager) -> PlannedAdmissions {
        let mut planned = PlannedAdmissions::default();
        self.admit.iter().for_each(|one| planned.add(&one.admission(), one.layer_blocks, manager));
        planned
    }
}

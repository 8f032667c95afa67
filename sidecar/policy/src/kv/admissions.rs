//! What admissions will change about KV, known before a request is opened or resumed.
//!
//! While the memory of a step is found, its new requests hold nothing yet. Decisions see their KV as used all the same.

use alloc::collections::{BTreeMap, BTreeSet};

use super::cached_prefix::CachedPrefix;
use crate::ids::{KvBlockId, RequestId};
use crate::layer_set::LayerSet;

/// A request that a step admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The request.
    pub request: RequestId,
    /// Its KV at admission.
    pub kv: AdmittedKv,
}

/// The KV of a request at its admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmittedKv {
    /// A new request.
    New {
        /// The cached part of its tokens.
        prefix: CachedPrefix,
        /// The KV blocks of the whole prompt, if its KV goes to the host tier while it is computed (eLLM 4.4.2).
        spilled_kv_blocks: Option<u32>,
    },
    /// A suspended request resumes with its KV.
    Suspended,
}

impl Admission {
    /// Returns the admission of a new request.
    pub fn new(request: RequestId, prefix: CachedPrefix) -> Admission {
        Admission { request, kv: AdmittedKv::New { prefix, spilled_kv_blocks: None } }
    }

    /// Returns the admission of a suspended request.
    pub fn suspended(request: RequestId) -> Admission {
        Admission { request, kv: AdmittedKv::Suspended }
    }

    /// Whether the KV of its prompt goes to the host tier while it is computed.
    pub fn spills_prefill(&self) -> bool {
        matches!(self.kv, AdmittedKv::New { spilled_kv_blocks: Some(_), .. })
    }
}

/// What the admissions of a step will change. A plan adds its requests one by one, and the step counts them again when
/// it asks for its memory, which may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionEffects {
    pub(super) requests: u32,
    /// KV blocks of whole prompts that go to the host tier while they are computed.
    pub(super) spilled_kv_blocks: u32,
    /// KV blocks that the requests will use.
    pub(super) used: BTreeSet<KvBlockId>,
    /// Suspended requests that resume.
    pub(super) resumed: BTreeSet<RequestId>,
    /// Of `used`, KV blocks on the device that are only cache until then.
    pub(super) reused_kv_blocks: u32,
    /// Layers to load from the host tier.
    pub(super) to_load: BTreeMap<KvBlockId, LayerSet>,
    /// Layer blocks of new staging slots.
    pub(super) staged_layer_blocks: u32,
    pub(super) loads_for_new: bool,
    pub(super) waits_for_loads: bool,
}

impl AdmissionEffects {
    /// Whether a request that is admitted will use the KV block.
    pub fn uses(&self, id: KvBlockId) -> bool {
        self.used.contains(&id)
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Returns the KV blocks of whole prompts that go to the host tier while they are computed.
    pub fn spilled_kv_blocks(&self) -> u32 {
        self.spilled_kv_blocks
    }

    /// Returns the KV blocks on the device that the requests will use and that are only cache until then.
    pub fn reused_kv_blocks(&self) -> u32 {
        self.reused_kv_blocks
    }

    /// Whether the suspended request resumes.
    pub fn resumes(&self, request: RequestId) -> bool {
        self.resumed.contains(&request)
    }

    /// Returns the layer blocks that are loaded from the host tier for the requests.
    pub fn layer_blocks_to_load(&self) -> u32 {
        self.to_load.values().map(|layers| layers.len()).sum()
    }

    /// Returns the layer blocks of the staging slots that the requests get.
    pub fn staged_layer_blocks(&self) -> u32 {
        self.staged_layer_blocks
    }

    /// Whether KV is loaded for a new request, not only for resumed ones.
    pub fn loads_for_new(&self) -> bool {
        self.loads_for_new
    }

    /// Whether a request would read KV that is still being loaded.
    pub fn waits_for_loads(&self) -> bool {
        self.waits_for_loads
    }

    /// Returns the KV blocks to load, in ascending order.
    pub(super) fn kv_blocks_to_load(&self) -> impl Iterator<Item = (KvBlockId, LayerSet)> + '_ {
        self.to_load.iter().map(|(id, layers)| (*id, *layers))
    }

    /// The load of a KV block was planned.
    pub(super) fn on_load_planned(&mut self, id: KvBlockId) {
        self.to_load.remove(&id);
    }
}

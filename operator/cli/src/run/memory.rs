//! Plans the memory and context length of the models of one command. Pure.

use sluice_plan::geometry::to_status;
use sluice_plan::resource_demand::{self, DemandParams};
use sluice_plan::sizes::{self, SMALL_PROCESS_BYTES};
use sluice_types::pool::Policy;
use sluice_types::{ModelTenantSpec, Quantity};
use sluice_wire::geometry::Geometry;

use crate::chunk_size::{block_bytes, chunk_bytes};
use crate::up::plan::thread_count;
use sluice_page::text::formatting::bytes;

/// Longest default context, tokens.
const MAX_DEFAULT_CONTEXT: u32 = 8192;
/// Shortest default context if memory is short, tokens.
const MIN_DEFAULT_CONTEXT: u32 = 1024;
/// Numbers of full-context sequences with KV per model, largest first: fewer if memory is short.
const SEQUENCE_CANDIDATES: [u64; 3] = [4, 2, 1];

/// A model that needs memory.
#[derive(Clone, Debug)]
pub struct ModelSize {
    /// Served name.
    pub name: String,
    /// Its sizes.
    pub geometry: Geometry,
    /// Spec of its tenant, without a `maxModelLen`.
    pub spec: ModelTenantSpec,
}

/// Choices of the user.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryOptions {
    /// Memory of the GPU, bytes; `None` = enough for weights, KV and activations.
    pub memory_bytes: Option<u64>,
    /// Context of each model, tokens; `None` = the model's own, at most 8192.
    pub context_tokens: Option<u32>,
    /// Threads of each engine.
    pub threads: u32,
    /// Policy of the pool.
    pub policy: Policy,
}

/// The chosen plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Chunk of the GPU, bytes.
    pub chunk_bytes: u64,
    /// Memory of the GPU, bytes.
    pub gpu_bytes: u64,
    /// Host memory for copies of weights, bytes.
    pub host_bytes: u64,
    /// Memory of this machine that the run may use in all, bytes: the two above and the engines' own.
    pub total_bytes: u64,
    /// Context of each model, tokens, in the order of the models.
    pub context_tokens: Vec<u32>,
    /// Number of sequences of that context for which each model has KV.
    pub sequences: u64,
}

/// Why the models do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryPlanError {
    /// A context exceeds the limit of the model.
    #[error("--context {requested}: {name} supports at most {limit} tokens")]
    Context {
        /// The model.
        name: String,
        /// Requested context, tokens.
        requested: u32,
        /// Limit of the model, tokens.
        limit: u32,
    },
    /// No GPU of this machine can serve the model's sizes.
    #[error("{name}: {problem}")]
    Unfit {
        /// The model.
        name: String,
        /// Reason.
        problem: String,
    },
    /// `--memory` is less than the minimum of the models.
    #[error("--memory {} is too little; {needs}", bytes(*given))]
    Gpu {
        /// Given memory, bytes.
        given: u64,
        /// Minimum of each model, and of all together.
        needs: String,
    },
    /// The machine has too little memory.
    #[error("not enough memory: {} are needed ({needs}) and {} are available on this machine{remedy}", bytes(*needed), bytes(*available))]
    Host {
        /// Memory of the smallest plan, bytes.
        needed: u64,
        /// `MemAvailable`, bytes.
        available: u64,
        /// Memory of each model.
        needs: String,
        /// Advice.
        remedy: &'static str,
    },
}

/// Returns the largest plan within `available_bytes` of host memory.
///
/// # Errors
/// See [`MemoryPlanError`].
pub fn plan(
    models: &[ModelSize],
    wishes: &MemoryOptions,
    available_bytes: u64,
) -> Result<MemoryPlan, MemoryPlanError> {
    let chunk_bytes = chunk_bytes(models.iter().map(|model| &model.geometry));
    let longest = max_contexts(models, wishes)?;
    let mut least = None;
    for (contexts, sequences) in candidates(&longest, wishes) {
        let draft = PlanCandidate::new(models, wishes, chunk_bytes, contexts, sequences)?;
        if draft.plan.total_bytes <= available_bytes {
            return draft.validate(wishes);
        }
        least = Some(draft);
    }
    let draft = least.expect("the ladder has a rung");
    draft.clone().validate(wishes)?;
    let shortest = draft.plan.context_tokens.iter().any(|tokens| *tokens > MIN_DEFAULT_CONTEXT);
    Err(MemoryPlanError::Host {
        needed: draft.plan.total_bytes,
        available: available_bytes,
        needs: draft.needs,
        remedy: match (wishes.memory_bytes.is_some(), wishes.context_tokens.is_some() && shortest) {
            (true, _) => "; lower --memory",
            (false, true) => "; lower --context",
            (false, false) => "; use a smaller model, or end other programs",
        },
    })
}

/// Returns the longest context of each model, tokens, independent of the memory.
fn max_contexts(models: &[ModelSize], wishes: &MemoryOptions) -> Result<Vec<u32>, MemoryPlanError> {
    let context = |model: &ModelSize| {
        let most = model.geometry.max_model_len;
        match wishes.context_tokens {
            Some(asked) if asked > most => {
                Err(MemoryPlanError::Context { name: model.name.clone(), requested: asked, limit: most })
            }
            Some(asked) => Ok(asked),
            None => Ok(most.min(MAX_DEFAULT_CONTEXT)),
        }
    };
    models.iter().map(context).collect()
}

/// Candidates, the largest first: fewer sequences, then shorter contexts unless the user named one. With `--memory`
/// KV is what is left of it.
fn candidates(longest: &[u32], wishes: &MemoryOptions) -> Vec<(Vec<u32>, u64)> {
    let fixed = wishes.memory_bytes.is_some();
    let mut candidates: Vec<_> =
        SEQUENCE_CANDIDATES.iter().filter(|n| !fixed || **n == 1).map(|n| (longest.to_vec(), *n)).collect();
    let mut limit = longest.iter().copied().max().unwrap_or(0) / 2;
    while wishes.context_tokens.is_none() && !fixed && limit >= MIN_DEFAULT_CONTEXT {
        candidates.push((longest.iter().map(|tokens| (*tokens).min(limit)).collect(), 1));
        limit /= 2;
    }
    candidates
}

/// A candidate plan, which may be too large, and its parts.
#[derive(Clone, Debug)]
struct PlanCandidate {
    plan: MemoryPlan,
    /// Minimum memory of the GPU, bytes.
    floor_bytes: u64,
    needs: String,
    floors: String,
}

impl PlanCandidate {
    fn new(
        models: &[ModelSize],
        wishes: &MemoryOptions,
        chunk_bytes: u64,
        context_tokens: Vec<u32>,
        sequences: u64,
    ) -> Result<PlanCandidate, MemoryPlanError> {
        let (mut gpu, mut host, mut floor, mut needs, mut floors) = (0, 0, 0, Vec::new(), Vec::new());
        for (model, tokens) in models.iter().zip(&context_tokens) {
            let need = ModelDemand::for_model(model, wishes, chunk_bytes, *tokens, sequences)?;
            (gpu, host, floor) = (gpu + need.gpu_bytes, host + need.host_bytes, floor + need.floor_bytes);
            needs.push(need.describe(&model.name));
            floors.push(format!("{} needs at least {}", model.name, bytes(need.floor_bytes)));
        }
        if models.len() > 1 {
            floors.push(format!("together {}", bytes(floor)));
        }
        // Rounded for readers of the YAML.
        let host = host.next_multiple_of(1 << 20);
        let gpu_bytes = wishes.memory_bytes.map_or(gpu, |bytes| bytes / chunk_bytes * chunk_bytes);
        let total_bytes = gpu_bytes + host + SMALL_PROCESS_BYTES * models.len() as u64;
        let plan =
            MemoryPlan { chunk_bytes, gpu_bytes, host_bytes: host, total_bytes, context_tokens, sequences };
        Ok(PlanCandidate { plan, floor_bytes: floor, needs: needs.join("; "), floors: floors.join(", ") })
    }

    fn validate(self, wishes: &MemoryOptions) -> Result<MemoryPlan, MemoryPlanError> {
        match wishes.memory_bytes {
            Some(given) if self.plan.gpu_bytes < self.floor_bytes => {
                Err(MemoryPlanError::Gpu { given, needs: self.floors })
            }
            _ => Ok(self.plan),
        }
    }
}

/// Memory of one model, bytes.
struct ModelDemand {
    weights_bytes: u64,
    kv_bytes: u64,
    activation_bytes: u64,
    gpu_bytes: u64,
    host_bytes: u64,
    floor_bytes: u64,
    tokens: u32,
    sequences: u64,
}

impl ModelDemand {
    fn for_model(
        model: &ModelSize,
        wishes: &MemoryOptions,
        chunk: u64,
        tokens: u32,
        sequences: u64,
    ) -> Result<ModelDemand, MemoryPlanError> {
        let (name, inspected) = (&model.name, &model.geometry);
        let unfit = |problem: String| MemoryPlanError::Unfit { name: name.clone(), problem };
        let mut spec = model.spec.clone();
        spec.model.max_model_len = i32::try_from(tokens).ok();
        let terms = DemandParams {
            chunk_bytes: chunk,
            context_bytes: 0,
            // A GPU of host memory, whose size is counted apart from that of the processes.
            host_gpu_bytes: Some(0),
            policy: wishes.policy,
        };
        let sized =
            resource_demand::EngineGeometry::from_status(&to_status(inspected), thread_count(wishes.threads));
        let geometry = sized.ok_or_else(|| unfit("the sizes of the model are not valid".into()))?;
        resource_demand::check_kv_fits(&spec, &geometry, &terms).map_err(|why| unfit(why.to_string()))?;
        let demand = resource_demand::demand(&spec, &geometry, &terms);
        let whole = |bytes: u64| bytes.div_ceil(chunk) * chunk;
        // One more slot than layers, so that layers can move.
        let weights_bytes =
            whole(geometry.global_bytes) + (u64::from(geometry.layers) + 1) * whole(geometry.layer_bytes);
        let blocks = sizes::sequence_blocks(tokens, geometry.layers);
        let kv_bytes = sequences * sizes::block_chunks(blocks, block_bytes(inspected), chunk) * chunk;
        let activation_bytes = whole(geometry.step_activation_bytes) + whole(geometry.staging_bytes);
        let gpu_bytes = (weights_bytes + kv_bytes + activation_bytes).max(demand.floor_bytes);
        Ok(ModelDemand {
            weights_bytes,
            kv_bytes,
            activation_bytes,
            gpu_bytes,
            host_bytes: demand.host_bytes,
            floor_bytes: demand.floor_bytes,
            tokens,
            sequences,
        })
    }

    fn describe(&self, name: &str) -> String {
        let ModelDemand { weights_bytes, kv_bytes, activation_bytes, host_bytes, tokens, sequences, .. } =
            self;
        let (weights, kv, rest) =
            (bytes(*weights_bytes), bytes(*kv_bytes), bytes(activation_bytes + SMALL_PROCESS_BYTES));
        let host = bytes(*host_bytes);
        format!(
            "{name}: weights {weights}, KV of {sequences} x {tokens} tokens {kv}, host copy {host}, engine {rest}"
        )
    }
}

/// Parses a size of the command line.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let quantity: Quantity = text.parse().map_err(|error| format!("{error}"))?;
    if quantity.bytes() == 0 { Err("0 bytes hold no model".into()) } else { Ok(quantity.bytes()) }
}

#[cfg(test)]
mod tests;

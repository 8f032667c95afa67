//! Sizes in chunks, and whether they fit.

use alloc::vec::Vec;

use crate::config_error::ConfigError;
use crate::geometry::{Geometry, StepShape};
use crate::ids::SlotId;
use crate::layer_set::MAX_LAYERS;
use crate::params::{ForcedRemap, Params};
use crate::remap::uniform;
use crate::step_model::Layout;

/// The sizes of one tenant, in chunks.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub layers: u16,
    /// Chunks that the tenant may hold without a loan.
    pub share: u32,
    pub global: u32,
    pub slabs: Vec<u32>,
    pub staging: u32,
    /// Activations of the largest step.
    pub activation_max: u32,
    /// Activations of a whole context in one step: the most while weights load.
    pub activation_wake: u32,
    /// Activations that never become KV. `None`: no activations become KV.
    pub activation_kept: Option<u32>,
    /// Activations that are never lent: those that never become KV, else those of the largest step.
    pub activation_min: u32,
    /// Activations that are never lent under any policy.
    pub activation_least: u32,
    /// KV that the tenant always holds.
    pub kv_guaranteed: u32,
    pub kv_limit: u32,
    pub layer_blocks_per_chunk: u32,
    /// Size of the host tier in KV blocks.
    pub host_kv_blocks: u32,
    /// Most layers that may move, for KV or for a peer. `None`: own layers stay, and nothing is lent or borrowed.
    pub movable_m: Option<u16>,
    /// Most moving layers, with those that moved under another policy.
    pub cap_m: u16,
    /// Chunks that the tenant never lends, except while it sleeps.
    pub floor: u32,
}

impl Sizes {
    /// Sizes of a tenant that can be served.
    pub fn new(params: &Params, geometry: &Geometry) -> Result<Sizes, ConfigError> {
        refuse_impossible(params, geometry)?;
        let layers = geometry.layers();
        let kv_blocks = Geometry::kv_blocks_for(params.max_model_tokens);
        let context = geometry.kv_chunks_for(kv_blocks);
        let limit_chunks = params.kv_limit_bytes / geometry.chunk_bytes;
        let kv_limit = limit_chunks.min(u64::from(geometry.capacity_chunks)) as u32;
        let activation_max = geometry.chunks_for(geometry.activation.bytes(params.max_step));
        let tokens = params.max_model_tokens.max(params.max_step.tokens);
        let whole = StepShape { tokens, ..params.max_step };
        let activations = |step| geometry.chunks_for(geometry.activation.bytes(step)).min(activation_max);
        let activation_kept = params.policy().kept_activations(params.min_step).map(activations);
        let share = u64::from(layers) * u64::from(params.remap_cap_permille) / 1000;
        let cap_m = (share as u16).min(layers - 1);
        let movable_m = params.policy().movable_layers(cap_m);
        let mut sizes = Sizes {
            layers,
            share: params.share_chunks.min(geometry.capacity_chunks),
            global: geometry.chunks_for(geometry.global_bytes),
            slabs: (0..usize::from(layers)).map(|l| geometry.slab_chunks(l)).collect(),
            staging: geometry.staging_chunks,
            activation_max,
            activation_wake: geometry.chunks_for(geometry.activation.bytes(whole)).max(activation_max),
            activation_kept,
            activation_min: activation_kept.unwrap_or(activation_max),
            activation_least: activations(params.min_step),
            kv_guaranteed: geometry
                .chunks_for(params.guaranteed_kv_bytes)
                .max(context)
                .min(kv_limit.max(context)),
            kv_limit,
            layer_blocks_per_chunk: geometry.layer_blocks_per_chunk(),
            host_kv_blocks: host_kv_blocks(params, geometry),
            movable_m,
            cap_m: movable_m.unwrap_or(cap_m),
            floor: 0,
        };
        sizes.floor = sizes.floor_of(params);
        // The floor first: a device below it cannot hold a context either, and this error names the size that suffices.
        sizes.refuse_floor(geometry)?;
        sizes.refuse_context(params, geometry, context)?;
        Ok(sizes)
    }

    fn refuse_context(&self, params: &Params, geometry: &Geometry, context: u32) -> Result<(), ConfigError> {
        let kv_blocks = u64::from(Geometry::kv_blocks_for(params.max_model_tokens));
        let needed_bytes = kv_blocks * geometry.kv_block_bytes();
        let guaranteed_bytes = params.guaranteed_kv_bytes.min(params.kv_limit_bytes);
        if needed_bytes > guaranteed_bytes || context > self.kv_limit {
            return Err(ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes });
        }
        Ok(())
    }

    fn refuse_floor(&self, geometry: &Geometry) -> Result<(), ConfigError> {
        if self.floor > self.share {
            let bytes = |chunks: u32| u64::from(chunks) * geometry.chunk_bytes;
            return Err(ConfigError::FloorExceedsCapacity {
                floor_bytes: bytes(self.floor),
                capacity_bytes: bytes(self.share),
            });
        }
        Ok(())
    }

    fn floor_of(&self, params: &Params) -> u32 {
        let resident = self.weights(&Layout::resident());
        let min_weights = match (params.forced, self.movable_m) {
            (Some(forced), _) => self.weights(&self.forced_layout(forced)),
            (None, Some(moving @ 2..)) => self.weights(&self.evenly(moving)).min(resident),
            (None, _) => resident,
        };
        self.global + min_weights + self.activation_min + self.staging + self.kv_guaranteed
    }

    /// The layout that the floor counts on, if it takes fewer than `weights` chunks.
    pub fn least_layout(&self, weights: u32) -> Option<Layout> {
        let moving = self.movable_m.filter(|moving| *moving >= 2)?;
        Some(self.evenly(moving)).filter(|layout| self.weights(layout) < weights)
    }

    /// A layout with `moving` moving layers, evenly spaced, through one slot.
    pub fn evenly(&self, moving: u16) -> Layout {
        Layout { moving: uniform(self.layers, moving), beta: 1 }
    }

    /// The evenly spaced layout that a configuration fixes.
    pub fn forced_layout(&self, forced: ForcedRemap) -> Layout {
        Layout { moving: uniform(self.layers, forced.alpha + u16::from(forced.beta)), beta: forced.beta }
    }

    /// Own layers may move, for KV or for a peer. Otherwise the tenant keeps to its share: it lends and borrows
    /// nothing.
    pub fn moves_layers(&self) -> bool {
        self.movable_m.is_some()
    }

    /// Chunks of all layers, resident ones and slots.
    pub fn weights(&self, layout: &Layout) -> u32 {
        let own: u32 = self.slabs.iter().sum();
        let moving: u32 = layout.moving.iter().map(|layer| self.slabs[layer.index()]).sum();
        let slots: u32 = (0..layout.beta).map(|s| layout.slot_chunks(&self.slabs, SlotId(s))).sum();
        own - moving + slots
    }

    /// Chunks of everything but KV, with the least activation space.
    pub fn fixed_chunks(&self, layout: &Layout) -> u32 {
        self.global + self.weights(layout) + self.staging + self.activation_min
    }

    /// Chunks with which a tenant with this layout can run any step and any one request.
    pub fn initial_chunks(&self, layout: &Layout) -> u32 {
        self.fixed_at_most(layout) + self.kv_guaranteed
    }

    /// Chunks of everything but KV, with the activation space of the largest step.
    fn fixed_at_most(&self, layout: &Layout) -> u32 {
        self.fixed_chunks(layout) - self.activation_min + self.activation_max
    }

    /// Chunks of the largest layer.
    pub fn largest_slab(&self) -> u32 {
        self.slabs.iter().copied().max().unwrap_or(0)
    }

    /// Chunks worth creating: all layers, the largest step and the limit of KV.
    pub fn useful(&self) -> u32 {
        self.fixed_at_most(&Layout::resident()).saturating_add(self.kv_limit).min(self.share)
    }
}

/// Whether a tenant with these parameters can be served.
///
/// # Errors
/// The parameter that does not fit.
pub fn fits(params: &Params, geometry: &Geometry) -> Result<(), ConfigError> {
    Sizes::new(params, geometry).map(drop)
}

/// Chunks that a tenant with these parameters never lends, whatever its share.
///
/// # Errors
/// The parameter that does not fit even the whole GPU.
pub fn floor(params: &Params, geometry: &Geometry) -> Result<u32, ConfigError> {
    let params = Params { share_chunks: u32::MAX, ..params.clone() };
    Ok(Sizes::new(&params, geometry)?.floor)
}

/// Whole KV blocks only, as many as their layer blocks can be numbered.
fn host_kv_blocks(params: &Params, geometry: &Geometry) -> u32 {
    let kv_blocks = params.host_kv_bytes / geometry.kv_block_bytes();
    kv_blocks.min(u64::from(u32::MAX / u32::from(geometry.layers()))) as u32
}

fn refuse_impossible(params: &Params, geometry: &Geometry) -> Result<(), ConfigError> {
    let sizes = [
        ("chunk_bytes", geometry.chunk_bytes),
        ("block_bytes", geometry.layer_block_bytes),
        ("global_bytes", geometry.global_bytes),
        ("slab_bytes", geometry.slab_bytes.iter().copied().min().unwrap_or(0)),
        ("max_model_tokens", u64::from(params.max_model_tokens)),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ConfigError::ZeroSize { what });
    }
    let layers = geometry.slab_bytes.len();
    if layers > usize::from(MAX_LAYERS) {
        return Err(ConfigError::TooManyLayers { layers });
    }
    let (layer_block_bytes, chunk_bytes) = (geometry.layer_block_bytes, geometry.chunk_bytes);
    if layer_block_bytes > chunk_bytes {
        return Err(ConfigError::LayerBlockLargerThanChunk { layer_block_bytes, chunk_bytes });
    }
    if params.remap_cap_permille > 1000 {
        return Err(ConfigError::BadCap { permille: params.remap_cap_permille });
    }
    match params.forced {
        Some(forced) => refuse_forced(forced, geometry.layers()),
        None => Ok(()),
    }
}

/// A forced layout frees at least one layer, has one or two slots and leaves at least one layer resident.
pub fn refuse_forced(forced: ForcedRemap, layers: u16) -> Result<(), ConfigError> {
    let ForcedRemap { alpha, beta } = forced;
    let moving = u32::from(alpha) + u32::from(beta);
    let possible = alpha >= 1 && (1..=2).contains(&beta) && moving < u32::from(layers);
    if possible { Ok(()) } else { Err(ConfigError::BadForced { alpha, beta, layers }) }
}

//! The KV arena: layer blocks of 16 tokens, and the layout of K and V within a block.
//!
//! A block holds K as `[kv_heads][head_dim][16]`, then V as `[kv_heads][16][head_dim]`, both in the model's dtype. K is
//! transposed so that the scores of a block's 16 positions are one vector. Thus no lanes are folded, and an unwritten
//! position affects only its own lane, which the causal mask drops.

#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of the types")]

use std::marker::PhantomData;
use std::ops::Range;

use sluice_link::model::ModelSpec;

use crate::simd::{Element, Kernel, Lanes};

/// Tokens of a layer block.
pub const BLOCK_TOKENS: usize = sluice_link::vocabulary::BLOCK_TOKENS as usize;

/// The addresses of the blocks.
#[derive(Clone, Copy, Debug)]
pub struct KvArena<E> {
    base: *mut u8,
    chunk_bytes: usize,
    layer_block_bytes: usize,
    layer_blocks: u32,
    kv_heads: usize,
    head_dim: usize,
    element: PhantomData<E>,
}

impl<E: Element> KvArena<E> {
    /// Creates an arena of `layer_blocks` blocks at `base`, in chunks of `chunk_bytes`.
    pub fn new(spec: &ModelSpec, base: *mut u8, layer_blocks: u32, chunk_bytes: u64) -> Self {
        KvArena {
            base,
            chunk_bytes: chunk_bytes as usize,
            layer_block_bytes: spec.layer_block_bytes() as usize,
            layer_blocks,
            kv_heads: spec.kv_heads as usize,
            head_dim: spec.head_dim as usize,
            element: PhantomData,
        }
    }

    fn layer_block(&self, id: u32) -> *mut E {
        assert!(id < self.layer_blocks, "block {id} was checked to be below {}", self.layer_blocks);
        let per_chunk = self.chunk_bytes / self.layer_block_bytes;
        let (chunk, within) = (id as usize / per_chunk, id as usize % per_chunk);
        self.base.wrapping_add(chunk * self.chunk_bytes + within * self.layer_block_bytes).cast()
    }

    /// Returns K of one head: `[head_dim][16]`.
    pub fn keys(&self, id: u32, head: usize) -> *mut E {
        self.layer_block(id).wrapping_add(head * self.head_dim * BLOCK_TOKENS)
    }

    /// Returns V of one head: `[16][head_dim]`.
    pub fn values(&self, id: u32, head: usize) -> *mut E {
        self.keys(id, self.kv_heads + head)
    }

    /// Returns the width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

/// Rounds one head's K and V of successive tokens to the cache's dtype and writes them to their block.
///
/// `keys` and `values` point to the head in the first token's row; all tokens are in one block.
pub struct WriteKv<E> {
    /// K of the head in the block.
    pub layer_block_keys: *mut E,
    /// V of the head in the block.
    pub layer_block_values: *mut E,
    /// Positions within the block.
    pub places: Range<usize>,
    /// Computed K.
    pub keys: *const f32,
    /// Computed V.
    pub values: *const f32,
    /// Words from one token to the next, in both.
    pub stride: usize,
    /// Width of the head.
    pub head_dim: usize,
}

impl<E: Element> Kernel for WriteKv<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (token, place) in self.places.clone().enumerate() {
            unsafe {
                let (keys, values) =
                    (self.keys.add(token * self.stride), self.values.add(token * self.stride));
                for dim in 0..self.head_dim {
                    *self.layer_block_keys.add(dim * BLOCK_TOKENS + place) = E::narrow(*keys.add(dim));
                    *self.layer_block_values.add(place * self.head_dim + dim) = E::narrow(*values.add(dim));
                }
            }
        }
    }
}

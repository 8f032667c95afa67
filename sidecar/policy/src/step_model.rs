//! Computes the cost of a layout of moving layers: the steady-state stall per token, exact in integers.
//!
//! A token runs the layers in order. The layers of a [`Layout`] share slots: moving layer `i` (counted from the front)
//! always uses slot `i % beta` (constant addresses). One link carries the fills, in the order of use. A fill
//! starts when the link is free and the previous reader of its slot has finished; a moving layer starts when the
//! previous layer has finished and its fill has arrived. Fills may run any distance ahead, so progress carries over
//! from token to token. Every moving layer is filled once per token, even one that is alone in its slot.
//!
//! All of this is `max` and `+`, so one token is a max-plus matrix over the few times that the next token depends on
//! (link free, compute free, last reader of each slot), and the steady-state time per token is the largest mean weight
//! of its cycles. Here cycles of one token suffice, so it is the largest entry on the diagonal: where a cycle of
//! several tokens crosses itself, exchanging the two crossing waits (fill to layer, reader to a later fill) for the two
//! tracks below them (layer to layer, fill to fill) loses nothing and splits it. The result is exact and takes one pass
//! over the layers; simulating until the state repeats gives the same number, but a link that is slower than compute by
//! one nanosecond needs millions of tokens for it.
//!
//! Sources: Oneiros 5.4 (alpha, beta, T_T, T_c; Eq. 1 to 5 are its continuous bounds, see [`crate::closed_form`]).

use alloc::vec::Vec;

use crate::ids::{LayerId, SlotId};

/// Maximum number of slots that moving layers share (Oneiros uses one or two).
pub const MAX_BETA: u8 = 2;

/// Upper limit on a single layer's time: one hour. A host that was suspended may measure more.
pub const MAX_LAYER_NS: u64 = 3_600_000_000_000;

/// Times of each layer, front first, nanoseconds. Both slices have one entry for each layer.
#[derive(Clone, Copy, Debug)]
pub struct Times<'a> {
    /// T_c: one layer's compute for one step.
    pub compute_ns: &'a [u64],
    /// T_T: the copy of one layer's slab over the link.
    pub transfer_ns: &'a [u64],
}

impl Times<'_> {
    /// Returns the number of layers.
    pub fn layers(&self) -> u16 {
        assert_eq!(self.compute_ns.len(), self.transfer_ns.len(), "both times are given for every layer");
        u16::try_from(self.compute_ns.len()).expect("a model has fewer than 65,536 layers")
    }

    /// Returns one layer's compute, limited, nanoseconds.
    pub fn compute(&self, layer: usize) -> u64 {
        self.compute_ns[layer].min(MAX_LAYER_NS)
    }

    /// Returns one layer's copy, limited, nanoseconds.
    pub fn transfer(&self, layer: usize) -> u64 {
        self.transfer_ns[layer].min(MAX_LAYER_NS)
    }

    /// Returns the compute of a whole token, nanoseconds.
    pub fn token_compute_ns(&self) -> u64 {
        (0..self.compute_ns.len()).map(|layer| self.compute(layer)).sum()
    }
}

/// The moving layers and their number of slots. The default, without moving layers, has all layers resident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The m moving layers, ascending.
    pub moving: Vec<LayerId>,
    /// Number of slots; 0 without moving layers.
    pub beta: u8,
}

impl Layout {
    /// Returns the layout with all layers resident.
    pub const fn resident() -> Layout {
        Layout { moving: Vec::new(), beta: 0 }
    }

    /// Returns the number of layers whose memory is freed: m - beta.
    pub fn alpha(&self) -> u16 {
        let moving = u16::try_from(self.moving.len()).expect("moving layers are layers");
        moving.checked_sub(u16::from(self.beta)).expect("a layout has no more slots than moving layers")
    }

    /// Returns the constant slot of moving layer number `index`.
    pub fn slot(&self, index: usize) -> SlotId {
        SlotId((index % usize::from(self.beta)) as u8)
    }

    /// Returns the chunks of a slot: those of the largest slab that uses it. `slabs` has the chunks of each layer,
    /// front first.
    pub fn slot_chunks(&self, slabs: &[u32], slot: SlotId) -> u32 {
        let users = self.moving.iter().skip(slot.index()).step_by(usize::from(self.beta));
        users.map(|layer| slabs[layer.index()]).max().unwrap_or(0)
    }

    /// Returns the constant slot of `layer`; `None` if it is resident.
    pub fn slot_of(&self, layer: LayerId) -> Option<SlotId> {
        self.moving.binary_search(&layer).ok().map(|index| self.slot(index))
    }
}

/// How moving layers are assigned to slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRule {
    /// Moving layer `i` of every token uses slot `i % beta`: the rule in use, which constant addresses allow.
    Constant,
    /// The k-th fill since the start uses slot `k % beta`, over token boundaries: Oneiros as printed. With an odd
    /// number of moving layers and two slots a layer changes its slot at every token. Only for comparison.
    Alternating,
}

/// Returns the steady-state stall per token under constant addresses, nanoseconds.
///
/// # Panics
/// If the layout is not one of this model: moving layers not ascending, or as many slots as moving layers.
pub fn stall_per_token_ns(times: &Times<'_>, layout: &Layout) -> u64 {
    stall_under_ns(times, layout, SlotRule::Constant)
}

/// Returns the steady-state stall per token under either rule, nanoseconds.
///
/// # Panics
/// As [`stall_per_token_ns`].
pub fn stall_under_ns(times: &Times<'_>, layout: &Layout, rule: SlotRule) -> u64 {
    check(times, layout);
    if layout.moving.is_empty() {
        return 0;
    }
    let token = token_matrix(times, layout, rule);
    let period_ns =
        (0..MOMENTS).map(|moment| token[moment][moment]).max().expect("a period has at least one moment");
    let period_ns = u64::try_from(period_ns).expect("a token takes at least its compute");
    period_ns.checked_sub(times.token_compute_ns()).expect("a token takes at least its compute")
}

fn check(times: &Times<'_>, layout: &Layout) {
    let layers = times.layers();
    assert!(layout.moving.is_sorted_by(|a, b| a < b), "moving layers are ascending");
    assert!(
        layout.moving.last().is_none_or(|last| last.0 < layers),
        "moving layers are layers of this model"
    );
    assert!(layout.beta <= MAX_BETA, "at most {MAX_BETA} slots");
    let bare = layout.moving.is_empty() && layout.beta == 0;
    assert!(bare || (layout.beta > 0 && layout.alpha() > 0), "moving layers share fewer slots than they are");
}

/// Times that the next token depends on: link free, compute free, last reader of each slot.
const MOMENTS: usize = 2 + MAX_BETA as usize;
const LINK: usize = 0;
const COMPUTE: usize = 1;
const READERS: usize = 2;

/// "Never": no path. Far below any real time, with range for additions.
const NEVER: i64 = i64::MIN / 2;

/// A time of this token as the maximum over (time `d` at the token's start + weight `d`).
type Moment = [i64; MOMENTS];
type Matrix = [Moment; MOMENTS];

fn starts_at(origin: usize) -> Moment {
    core::array::from_fn(|d| if d == origin { 0 } else { NEVER })
}

fn later(a: Moment, b: Moment) -> Moment {
    core::array::from_fn(|d| a[d].max(b[d]))
}

fn after(a: Moment, ns: u64) -> Moment {
    let ns = ns as i64; // a layer takes at most an hour, a token at most 65,535 of them
    core::array::from_fn(|d| a[d] + ns)
}

/// Returns one token as a matrix: rows are times at its end, KV blocks times at its start.
fn token_matrix(times: &Times<'_>, layout: &Layout, rule: SlotRule) -> Matrix {
    let beta = usize::from(layout.beta);
    let mut now: Matrix = core::array::from_fn(starts_at);
    let mut next_layer = 0;
    for (index, layer) in layout.moving.iter().map(|layer| layer.index()).enumerate() {
        let slot = READERS + if rule == SlotRule::Constant { index % beta } else { 0 };
        let resident_ns: u64 = (next_layer..layer).map(|l| times.compute(l)).sum();
        now[LINK] = after(later(now[LINK], now[slot]), times.transfer(layer));
        now[COMPUTE] = after(now[COMPUTE], resident_ns);
        now[COMPUTE] = after(later(now[COMPUTE], now[LINK]), times.compute(layer));
        now[slot] = now[COMPUTE];
        if rule == SlotRule::Alternating {
            now[READERS..READERS + beta].rotate_left(1); // the least recently used slot is first
        }
        next_layer = layer + 1;
    }
    let tail_ns: u64 = (next_layer..times.compute_ns.len()).map(|l| times.compute(l)).sum();
    now[COMPUTE] = after(now[COMPUTE], tail_ns);
    now
}

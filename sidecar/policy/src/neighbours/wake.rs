//! What an inactive tenant lends of its weights, and how long it takes to come back (DESIGN 6, "Waking").
//!
//! The last layers go first, so that a prompt starts with what is there and the rest streams in behind it. The times are
//! those of [`crate::closed_form::prefill`]; here the weights that no layer owns come before the first stage.

use core::ops::Range;

use crate::closed_form::prefill;

/// The layers of an inactive tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lendable<'a> {
    /// Chunks of each layer's slab, front first.
    pub slab_chunks: &'a [u32],
    /// Most layers that may be absent (the tenant's cap). Never all of them, whatever it says.
    pub cap: u16,
    /// Layers that are absent already: the last ones.
    pub absent: u16,
}

impl Lendable<'_> {
    fn layers(&self) -> u16 {
        u16::try_from(self.slab_chunks.len()).expect("a model has fewer than 65,536 layers")
    }

    /// Most layers that may leave now: m <= n - 1.
    fn most(&self) -> u16 {
        self.cap.min(self.layers().saturating_sub(1)).saturating_sub(self.absent)
    }
}

/// How many more of the last layers to lend: the fewest that have `need_chunks`, or all that may leave if these have less.
///
/// # Panics
/// If more layers are absent than there are.
pub fn lend_layers(lendable: &Lendable<'_>, need_chunks: u32) -> u16 {
    assert!(lendable.absent <= lendable.layers(), "no more layers are absent than there are");
    let mut open = u64::from(need_chunks);
    let last_first = lendable.slab_chunks.iter().rev().skip(lendable.absent.into());
    let needed = last_first.take(lendable.most().into()).take_while(|chunks| {
        let wanted = open > 0;
        open = open.saturating_sub(u64::from(**chunks));
        wanted
    });
    needed.count() as u16
}

/// Chunks of the `count` layers that [`lend_layers`] named.
pub fn lent_chunks(lendable: &Lendable<'_>, count: u16) -> u64 {
    leaving(lendable, count).map(|layer| u64::from(lendable.slab_chunks[usize::from(layer)])).sum()
}

/// The `count` layers that leave next, and come back front first.
///
/// # Panics
/// If these are more than there are.
pub fn leaving(lendable: &Lendable<'_>, count: u16) -> Range<u16> {
    let end = lendable.layers().checked_sub(lendable.absent);
    let end = end.expect("no more layers are absent than there are");
    end.checked_sub(count).expect("no more layers leave than are there")..end
}

/// Times of waking behind a prompt, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake<'a> {
    /// Load of the weights that no layer owns (embeddings, head, norms), 0 where they are present. It comes first.
    pub global_load_ns: u64,
    /// Load of each layer, front first, 0 for those that are present.
    pub loads_ns: &'a [u64],
    /// The *whole* prompt's compute in each layer: all its chunks go through a layer before the next one.
    pub computes_ns: &'a [u64],
}

impl Wake<'_> {
    /// Time to the first token, exact, nanoseconds. What comes before the loads (revoking) is not in it.
    ///
    /// # Panics
    /// If the two slices differ in length.
    pub fn ttft_ns(&self) -> u64 {
        // No stage computes before the global weights are there, so they delay everything.
        self.global_load_ns.saturating_add(prefill::ttft_ns(self.loads_ns, self.computes_ns))
    }

    /// What waking adds to the prompt's own time, nanoseconds: 0 where compute hides all loads.
    pub fn added_ns(&self) -> u64 {
        let own = self.computes_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        self.ttft_ns().saturating_sub(own)
    }
}

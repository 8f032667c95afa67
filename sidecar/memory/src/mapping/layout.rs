//! The position of each range in the reservation, in chunks.

use sluice_policy::action::Address;
use sluice_policy::ids::LayerId;
use sluice_ports::memory::RangeSizes;

/// One of the constant ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Range {
    /// Embeddings, head and final norm.
    Global,
    /// One layer's slab.
    Layer(LayerId),
    /// The KV arena.
    Kv,
    /// Activations.
    Activation,
    /// Staging copies.
    Staging,
}

/// First chunk and length of every range: global, layers, KV, activations, staging, each followed by one
/// guard chunk.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// `(first chunk, chunks)`, in the order above.
    spans: Vec<(u64, u64)>,
    layers: usize,
}

impl Layout {
    /// Places the ranges consecutively.
    pub(crate) fn new(sizes: &RangeSizes) -> Layout {
        let tail = [sizes.kv_chunks, sizes.activation_chunks, sizes.staging_chunks];
        let all = std::iter::once(&sizes.global_chunks).chain(&sizes.layer_chunks).chain(&tail);
        let mut next = 0;
        let spans = all
            .map(|&chunks| {
                let start = next;
                next += u64::from(chunks) + 1;
                (start, u64::from(chunks))
            })
            .collect();
        Layout { spans, layers: sizes.layer_chunks.len() }
    }

    /// Returns the number of chunks of all ranges and guards.
    pub(crate) fn chunks(&self) -> u64 {
        let &(start, chunks) = self.spans.last().expect("the staging range always exists");
        start + chunks + 1
    }

    /// Returns the first chunk and the number of chunks of a range; `None` for a layer that the model does
    /// not have.
    pub(crate) fn span(&self, range: Range) -> Option<(u64, u64)> {
        let at = match range {
            Range::Global => 0,
            Range::Layer(layer) if layer.index() >= self.layers => return None,
            Range::Layer(layer) => 1 + layer.index(),
            Range::Kv => 1 + self.layers,
            Range::Activation => 2 + self.layers,
            Range::Staging => 3 + self.layers,
        };
        Some(self.spans[at])
    }

    /// Returns the chunk of the reservation at `address`; `None` outside the ranges.
    pub(crate) fn index(&self, address: Address) -> Option<u64> {
        let (range, at) = match address {
            Address::Global(at) => (Range::Global, at),
            Address::Layer(layer, at) => (Range::Layer(layer), at),
            Address::Kv(kv_chunk) => (Range::Kv, kv_chunk.0),
            Address::Activation(at) => (Range::Activation, at),
            Address::Staging(at) => (Range::Staging, at),
        };
        let (start, chunks) = self.span(range)?;
        (u64::from(at) < chunks).then(|| start + u64::from(at))
    }
}

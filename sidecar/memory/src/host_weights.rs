//! The host's one copy of the weights, slab by slab. Filled once from the model's files, read-only from then on, and
//! never written back to.

use rustix::io::Errno;
use sluice_policy::action::FillTarget;
use sluice_policy::ids::LayerId;

use crate::region::Region;

/// Why there is no master copy.
#[derive(Debug, thiserror::Error)]
pub enum HostWeightsError {
    /// The machine has no memory for a slab.
    #[error("no host memory for {bytes} bytes of {slab:?}")]
    OutOfMemory {
        /// Which slab.
        slab: Slab,
        /// How large.
        bytes: u64,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The slab could not be made read-only.
    #[error("{slab:?} cannot be made read-only")]
    Freeze {
        /// Which slab.
        slab: Slab,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// One slab of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slab {
    /// Embeddings, head and final norm.
    Global,
    /// One layer.
    Layer(LayerId),
}

impl Slab {
    /// The slab that a fill copies.
    pub fn of(target: FillTarget) -> Slab {
        match target {
            FillTarget::Global => Slab::Global,
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => Slab::Layer(layer),
        }
    }

    fn index(self) -> usize {
        match self {
            Slab::Global => 0,
            Slab::Layer(layer) => 1 + layer.index(),
        }
    }
}

/// The master copy while it is loaded.
#[derive(Debug)]
pub struct HostWeightsBuilder {
    /// Global, then the layers, front first.
    slabs: Vec<Region>,
}

impl HostWeightsBuilder {
    /// Takes all memory at once, prefaulted and zeroed, so that loading cannot run out half way.
    pub fn new(global_bytes: u64, slab_bytes: &[u64]) -> Result<HostWeightsBuilder, HostWeightsError> {
        let layers = slab_bytes.iter().enumerate();
        let layers = layers.map(|(l, &bytes)| (Slab::Layer(LayerId(l as u16)), bytes));
        let all = std::iter::once((Slab::Global, global_bytes)).chain(layers);
        let region = |(slab, bytes)| {
            Region::new(bytes).map_err(|source| HostWeightsError::OutOfMemory { slab, bytes, source })
        };
        Ok(HostWeightsBuilder { slabs: all.map(region).collect::<Result<_, _>>()? })
    }

    /// The bytes of one slab, to be written. Panics when the model has no such layer.
    pub fn slab_mut(&mut self, slab: Slab) -> &mut [u8] {
        self.slabs[slab.index()].bytes_mut()
    }

    /// The end of loading: the pages become read-only.
    pub fn freeze(mut self) -> Result<HostWeights, HostWeightsError> {
        for (at, region) in self.slabs.iter_mut().enumerate() {
            let slab = if at == 0 { Slab::Global } else { Slab::Layer(LayerId(at as u16 - 1)) };
            region.protect().map_err(|source| HostWeightsError::Freeze { slab, source })?;
        }
        Ok(HostWeights { slabs: self.slabs })
    }
}

/// The master copy, loaded.
#[derive(Debug)]
pub struct HostWeights {
    slabs: Vec<Region>,
}

impl HostWeights {
    /// The bytes of one slab; `None` for a layer that the model does not have.
    pub fn slab(&self, slab: Slab) -> Option<&[u8]> {
        self.slabs.get(slab.index()).map(Region::bytes)
    }

    /// Bytes of host memory.
    pub fn total_bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes().len() as u64).sum()
    }
}

//! The host's copy of the weights, one region per slab. It is filled once, from the model's files or from the chunks
//! into which an engine has loaded them, and read-only afterwards.

use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use sluice_policy::action::FillTarget;
use sluice_policy::ids::LayerId;

use crate::cuda;
use crate::region::Region;

/// Why the host weights could not be created.
#[derive(Debug, thiserror::Error)]
pub enum HostWeightsError {
    /// The machine has no memory for a slab.
    #[error("cannot allocate {bytes} bytes of host memory for {slab:?}")]
    OutOfMemory {
        /// The slab.
        slab: Slab,
        /// Its size, bytes.
        bytes: u64,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// The device's driver cannot lock memory for a slab.
    #[error("cannot lock {bytes} bytes of host memory for {slab:?}")]
    Register {
        /// The slab.
        slab: Slab,
        /// Its size, bytes.
        bytes: u64,
        /// What the driver or the kernel answered.
        #[source]
        source: cuda::Error,
    },
    /// The slab could not be made read-only.
    #[error("{slab:?} cannot be made read-only")]
    Freeze {
        /// The slab.
        slab: Slab,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
}

/// One slab of the model: the weights of one layer, or the global weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slab {
    /// Embeddings, head and final norm.
    Global,
    /// Weights of one layer.
    Layer(LayerId),
}

impl Slab {
    /// Returns the slab that a fill copies.
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

    fn at(index: usize) -> Slab {
        index.checked_sub(1).map_or(Slab::Global, |layer| Slab::Layer(LayerId(layer as u16)))
    }
}

/// The host weights during loading.
#[derive(Debug)]
pub struct HostWeightsBuilder {
    /// Global slab, then the layers, front first.
    slabs: Vec<Region>,
}

impl HostWeightsBuilder {
    /// Allocates all memory at once, prefaulted and zeroed, so that loading cannot run out of memory.
    pub fn new(global_bytes: u64, slab_bytes: &[u64]) -> Result<HostWeightsBuilder, HostWeightsError> {
        HostWeightsBuilder::allocate(global_bytes, slab_bytes, |slab, bytes| {
            Region::new(bytes).map_err(|source| HostWeightsError::OutOfMemory { slab, bytes, source })
        })
    }

    /// As [`HostWeightsBuilder::new`], in pages that are locked for the device of `context`.
    pub fn registered(
        context: &cuda::Context,
        global_bytes: u64,
        slab_bytes: &[u64],
    ) -> Result<HostWeightsBuilder, HostWeightsError> {
        HostWeightsBuilder::allocate(global_bytes, slab_bytes, |slab, bytes| {
            Region::registered(context, bytes).map_err(|source| HostWeightsError::Register {
                slab,
                bytes,
                source,
            })
        })
    }

    fn allocate(
        global_bytes: u64,
        slab_bytes: &[u64],
        region: impl Fn(Slab, u64) -> Result<Region, HostWeightsError>,
    ) -> Result<HostWeightsBuilder, HostWeightsError> {
        let layers = slab_bytes.iter().enumerate();
        let layers = layers.map(|(l, &bytes)| (Slab::Layer(LayerId(l as u16)), bytes));
        let all = std::iter::once((Slab::Global, global_bytes)).chain(layers);
        Ok(HostWeightsBuilder {
            slabs: all.map(|(slab, bytes)| region(slab, bytes)).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the writable bytes of one slab. Panics if the model has no such layer.
    pub fn slab_mut(&mut self, slab: Slab) -> &mut [u8] {
        self.slabs[slab.index()].bytes_mut()
    }

    /// Ends loading and makes the pages read-only.
    pub fn freeze(self) -> Result<HostWeights, HostWeightsError> {
        let slabs = self.slabs.into_iter().enumerate().map(|(at, mut region)| {
            region.protect().map_err(|source| HostWeightsError::Freeze { slab: Slab::at(at), source })?;
            Ok(HostSlab::filled(region))
        });
        Ok(HostWeights { slabs: slabs.collect::<Result<_, _>>()? })
    }

    /// Returns weights that an engine loads: the first copy of a slab to its own chunks reads it from them.
    pub fn uncaptured(self) -> HostWeights {
        HostWeights { slabs: self.slabs.into_iter().map(HostSlab::empty).collect() }
    }
}

/// The host weights. A slab is read-only as soon as it is there.
#[derive(Debug)]
pub struct HostWeights {
    slabs: Vec<HostSlab>,
}

impl HostWeights {
    /// Returns the bytes of one slab; `None` for a layer that the model does not have, or if the slab was not captured.
    pub fn slab(&self, slab: Slab) -> Option<&[u8]> {
        self.slabs.get(slab.index())?.filled.get().map(Region::bytes)
    }

    /// Returns the size of one slab; `None` for a layer that the model does not have.
    pub(crate) fn slab_bytes(&self, slab: Slab) -> Option<u64> {
        self.slabs.get(slab.index()).map(|slab| slab.bytes)
    }

    /// Fills a slab that is not there by `copy`. Does nothing if it is there. After an error of `copy` the slab is still
    /// not there.
    pub(crate) fn capture<E: From<HostWeightsError>>(
        &self,
        slab: Slab,
        copy: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(host) = self.slabs.get(slab.index()) else { return Ok(()) };
        let mut empty = host.empty.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = empty.as_mut() else { return Ok(()) };
        copy(region.bytes_mut())?;
        region.protect().map_err(|source| HostWeightsError::Freeze { slab, source })?;
        if let Some(region) = empty.take() {
            host.filled.set(region).expect("a slab is filled once, under its lock");
        }
        Ok(())
    }
}

/// The memory of one slab.
#[derive(Debug)]
struct HostSlab {
    bytes: u64,
    filled: OnceLock<Region>,
    /// The memory until the slab is there.
    empty: Mutex<Option<Region>>,
}

impl HostSlab {
    fn filled(region: Region) -> HostSlab {
        let bytes = region.bytes().len() as u64;
        HostSlab { bytes, filled: OnceLock::from(region), empty: Mutex::new(None) }
    }

    fn empty(region: Region) -> HostSlab {
        let bytes = region.bytes().len() as u64;
        HostSlab { bytes, filled: OnceLock::new(), empty: Mutex::new(Some(region)) }
    }
}

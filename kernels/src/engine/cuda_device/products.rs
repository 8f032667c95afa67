//! Products by cuBLASLt: one algorithm for each shape, chosen at its first use.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_link::model::Dtype;
use sluice_memory::cuda::cublaslt::{Format, Matmul, MatmulShape, Matrices};
use sluice_memory::cuda::{Context, CublasLt, Error, Stream};

use crate::cuda::ProductPlan;

/// The library, with the shapes that it has computed.
#[derive(Debug)]
pub(super) struct ProductLibrary {
    library: CublasLt,
    known: Mutex<KnownShapes>,
}

/// The shapes so far. A model has some seven matrices, and a step at most [`sluice_link::message::EngineSetup`]'s
/// `chunk_tokens` rows, so there are some thousand shapes of less than 1 KiB.
#[derive(Debug, Default)]
struct KnownShapes {
    matmuls: BTreeMap<MatmulShape, Matmul>,
    /// Products that were queued or captured.
    queued: u64,
}

impl ProductLibrary {
    /// Loads the library that fits the driver.
    pub(super) fn load(context: &Context) -> Result<ProductLibrary, Error> {
        Ok(ProductLibrary { library: CublasLt::load(context)?, known: Mutex::default() })
    }

    /// Whether the algorithm for a product is chosen, and its code loaded.
    pub(super) fn knows(&self, plan: &ProductPlan) -> bool {
        self.known().matmuls.contains_key(&shape(plan))
    }

    /// Queues a product.
    pub(super) fn queue(&self, stream: &Stream, plan: &ProductPlan) -> Result<(), Error> {
        let mut known = self.known();
        known.queued += 1;
        let matmul = match known.matmuls.entry(shape(plan)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let matmul = self.library.matmul(*new.key())?;
                new.insert(matmul)
            }
        };
        let ProductPlan { weights, input, output, workspace, .. } = *plan;
        // SAFETY: a plan's matrices are in the ranges of its model, which are reserved as long as the stream exists. No
        // product writes its own input.
        unsafe { matmul.queue(stream, Matrices { weights, input, output, workspace }) }
    }

    /// The shapes. A panic of another thread leaves them complete.
    fn known(&self) -> MutexGuard<'_, KnownShapes> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProductLibrary {
    fn drop(&mut self) {
        let (file, version) = self.library.version();
        let (shapes, queued) = {
            let known = self.known();
            (known.matmuls.len(), known.queued)
        };
        tracing::info!(file, version, shapes, queued, "products by cuBLASLt");
    }
}

fn shape(plan: &ProductPlan) -> MatmulShape {
    let ProductPlan { rows, columns, k, output_stride, adds, .. } = *plan;
    let format = match plan.format {
        Dtype::Bf16 => Format::Bf16,
        Dtype::F16 => Format::F16,
        Dtype::F32 => panic!("products in f32 are of our own kernel"),
    };
    let alignment = MatmulShape::alignment([plan.weights, plan.input, plan.output]);
    let workspace_bytes = ProductPlan::WORKSPACE_BYTES;
    MatmulShape { format, rows, columns, k, output_stride, adds, alignment, workspace_bytes }
}

//! What computes products of matrices on this machine: our own kernel, and cuBLASLt where it is installed.

use sluice_kernels::cuda::Products;
use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda::Error;
use sluice_probe::bench::Bench;
use sluice_probe::results::Findings;

/// Loads the kernels, and cuBLASLt if a file of it fits the driver. If none does, a note has the names of the files.
pub fn load(bench: &Bench, findings: &mut Findings<'_>) -> Result<(CudaKernels, Vec<Products>), Error> {
    let mut kernels = CudaKernels::load(&bench.context)?;
    match kernels.load_cublaslt(&bench.context) {
        Ok(()) => Ok((kernels, vec![Products::Deterministic, Products::CublasLt])),
        Err(error @ (Error::NoCublasLt { .. } | Error::OldCublasLt { .. })) => {
            findings.notes.push(format!("products of cuBLASLt are not measured: {error}"));
            Ok((kernels, vec![Products::Deterministic]))
        }
        Err(error) => Err(error),
    }
}

/// The end of the names of figures with these products.
pub const fn suffix(products: Products) -> &'static str {
    match products {
        Products::Deterministic => "",
        Products::CublasLt => ", cuBLASLt",
    }
}

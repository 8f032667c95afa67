//! Products of matrices by cuBLASLt, which is loaded at run time as the driver is.
//!
//! The library chooses one of its algorithms by the shape of a product. So the order in which a sum is added depends on
//! the number of rows: the bits of a row are not those of the same row in another batch.

mod descriptor;
mod library;

use std::ffi::c_void;
use std::sync::Arc;

use super::{Address, Context, Error, Stream};
use descriptor::{Descriptor, Kind, Preference};
use library::{Algorithm, Heuristic, Library, check};

pub use descriptor::Format;
pub use library::file_names;

/// Weakest and strongest alignment of an address that decides the algorithm, in bytes.
const ALIGNMENTS: [u32; 2] = [2, 256];

/// What decides the algorithm of a product `output = input . weights^T`. Rows of input and weights are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatmulShape {
    /// Format of input and weights.
    pub format: Format,
    /// Rows of input and output.
    pub rows: u32,
    /// Rows of the weights, columns of the output.
    pub columns: u32,
    /// Columns of input and weights.
    pub k: u32,
    /// Numbers from one row of the output to the next.
    pub output_stride: u32,
    /// Whether the product is added to the output.
    pub adds: bool,
    /// Bytes that divide the addresses of weights, input and output.
    pub alignment: [u32; 3],
    /// Most bytes of workspace.
    pub workspace_bytes: u64,
}

/// The matrices of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// `[columns][k]`
    pub weights: Address,
    /// `[rows][k]`
    pub input: Address,
    /// f32 `[rows]` x `output_stride`
    pub output: Address,
    /// [`MatmulShape::workspace_bytes`] that no other work uses until the product is done; aligned to 256 bytes.
    pub workspace: Address,
}

/// The library, with a handle in a context.
#[derive(Clone, Debug)]
pub struct CublasLt {
    handle: Arc<LibraryHandle>,
}

#[derive(Debug)]
struct LibraryHandle {
    library: Library,
    raw: *mut c_void,
    _context: Context,
}

// SAFETY: the documentation of cuBLASLt allows any thread to use a handle, and several at once.
unsafe impl Send for LibraryHandle {}
// SAFETY: as above.
unsafe impl Sync for LibraryHandle {}

/// A product of one shape, with the algorithm that the library has chosen.
#[derive(Debug)]
pub struct Matmul {
    product: Descriptor,
    /// Of weights, input and output.
    layouts: [Descriptor; 3],
    algorithm: Algorithm,
    shape: MatmulShape,
    /// Bytes of workspace that the algorithm uses.
    workspace_bytes: usize,
    // Behind the descriptors, which it outlives.
    handle: Arc<LibraryHandle>,
}

impl CublasLt {
    /// Loads the library that fits the driver ([`file_names`]), and creates a handle in the context, which is current.
    ///
    /// # Errors
    /// [`Error::NoCublasLt`], [`Error::OldCublasLt`], or what the library refuses.
    pub fn load(context: &Context) -> Result<CublasLt, Error> {
        let library = Library::load(context.device().driver())?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check(&library, "cublasLtCreate", unsafe { (library.create)(&raw mut raw) })?;
        Ok(CublasLt { handle: Arc::new(LibraryHandle { library, raw, _context: context.clone() }) })
    }

    /// Returns the file that was loaded, and the library's version, as 120402 for 12.4.2.
    pub fn version(&self) -> (&str, usize) {
        let library = &self.handle.library;
        // SAFETY: the function takes no arguments.
        (&library.file, unsafe { (library.version)() })
    }

    /// Prepares products of a shape: the library chooses its algorithm.
    ///
    /// # Errors
    /// If it has no algorithm for the shape.
    pub fn matmul(&self, shape: MatmulShape) -> Result<Matmul, Error> {
        let library = &self.handle.library;
        let product = Descriptor::product(library)?;
        // Matrices of the library are stored by columns: rows of ours are its columns, so it computes the transposed
        // output, `weights . input^T`, whose first matrix it transposes back.
        let format = Kind::of(shape.format);
        let MatmulShape { rows, columns, k, output_stride, .. } = shape;
        let layouts = [
            Descriptor::matrix(library, format, [k, columns], k)?,
            Descriptor::matrix(library, format, [k, rows], k)?,
            Descriptor::matrix(library, Kind::F32, [columns, rows], output_stride)?,
        ];
        let preference = Preference::new(library, shape.workspace_bytes, shape.alignment)?;
        let mut found = 0;
        let mut best = Heuristic::default();
        let [weights, input, output] = layouts.each_ref().map(Descriptor::raw);
        // SAFETY: all descriptors exist; writes at most one result, and their number.
        let status = unsafe {
            (library.heuristic)(
                self.handle.raw,
                product.raw(),
                weights,
                input,
                output,
                output,
                preference.raw(),
                1,
                &raw mut best,
                &raw mut found,
            )
        };
        check(library, "cublasLtMatmulAlgoGetHeuristic", status)?;
        if found < 1 {
            return Err(Error::CublasLt {
                call: "cublasLtMatmulAlgoGetHeuristic",
                status: format!("no algorithm for {shape:?}"),
            });
        }
        let (algorithm, workspace_bytes) = (best.algorithm, best.workspace_bytes);
        let handle = Arc::clone(&self.handle);
        Ok(Matmul { product, layouts, algorithm, shape, workspace_bytes, handle })
    }
}

impl MatmulShape {
    /// Returns the alignment of addresses as far as it decides the algorithm.
    pub fn alignment(addresses: [Address; 3]) -> [u32; 3] {
        let [weakest, strongest] = ALIGNMENTS;
        addresses.map(|address| (1 << address.trailing_zeros().min(31)).clamp(weakest, strongest))
    }
}

impl Matmul {
    /// Queues a product of this shape. A captured stream captures it.
    ///
    /// # Errors
    /// What the library refuses, such as an address with less alignment than the shape says.
    ///
    /// # Safety
    /// The matrices and the workspace are device memory. The output may be that of earlier work of the stream, but not
    /// the input.
    pub unsafe fn queue(&self, stream: &Stream, matrices: Matrices) -> Result<(), Error> {
        let library = &self.handle.library;
        let [weights, input, output] = self.layouts.each_ref().map(Descriptor::raw);
        let (one, sum) = (1.0_f32, if self.shape.adds { 1.0_f32 } else { 0.0 });
        // SAFETY: the caller guarantees the matrices, and the descriptors say their sizes. The factors are on the host,
        // and are read during the call. A stream is the same object for driver and runtime.
        let status = unsafe {
            (library.matmul)(
                self.handle.raw,
                self.product.raw(),
                &raw const one,
                matrices.weights,
                weights,
                matrices.input,
                input,
                &raw const sum,
                matrices.output,
                output,
                matrices.output,
                output,
                &raw const self.algorithm,
                matrices.workspace,
                self.workspace_bytes,
                stream.raw().cast(),
            )
        };
        check(library, "cublasLtMatmul", status)
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle; the work that it has queued is the stream's.
        let _ = unsafe { (self.library.destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::MatmulShape;

    #[test]
    fn the_alignment_of_an_address_is_the_largest_power_of_two_that_divides_it_up_to_256() {
        assert_eq!(MatmulShape::alignment([0x1000, 0x1040, 0x1004]), [256, 64, 4]);
        assert_eq!(MatmulShape::alignment([1 << 40, 0x1001, 0x1002]), [256, 2, 2]);
    }
}

//! One small product with cuBLASLt, so that its memory can be measured.

use sluice_memory::cuda::cublaslt::{CublasLt, Format, MatmulShape, Matrices};
use sluice_memory::cuda::{Buffer, Context, Error, Stream};

/// Rows and columns of the matrices.
const SIDE: u32 = 256;
/// Bytes of a matrix of `f32`, the largest of the three.
const MATRIX_BYTES: u64 = SIDE as u64 * SIDE as u64 * 4;
/// A product without workspace.
const SHAPE: MatmulShape = MatmulShape {
    format: Format::Bf16,
    rows: SIDE,
    columns: SIDE,
    k: SIDE,
    output_stride: SIDE,
    adds: false,
    alignment: [256; 3],
    workspace_bytes: 0,
};

/// Loads the library that an engine loads, and multiplies two matrices. Returns its handle in the current context.
pub fn multiply(context: &Context) -> Result<CublasLt, Error> {
    let library = CublasLt::load(context)?;
    let product = library.matmul(SHAPE)?;
    let stream = Stream::new(context)?;
    let buffer = Buffer::new(context, 3 * MATRIX_BYTES)?;
    stream.fill(buffer.at(0), 0, buffer.bytes())?;
    let [weights, input, output] = [0, 1, 2].map(|index| buffer.at(index * MATRIX_BYTES));
    // SAFETY: three matrices of this shape are in the buffer, which outlives the work of the stream; there is no
    // workspace.
    unsafe { product.queue(&stream, Matrices { weights, input, output, workspace: output }) }?;
    stream.finish()?;
    Ok(library)
}

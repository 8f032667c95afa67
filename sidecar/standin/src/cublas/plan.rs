//! The checks of a product before it is queued, and the algorithms that the heuristic offers.

use super::descriptor::{MatmulDescriptor, MatrixLayout, Preference};
use super::epilogue::Epilogue;
use super::matmul::{Matmul, Operand};
use super::number::NumberFormat;
use super::status::{INVALID_VALUE, NOT_SUPPORTED};

/// Workspace in bytes of the algorithm that needs one. The stand-in overwrites it, as a real algorithm does.
const WORKSPACE_BYTES: u64 = 1 << 20;
/// Required alignment of pointers in bytes; an algorithm for less alignment requires less.
const ALIGNMENT: u64 = 16;
/// First word of an algorithm of this library.
const MAGIC: u64 = 0x5355_4c4f_4f50_1e55;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Algorithm {
    magic: u64,
    /// Formats, transpositions and epilogue that it was chosen for. It may serve other shapes.
    kind: u64,
    workspace: u64,
    /// Alignment of A, B, C and D in bytes.
    alignment: [u16; 4],
    rest: [u64; 4],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HeuristicResult {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub state: u32,
    pub waves: f32,
    pub reserved: [i32; 4],
}

/// A product and its matrices, without their addresses.
pub struct Plan {
    descriptor: MatmulDescriptor,
    layouts: [MatrixLayout; 4],
    epilogue: Epilogue,
    m: u64,
    n: u64,
    k: u64,
}

/// What a call gives besides the descriptors.
pub struct Arguments {
    /// Addresses of A, B, C and D.
    pub addresses: [u64; 4],
    pub alpha: f32,
    pub beta: f32,
    pub algorithm: Option<Algorithm>,
    pub workspace: u64,
    pub workspace_bytes: u64,
}

impl Plan {
    /// Checks that descriptors fit each other: A, B, C and D in order.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a conflict, `NOT_SUPPORTED` for what this library does not compute.
    pub fn new(descriptor: MatmulDescriptor, layouts: [MatrixLayout; 4]) -> Result<Self, u32> {
        layouts.iter().try_for_each(MatrixLayout::check)?;
        let [a, b, c, d] = layouts;
        let epilogue = Epilogue::from_code(descriptor.epilogue)?;
        let [transposed_a, transposed_b, transposed_c] = descriptor.operations;
        if transposed_a > 1 || transposed_b > 1 || transposed_c != 0 || descriptor.pointer_mode != 0 {
            return Err(NOT_SUPPORTED);
        }
        check_formats(&descriptor, layouts)?;
        let (m, k) = shape(a, transposed_a);
        let (also_k, n) = shape(b, transposed_b);
        let conflict = k != also_k
            || [c, d].iter().any(|matrix| (matrix.rows, matrix.columns) != (m, n))
            || layouts.iter().any(|matrix| matrix.batch != d.batch);
        if conflict { Err(INVALID_VALUE) } else { Ok(Self { descriptor, layouts, epilogue, m, n, k }) }
    }

    /// Returns the algorithms for a preference, the best first: one that needs a workspace, if it may have one, and one
    /// that needs none.
    pub fn algorithms(&self, preference: &Preference) -> Vec<HeuristicResult> {
        let sizes = [WORKSPACE_BYTES, 0].into_iter().filter(|bytes| *bytes <= preference.workspace);
        let alignment = preference.alignment.map(|bytes| bytes.min(ALIGNMENT as u32) as u16);
        let result = |workspace| HeuristicResult {
            algorithm: Algorithm { magic: MAGIC, kind: self.kind(), workspace, alignment, rest: [0; 4] },
            workspace: workspace as usize,
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        };
        sizes.map(result).collect()
    }

    /// Returns the product of these matrices.
    ///
    /// # Errors
    /// `INVALID_VALUE` for pointers that are null or not aligned, for an algorithm of another product, and for too
    /// little workspace.
    pub fn matmul(&self, arguments: &Arguments) -> Result<Matmul, u32> {
        let needed = self.check_algorithm(arguments)?;
        let [a, b, c, d] = std::array::from_fn(|index| self.operand(index, arguments.addresses[index]));
        let epilogue = self.epilogue;
        let bias = epilogue.has_bias.then_some((self.descriptor.bias, self.bias_format()?));
        if bias.is_some_and(|(address, format)| address == 0 || !address.is_multiple_of(format.bytes())) {
            return Err(INVALID_VALUE);
        }
        Ok(Matmul {
            a,
            b,
            c: (arguments.beta != 0.0).then_some(c),
            d,
            shape: [self.m, self.n, self.k].map(|count| count as usize),
            batch: self.layouts[3].batch.cast_unsigned(),
            scale: [arguments.alpha, arguments.beta],
            bias,
            activation: epilogue.activation,
            workspace: (arguments.workspace, needed),
        })
    }

    /// Checks pointers and workspace against the algorithm. Returns the bytes of workspace that it uses.
    fn check_algorithm(&self, arguments: &Arguments) -> Result<u64, u32> {
        let algorithm = arguments.algorithm;
        if algorithm.is_some_and(|known| known.magic != MAGIC || known.kind != self.kind()) {
            return Err(INVALID_VALUE);
        }
        let alignment = algorithm.map_or([ALIGNMENT as u16; 4], |known| known.alignment);
        for (index, (address, bytes)) in arguments.addresses.iter().zip(alignment).enumerate() {
            // C is not read without beta.
            let is_used = index != 2 || arguments.beta != 0.0;
            let required = u64::from(bytes).max(self.layouts[index].format.bytes());
            if is_used && (*address == 0 || !address.is_multiple_of(required)) {
                return Err(INVALID_VALUE);
            }
        }
        let needed = algorithm.map_or(0, |known| known.workspace);
        let missing = arguments.workspace == 0 && arguments.workspace_bytes > 0;
        let is_aligned = arguments.workspace.is_multiple_of(ALIGNMENT);
        if missing || !is_aligned || arguments.workspace_bytes < needed {
            return Err(INVALID_VALUE);
        }
        Ok(needed)
    }

    fn operand(&self, index: usize, address: u64) -> Operand {
        let layout = self.layouts[index];
        Operand {
            address,
            format: layout.format,
            lead: layout.lead.cast_unsigned() as usize,
            extent: layout.extent(),
            batch_bytes: layout.batch_stride.wrapping_mul(layout.format.bytes() as i64),
            is_transposed: index < 2 && self.descriptor.operations[index] == 1,
        }
    }

    fn bias_format(&self) -> Result<NumberFormat, u32> {
        match self.descriptor.bias_format {
            u32::MAX => Ok(self.layouts[3].format),
            code => NumberFormat::from_code(code),
        }
    }

    fn kind(&self) -> u64 {
        let formats = self.layouts.iter().fold(0, |kind, layout| kind << 8 | u64::from(layout.format.code()));
        let [a, b, _] = self.descriptor.operations;
        formats << 32 | u64::from(a) << 17 | u64::from(b) << 16 | u64::from(self.descriptor.epilogue)
    }
}

/// Rows and columns of the operand of a product.
fn shape(layout: MatrixLayout, operation: u32) -> (u64, u64) {
    if operation == 0 { (layout.rows, layout.columns) } else { (layout.columns, layout.rows) }
}

/// Checks formats against the library's table of supported combinations, for sums in f32.
fn check_formats(descriptor: &MatmulDescriptor, [a, b, c, d]: [MatrixLayout; 4]) -> Result<(), u32> {
    // CUBLAS_COMPUTE_32F and _PEDANTIC; FAST_16F, FAST_16BF and FAST_TF32 round f32 matrices first, which this does not.
    let computes = match descriptor.compute {
        68 | 69 => true,
        74 | 75 | 77 => a.format == NumberFormat::F32,
        _ => false,
    };
    let fits = a.format == b.format
        && c.format == d.format
        && (d.format == a.format || d.format == NumberFormat::F32)
        && descriptor.scale == NumberFormat::F32.code();
    if computes && fits { Ok(()) } else { Err(NOT_SUPPORTED) }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, HeuristicResult};

    #[test]
    fn the_structures_are_as_long_as_the_librarys() {
        // From cublasLt.h of CUDA 12.
        assert_eq!((size_of::<Algorithm>(), size_of::<HeuristicResult>()), (64, 96));
    }
}

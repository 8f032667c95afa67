//! One small product with cuBLASLt, so that its memory can be measured.

use std::ptr;

use cudarc::cublaslt::sys::{self, cublasComputeType_t, cublasStatus_t, cudaDataType};
use sluice_memory::cuda::{Buffer, Context, Error, Stream};

/// Rows and columns of the matrices.
const SIDE: u64 = 256;
/// The cuBLASLt functions that this module calls.
const REQUIRED: [&str; 7] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];

/// The library with a handle, in the current context.
pub struct Cublas {
    handle: sys::cublasLtHandle_t,
}

impl Cublas {
    /// Loads the library and multiplies two matrices.
    ///
    /// # Errors
    /// A message with the reason.
    pub fn multiply(context: &Context) -> Result<Cublas, String> {
        // SAFETY: loads a library by its name; its initializers are its own.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt is not on the library path".into());
        }
        // SAFETY: the library is present; the symbols are only looked up, neither called nor read.
        let lacks = |name: &&&str| unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.is_err();
        if let Some(missing) = REQUIRED.iter().find(lacks) {
            return Err(format!("libcublasLt has no {missing}"));
        }
        let mut handle = ptr::null_mut();
        // SAFETY: writes one pointer.
        check_status("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        let library = Cublas { handle };
        library.product(context)?;
        Ok(library)
    }

    fn product(&self, context: &Context) -> Result<(), String> {
        let words = |error: Error| error.to_string();
        let stream = Stream::new(context).map_err(words)?;
        let matrices = Buffer::new(context, 3 * SIDE * SIDE * 4).map_err(words)?;
        stream.fill(matrices.at(0), 0, matrices.bytes()).map_err(words)?;
        let [a, b, c] = [0, 1, 2].map(|index| matrices.at(index * SIDE * SIDE * 4));
        let shapes = Shapes::new()?;
        let (one, zero, none) = (1.0_f32, 0.0_f32, ptr::null());
        let (shape, scale) = (shapes.layout, [&raw const one, &raw const zero].map(<*const f32>::cast));
        // SAFETY: three matrices of this shape are on the device, the scalars on the host; there is no workspace, and
        // the library chooses the algorithm. A stream is the same object for driver and runtime.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                shapes.product,
                scale[0],
                a as *const _,
                shape,
                b as *const _,
                shape,
                scale[1],
                c as *const _,
                shape,
                c as *mut _,
                shape,
                none,
                ptr::null_mut(),
                0,
                stream.raw().cast(),
            )
        };
        check_status("cublasLtMatmul", status)?;
        stream.finish().map_err(words)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and its work is done.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// Descriptors of the product and of its square matrices.
struct Shapes {
    product: sys::cublasLtMatmulDesc_t,
    layout: sys::cublasLtMatrixLayout_t,
}

impl Shapes {
    fn new() -> Result<Shapes, String> {
        let (real, compute) = (cudaDataType::CUDA_R_32F, cublasComputeType_t::CUBLAS_COMPUTE_32F);
        let mut shapes = Shapes { product: ptr::null_mut(), layout: ptr::null_mut() };
        // SAFETY: writes one pointer.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&mut shapes.product, compute, real) };
        check_status("cublasLtMatmulDescCreate", status)?;
        let side = SIDE as i64;
        // SAFETY: writes one pointer.
        let status = unsafe { sys::cublasLtMatrixLayoutCreate(&mut shapes.layout, real, SIDE, SIDE, side) };
        check_status("cublasLtMatrixLayoutCreate", status)?;
        Ok(shapes)
    }
}

impl Drop for Shapes {
    fn drop(&mut self) {
        // SAFETY: this value owns both; they are null if their creation failed.
        unsafe {
            if !self.product.is_null() {
                let _ = sys::cublasLtMatmulDescDestroy(self.product);
            }
            if !self.layout.is_null() {
                let _ = sys::cublasLtMatrixLayoutDestroy(self.layout);
            }
        }
    }
}

fn check_status(call: &str, status: cublasStatus_t) -> Result<(), String> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS { Ok(()) } else { Err(format!("{call}: {status:?}")) }
}

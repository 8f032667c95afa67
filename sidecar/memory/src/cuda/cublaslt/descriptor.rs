//! Descriptors of products, matrices and preferences, destroyed on drop.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as ProductAttribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cudaDataType as DataType,
};

use super::super::Error;
use super::library::{Library, check};

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// The format of input and weights. Sums and outputs are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// `__nv_bfloat16`
    Bf16,
    /// `__half`
    F16,
}

/// A `cudaDataType`.
#[derive(Clone, Copy, Debug)]
pub struct Kind(u32);

impl Kind {
    /// Of outputs, sums and factors.
    pub const F32: Kind = Kind(DataType::CUDA_R_32F as u32);

    /// Of input and weights.
    pub fn of(format: Format) -> Kind {
        match format {
            Format::Bf16 => Kind(DataType::CUDA_R_16BF as u32),
            Format::F16 => Kind(DataType::CUDA_R_16F as u32),
        }
    }
}

/// An object of the library.
#[derive(Debug)]
pub struct Descriptor {
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
}

// SAFETY: a descriptor is memory of the library that only calls with it read or write, and it does not change once it
// is made.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// A product with sums in f32, whose first matrix is transposed.
    pub fn product(library: &Library) -> Result<Descriptor, Error> {
        let (compute, mut raw) = (Compute::CUBLAS_COMPUTE_32F as u32, ptr::null_mut());
        // SAFETY: writes one pointer.
        let status = unsafe { (library.create_product)(&raw mut raw, compute, Kind::F32.0) };
        check(library, "cublasLtMatmulDescCreate", status)?;
        let product = Descriptor { raw, destroy: library.destroy_product };
        let attribute = ProductAttribute::CUBLASLT_MATMUL_DESC_TRANSA as u32;
        let value = ptr::from_ref(&TRANSPOSED).cast();
        // SAFETY: reads four bytes, which the attribute has.
        let status = unsafe { (library.set_product)(product.raw, attribute, value, 4) };
        check(library, "cublasLtMatmulDescSetAttribute", status)?;
        Ok(product)
    }

    /// A matrix by columns: rows and columns, and the numbers from one column to the next.
    pub fn matrix(
        library: &Library,
        kind: Kind,
        [rows, columns]: [u32; 2],
        lead: u32,
    ) -> Result<Descriptor, Error> {
        let mut raw = ptr::null_mut();
        let (rows, columns, lead) = (rows.into(), columns.into(), lead.into());
        // SAFETY: writes one pointer.
        let status = unsafe { (library.create_matrix)(&raw mut raw, kind.0, rows, columns, lead) };
        check(library, "cublasLtMatrixLayoutCreate", status)?;
        Ok(Descriptor { raw, destroy: library.destroy_matrix })
    }

    /// Returns the library's pointer.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value owns the object; queued work does not use it.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// What the library may use, and what it may rely on.
#[derive(Debug)]
pub struct Preference(Descriptor);

impl Preference {
    /// Allows `workspace_bytes`, and promises the alignment of weights, input and output in bytes.
    pub fn new(library: &Library, workspace_bytes: u64, alignment: [u32; 3]) -> Result<Preference, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        let status = unsafe { (library.create_preference)(&raw mut raw) };
        check(library, "cublasLtMatmulPreferenceCreate", status)?;
        let preference = Preference(Descriptor { raw, destroy: library.destroy_preference });
        let [weights, input, output] = alignment;
        use PreferenceAttribute as A;
        preference.set(library, A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes)?;
        preference.set(library, A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &weights)?;
        preference.set(library, A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &input)?;
        preference.set(library, A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &output)?;
        preference.set(library, A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &output)?;
        Ok(preference)
    }

    fn set<T>(&self, library: &Library, attribute: PreferenceAttribute, value: &T) -> Result<(), Error> {
        let (attribute, place) = (attribute as u32, ptr::from_ref(value).cast());
        // SAFETY: reads the value. A size that is not the attribute's is refused.
        let status = unsafe { (library.set_preference)(self.raw(), attribute, place, size_of::<T>()) };
        check(library, "cublasLtMatmulPreferenceSetAttribute", status)
    }

    /// Returns the library's pointer.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw()
    }
}

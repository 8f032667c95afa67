//! cuBLASLt's functions.

use std::ffi::{c_char, c_void};

use crate::abi::{InPtr, OutPtr};
use crate::cublas::descriptor::{
    AttributeBytes, MatmulDescriptor, MatrixLayout, Preference, write_attribute,
};
use crate::cublas::number::NumberFormat;
use crate::cublas::plan::{Algorithm, Arguments, HeuristicResult, Plan};
use crate::cublas::status::{
    self, EXECUTION_FAILED, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, library_calls,
};
use crate::current_context::current;
use crate::enqueue::enqueue;
use crate::env_config::ENV_CONFIG;
use crate::objects::objects;
use crate::operation::Operation;

/// Number of the version of cuBLAS that comes with the driver's CUDA version: 12.0.1 of CUDA 12.0, and so on.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    ENV_CONFIG.driver.cublas_version()
}

/// The version of the CUDA runtime that the library was made with.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetCudartVersion() -> usize {
    ENV_CONFIG.driver.number().cast_unsigned() as usize
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(code: u32) -> *const c_char {
    status::name(code).as_ptr().cast()
}

/// As for the name: this library has no other texts.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(code: u32) -> *const c_char {
    status::name(code).as_ptr().cast()
}

library_calls! {
    fn cublasLtCreate(handle: OutPtr<usize>) {
        let mut objects = objects();
        objects.context(current()).map_err(|_| NOT_INITIALIZED)?;
        let number = objects.next_handle();
        objects.cublas.handles.insert(number);
        handle.set(number).map_err(|_| INVALID_VALUE)
    }

    fn cublasLtDestroy(handle: usize) {
        if objects().cublas.handles.remove(&handle) { Ok(()) } else { Err(NOT_INITIALIZED) }
    }

    fn cublasLtMatmulDescCreate(descriptor: OutPtr<usize>, compute: u32, scale: u32) {
        let mut objects = objects();
        let number = objects.next_handle();
        objects.cublas.descriptors.insert(number, MatmulDescriptor::new(compute, scale));
        descriptor.set(number).map_err(|_| INVALID_VALUE)
    }

    fn cublasLtMatmulDescDestroy(descriptor: usize) {
        objects().cublas.descriptors.remove(&descriptor).map(drop).ok_or(INVALID_VALUE)
    }

    fn cublasLtMatmulDescSetAttribute(descriptor: usize, attribute: u32, value: *const c_void, bytes: usize) {
        // SAFETY: the caller gives a buffer of this length.
        let value = unsafe { AttributeBytes::read(value, bytes) }?;
        objects().cublas.descriptors.get_mut(&descriptor).ok_or(INVALID_VALUE)?.set(attribute, value)
    }

    fn cublasLtMatmulDescGetAttribute(
        descriptor: usize, attribute: u32, value: *mut c_void, bytes: usize, written: OutPtr<usize>,
    ) {
        let known = *objects().cublas.descriptors.get(&descriptor).ok_or(INVALID_VALUE)?;
        write_attribute(known.get(attribute)?, value, bytes, &written)
    }

    fn cublasLtMatrixLayoutCreate(layout: OutPtr<usize>, format: u32, rows: u64, columns: u64, lead: i64) {
        let format = NumberFormat::from_code(format)?;
        let mut objects = objects();
        let number = objects.next_handle();
        objects.cublas.layouts.insert(number, MatrixLayout::new(format, rows, columns, lead));
        layout.set(number).map_err(|_| INVALID_VALUE)
    }

    fn cublasLtMatrixLayoutDestroy(layout: usize) {
        objects().cublas.layouts.remove(&layout).map(drop).ok_or(INVALID_VALUE)
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: usize, attribute: u32, value: *const c_void, bytes: usize) {
        // SAFETY: the caller gives a buffer of this length.
        let value = unsafe { AttributeBytes::read(value, bytes) }?;
        objects().cublas.layouts.get_mut(&layout).ok_or(INVALID_VALUE)?.set(attribute, value)
    }

    fn cublasLtMatrixLayoutGetAttribute(
        layout: usize, attribute: u32, value: *mut c_void, bytes: usize, written: OutPtr<usize>,
    ) {
        let known = *objects().cublas.layouts.get(&layout).ok_or(INVALID_VALUE)?;
        write_attribute(known.get(attribute)?, value, bytes, &written)
    }

    fn cublasLtMatmulPreferenceCreate(preference: OutPtr<usize>) {
        let mut objects = objects();
        let number = objects.next_handle();
        objects.cublas.preferences.insert(number, Preference::default());
        preference.set(number).map_err(|_| INVALID_VALUE)
    }

    fn cublasLtMatmulPreferenceDestroy(preference: usize) {
        objects().cublas.preferences.remove(&preference).map(drop).ok_or(INVALID_VALUE)
    }

    fn cublasLtMatmulPreferenceSetAttribute(
        preference: usize, attribute: u32, value: *const c_void, bytes: usize,
    ) {
        // SAFETY: the caller gives a buffer of this length.
        let value = unsafe { AttributeBytes::read(value, bytes) }?;
        objects().cublas.preferences.get_mut(&preference).ok_or(INVALID_VALUE)?.set(attribute, value)
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: usize,
        descriptor: usize,
        a: usize, b: usize, c: usize, d: usize,
        preference: usize,
        requested: i32,
        results: OutPtr<HeuristicResult>,
        found: OutPtr<i32>,
    ) {
        let plan = plan(handle, descriptor, [a, b, c, d])?;
        let preference = *objects().cublas.preferences.get(&preference).ok_or(INVALID_VALUE)?;
        if requested < 1 || results.raw().is_null() {
            return Err(INVALID_VALUE);
        }
        let algorithms = plan.algorithms(&preference);
        let count = algorithms.len().min(requested.cast_unsigned() as usize);
        for (index, algorithm) in algorithms.into_iter().take(count).enumerate() {
            // SAFETY: the caller has space for as many results as it requests.
            unsafe { results.raw().add(index).write_unaligned(algorithm) };
        }
        found.set(count as i32).map_err(|_| INVALID_VALUE)?;
        if count == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
    }

    fn cublasLtMatmul(
        handle: usize,
        descriptor: usize,
        alpha: InPtr<f32>,
        a: u64, layout_a: usize,
        b: u64, layout_b: usize,
        beta: InPtr<f32>,
        c: u64, layout_c: usize,
        d: u64, layout_d: usize,
        algorithm: InPtr<Algorithm>,
        workspace: u64,
        workspace_bytes: usize,
        stream: usize,
    ) {
        let plan = plan(handle, descriptor, [layout_a, layout_b, layout_c, layout_d])?;
        let matmul = plan.matmul(&Arguments {
            addresses: [a, b, c, d],
            alpha: alpha.get().map_err(|_| INVALID_VALUE)?,
            beta: beta.get().map_err(|_| INVALID_VALUE)?,
            algorithm: algorithm.get().ok(),
            workspace,
            workspace_bytes: workspace_bytes as u64,
        })?;
        enqueue(stream, Operation::Matmul(Box::new(matmul))).map_err(|_| EXECUTION_FAILED)
    }
}

/// Returns the checked product of descriptors.
fn plan(handle: usize, descriptor: usize, layouts: [usize; 4]) -> Result<Plan, u32> {
    let objects = objects();
    let cublas = &objects.cublas;
    if !cublas.handles.contains(&handle) {
        return Err(NOT_INITIALIZED);
    }
    let descriptor = *cublas.descriptors.get(&descriptor).ok_or(INVALID_VALUE)?;
    let [a, b, c, d] = layouts.map(|layout| cublas.layouts.get(&layout).copied().ok_or(INVALID_VALUE));
    Plan::new(descriptor, [a?, b?, c?, d?])
}

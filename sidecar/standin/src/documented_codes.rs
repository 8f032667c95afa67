//! The codes that each function may return. A code that this library made up would let a test pass for a reason that no
//! driver gives, so a call that returns another code ends the process.
//!
//! The source is `cuda.h` of CUDA 12.8, whose comments are the driver API's reference: those of the functions
//! ("Returns"), and those of `CUresult` for codes that any function returns.

use crate::abi::code;

/// Codes of any function, by the comments of `CUresult`: the driver is not started or has no context, an object is in
/// another state, work that was queued before has failed, a stream captures, a host function calls the driver, the
/// system or the driver fails. What this library does not have is not supported.
const ANY: [u32; 19] = [
    code::NOT_INITIALIZED,
    code::INVALID_CONTEXT,
    code::OPERATING_SYSTEM,
    code::ILLEGAL_STATE,
    code::NOT_SUPPORTED,
    code::ILLEGAL_ADDRESS,
    code::MISALIGNED_ADDRESS,
    code::LAUNCH_FAILED,
    code::NOT_PERMITTED,
    code::STREAM_CAPTURE_UNSUPPORTED,
    code::STREAM_CAPTURE_INVALIDATED,
    code::STREAM_CAPTURE_MERGE,
    code::STREAM_CAPTURE_UNMATCHED,
    code::STREAM_CAPTURE_UNJOINED,
    code::STREAM_CAPTURE_ISOLATION,
    code::STREAM_CAPTURE_IMPLICIT,
    code::CAPTURED_EVENT,
    code::STREAM_CAPTURE_WRONG_THREAD,
    code::UNKNOWN,
];

/// More codes of functions, as far as this library has them. The comment of `CUDA_ERROR_NOT_FOUND` names driver functions
/// among what is looked up.
const OF_FUNCTIONS: [(&[u32], &str); 17] = [
    (&[code::INVALID_DEVICE], "cuDevicePrimaryCtxRelease_v2"),
    (
        &[code::INVALID_HANDLE],
        "cuEventDestroy_v2 cuEventSynchronize cuStreamGetCtx cuStreamSynchronize cuStreamWaitEvent",
    ),
    (
        &[code::INVALID_VALUE],
        "cuCtxDestroy_v2 cuCtxGetDevice cuCtxGetStreamPriorityRange cuCtxPushCurrent_v2 cuDeviceGetCount \
         cuDriverGetVersion cuFuncGetParamInfo cuFuncSetCacheConfig cuGetErrorName cuGetErrorString \
         cuGraphAddBatchMemOpNode cuGraphAddEmptyNode cuGraphAddHostNode cuGraphAddKernelNode_v2 \
         cuGraphAddMemsetNode cuGraphBatchMemOpNodeGetParams cuGraphDestroy \
         cuGraphExecBatchMemOpNodeSetParams cuGraphExecDestroy cuGraphExecKernelNodeSetParams_v2 \
         cuGraphGetNodes cuGraphInstantiateWithFlags cuGraphLaunch cuGraphNodeGetDependencies \
         cuGraphNodeGetType cuGraphUpload cuMemAddressFree cuMemExportToShareableHandle cuMemFreeHost \
         cuMemFree_v2 cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetInfo_v2 \
         cuMemHostGetDevicePointer_v2 cuMemImportFromShareableHandle cuMemRelease \
         cuMemRetainAllocationHandle cuMemUnmap cuMemcpy cuMemcpy2D_v2 cuMemcpyDtoD_v2 cuMemcpyDtoH_v2 \
         cuMemcpyHtoD_v2 cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async \
         cuMemsetD8_v2 cuModuleGetLoadingMode cuModuleUnload cuOccupancyMaxActiveBlocksPerMultiprocessor \
         cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuStreamBatchMemOp_v2 cuStreamBeginCapture_v2 \
         cuStreamEndCapture cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v3 cuStreamIsCapturing \
         cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2 cuStreamWaitValue32_v2 \
         cuStreamWaitValue64_v2 cuStreamWriteValue32_v2 cuStreamWriteValue64_v2 \
         cuThreadExchangeStreamCaptureMode",
    ),
    (&[code::INVALID_HANDLE, code::NOT_READY], "cuEventElapsedTime cuEventElapsedTime_v2 cuStreamQuery"),
    (
        &[code::INVALID_VALUE, code::INVALID_DEVICE],
        "cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetName cuDeviceGetPCIBusId \
         cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRetain \
         cuDeviceTotalMem_v2 cuMemSetAccess cuPointerGetAttribute cuPointerGetAttributes",
    ),
    (
        &[code::INVALID_VALUE, code::INVALID_HANDLE],
        "cuEventRecord cuEventRecordWithFlags cuFuncGetAttribute cuFuncIsLoaded cuFuncLoad \
         cuFuncSetAttribute cuGraphCreate cuMemcpy2DAsync_v2 cuMemcpyAsync cuMemcpyDtoDAsync_v2 \
         cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 cuStreamDestroy_v2",
    ),
    (
        &[code::INVALID_VALUE, code::NOT_FOUND],
        "cuFuncGetModule cuGetProcAddress_v2 cuMemGetAddressRange_v2 cuModuleGetFunction",
    ),
    (
        &[code::INVALID_VALUE, code::OUT_OF_MEMORY],
        "cuEventCreate cuMemAddressReserve cuMemAllocHost_v2 cuMemAlloc_v2 cuMemHostAlloc cuStreamCreate \
         cuStreamCreateWithPriority",
    ),
    (&[code::INVALID_VALUE, code::INVALID_HANDLE, code::NOT_READY], "cuEventQuery"),
    (&[code::INVALID_VALUE, code::INVALID_IMAGE, code::INVALID_HANDLE], "cuLaunchHostFunc"),
    (
        &[code::INVALID_VALUE, code::OUT_OF_MEMORY, code::HOST_MEMORY_ALREADY_REGISTERED],
        "cuMemHostRegister_v2",
    ),
    (&[code::INVALID_VALUE, code::OUT_OF_MEMORY, code::HOST_MEMORY_NOT_REGISTERED], "cuMemHostUnregister"),
    (
        &[code::INVALID_VALUE, code::OUT_OF_MEMORY, code::INVALID_DEVICE],
        "cuCtxCreate_v2 cuMemCreate cuMemMap",
    ),
    (
        &[code::INVALID_VALUE, code::OUT_OF_MEMORY, code::INVALID_HANDLE],
        "cuStreamGetFlags cuStreamGetPriority",
    ),
    (&[code::NO_DEVICE, code::INVALID_VALUE, code::INVALID_DEVICE], "cuInit"),
    (
        &[code::INVALID_VALUE, code::INVALID_IMAGE, code::INVALID_HANDLE, code::NOT_FOUND],
        "cuLaunchKernel cuLaunchKernelEx",
    ),
    (
        &[
            code::INVALID_VALUE,
            code::OUT_OF_MEMORY,
            code::NO_BINARY_FOR_GPU,
            code::INVALID_PTX,
            code::UNSUPPORTED_PTX_VERSION,
        ],
        "cuModuleLoadData cuModuleLoadDataEx",
    ),
];

/// Whether the documentation lets the function return this code.
pub fn is_documented(function: &str, code: u32) -> bool {
    let of_function = |(codes, names): &(&[u32], &str)| {
        codes.contains(&code) && names.split(' ').any(|name| name == function)
    };
    code == 0 || ANY.contains(&code) || OF_FUNCTIONS.iter().any(of_function)
}

#[cfg(test)]
mod tests {
    use super::{OF_FUNCTIONS, is_documented};
    use crate::abi::code;

    #[test]
    fn a_code_belongs_to_the_functions_that_document_it() {
        assert!(is_documented("cuMemCreate", code::OUT_OF_MEMORY));
        assert!(!is_documented("cuMemUnmap", code::OUT_OF_MEMORY));
        assert!(is_documented("cuMemUnmap", code::ILLEGAL_ADDRESS), "of a kernel that ran before");
        assert!(is_documented("cuCtxSynchronize", 0));
        assert!(!is_documented("cuCtxSynchronize", code::INVALID_VALUE));
    }

    #[test]
    fn every_function_is_listed_once() {
        let mut names: Vec<_> = OF_FUNCTIONS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

//! Names and descriptions of the driver's result codes.

use crate::abi::code;

const TEXTS: [(u32, &[u8], &[u8]); 32] = [
    (0, b"CUDA_SUCCESS\0", b"no error\0"),
    (code::INVALID_VALUE, b"CUDA_ERROR_INVALID_VALUE\0", b"invalid argument\0"),
    (code::OUT_OF_MEMORY, b"CUDA_ERROR_OUT_OF_MEMORY\0", b"out of memory\0"),
    (code::NOT_INITIALIZED, b"CUDA_ERROR_NOT_INITIALIZED\0", b"initialization error\0"),
    (code::NO_DEVICE, b"CUDA_ERROR_NO_DEVICE\0", b"no CUDA-capable device is detected\0"),
    (code::INVALID_DEVICE, b"CUDA_ERROR_INVALID_DEVICE\0", b"invalid device ordinal\0"),
    (code::INVALID_IMAGE, b"CUDA_ERROR_INVALID_IMAGE\0", b"device kernel image is invalid\0"),
    (code::INVALID_CONTEXT, b"CUDA_ERROR_INVALID_CONTEXT\0", b"invalid device context\0"),
    (
        code::NO_BINARY_FOR_GPU,
        b"CUDA_ERROR_NO_BINARY_FOR_GPU\0",
        b"no kernel image is available for execution on the device\0",
    ),
    (code::INVALID_PTX, b"CUDA_ERROR_INVALID_PTX\0", b"a PTX JIT compilation failed\0"),
    (
        code::UNSUPPORTED_PTX_VERSION,
        b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0",
        b"the provided PTX was compiled with an unsupported toolchain.\0",
    ),
    (code::OPERATING_SYSTEM, b"CUDA_ERROR_OPERATING_SYSTEM\0", b"OS call failed\0"),
    (code::INVALID_HANDLE, b"CUDA_ERROR_INVALID_HANDLE\0", b"invalid resource handle\0"),
    (
        code::ILLEGAL_STATE,
        b"CUDA_ERROR_ILLEGAL_STATE\0",
        b"the operation cannot be performed in the present state\0",
    ),
    (code::NOT_FOUND, b"CUDA_ERROR_NOT_FOUND\0", b"named symbol not found\0"),
    (code::NOT_READY, b"CUDA_ERROR_NOT_READY\0", b"device not ready\0"),
    (code::ILLEGAL_ADDRESS, b"CUDA_ERROR_ILLEGAL_ADDRESS\0", b"an illegal memory access was encountered\0"),
    (
        code::HOST_MEMORY_ALREADY_REGISTERED,
        b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
        b"part or all of the requested memory range is already mapped\0",
    ),
    (
        code::HOST_MEMORY_NOT_REGISTERED,
        b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0",
        b"pointer does not correspond to a registered memory region\0",
    ),
    (code::MISALIGNED_ADDRESS, b"CUDA_ERROR_MISALIGNED_ADDRESS\0", b"misaligned address\0"),
    (code::LAUNCH_FAILED, b"CUDA_ERROR_LAUNCH_FAILED\0", b"unspecified launch failure\0"),
    (code::NOT_PERMITTED, b"CUDA_ERROR_NOT_PERMITTED\0", b"operation not permitted\0"),
    (code::NOT_SUPPORTED, b"CUDA_ERROR_NOT_SUPPORTED\0", b"operation not supported\0"),
    (
        code::STREAM_CAPTURE_UNSUPPORTED,
        b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0",
        b"operation not permitted when stream is capturing\0",
    ),
    (
        code::STREAM_CAPTURE_INVALIDATED,
        b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        b"operation failed due to a previous error during capture\0",
    ),
    (
        code::STREAM_CAPTURE_MERGE,
        b"CUDA_ERROR_STREAM_CAPTURE_MERGE\0",
        b"operation would result in a merge of separate capture sequences\0",
    ),
    (
        code::STREAM_CAPTURE_UNMATCHED,
        b"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0",
        b"capture was not ended in the same stream as it began\0",
    ),
    (
        code::STREAM_CAPTURE_UNJOINED,
        b"CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0",
        b"capturing stream has unjoined work\0",
    ),
    (
        code::STREAM_CAPTURE_ISOLATION,
        b"CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0",
        b"dependency created on uncaptured work in another stream\0",
    ),
    (
        code::STREAM_CAPTURE_IMPLICIT,
        b"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0",
        b"operation would make the legacy stream depend on a capturing blocking stream\0",
    ),
    (
        code::CAPTURED_EVENT,
        b"CUDA_ERROR_CAPTURED_EVENT\0",
        b"operation not permitted on an event last recorded in a capturing stream\0",
    ),
    (
        code::STREAM_CAPTURE_WRONG_THREAD,
        b"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0",
        b"attempt to terminate a thread-local capture sequence from another thread\0",
    ),
];

/// Returns a code's name and description, both ending with a zero byte.
pub fn code_text(code: u32) -> (&'static [u8], &'static [u8]) {
    let known = TEXTS.iter().find(|(known, ..)| *known == code);
    known.map_or((b"CUDA_ERROR_UNKNOWN\0", b"unknown error\0"), |(_, name, words)| (name, words))
}

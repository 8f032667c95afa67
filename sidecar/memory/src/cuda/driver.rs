//! Opens the CUDA driver. No driver function is called before [`Driver::open`]: cudarc panics if the library or the
//! function is missing.

use std::ffi::{CStr, c_char};
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use super::Error;

/// Driver functions that every check needs: a driver without one of them is refused.
pub const REQUIRED: [&str; 47] = [
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFreeHost",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamWaitEvent",
];

/// Driver functions that only some checks need; without them those checks are not answered.
pub const OPTIONAL: [&str; 15] = [
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuGraphAddBatchMemOpNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuModuleGetLoadingMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamWaitValue64_v2",
    "cuStreamWriteValue64_v2",
];

/// Calls a function of the driver by its name and converts its result. It is used inside `unsafe`, where the caller
/// justifies the arguments.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::check(
            stringify!($function),
            ::cudarc::driver::sys::$function($($argument),*),
        )
    };
}
pub(crate) use call;

/// Proof that the driver is open and has every function of [`REQUIRED`].
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    optional: [bool; OPTIONAL.len()],
    version: u32,
    is_stand_in: bool,
}

/// The function by which the stand-in of tests is known: no driver of NVIDIA has it.
const STAND_IN: &str = "sluice_cuda_standin";

impl Driver {
    /// Loads the driver, looks up its functions and initializes it.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::UnloadableDriver`], [`Error::MissingSymbol`], or the error of `cuInit`.
    pub fn open() -> Result<Driver, Error> {
        if !is_present() {
            return Err(absent());
        }
        if let Some(missing) = REQUIRED.iter().find(|name| !is_exported(name)) {
            return Err(Error::MissingSymbol(missing));
        }
        // SAFETY: the only argument is the flags, which must be 0.
        unsafe { call!(cuInit(0)) }?;
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { call!(cuDriverGetVersion(&mut version)) }?;
        Ok(Driver {
            optional: OPTIONAL.map(is_exported),
            version: u32::try_from(version).unwrap_or(0),
            is_stand_in: is_exported(STAND_IN),
        })
    }

    /// Checks that the driver has this function of [`OPTIONAL`]; otherwise returns the error.
    pub fn optional(&self, name: &'static str) -> Result<(), Error> {
        let place = OPTIONAL.iter().position(|known| *known == name);
        let place = place.unwrap_or_else(|| panic!("{name} is in the list of optional functions"));
        if self.optional[place] { Ok(()) } else { Err(Error::Absent(name)) }
    }

    /// Returns the CUDA version of the driver, such as "13.0".
    pub fn cuda_version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Returns the major version of [`Driver::cuda_version`].
    pub fn cuda_major(&self) -> u32 {
        self.version / 1000
    }

    /// Whether the driver is the stand-in over host memory, so that no time says anything about a GPU. The library
    /// itself says so: no option and no variable changes it.
    pub fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: writes one integer.
        unsafe { call!(cuDeviceGetCount(&mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

/// Whether the driver's library can be loaded.
pub fn is_present() -> bool {
    // SAFETY: loads a library by its name, like `dlopen`; its initializers are the driver's own.
    unsafe { sys::is_culib_present() }
}

/// Why the library is not loaded: no folder has it, or the loader's own reason.
fn absent() -> Error {
    // SAFETY: as in `is_present`, which has failed to load it.
    let refused = unsafe { libloading::os::unix::Library::new("libcuda.so.1") }.err();
    match refused.as_ref().and_then(std::error::Error::source).map(ToString::to_string) {
        None => Error::NoDriver,
        // A library that it needs can be missing as well.
        Some(why) if why.starts_with("libcuda.so.1: cannot open shared object file") => Error::NoDriver,
        Some(why) => Error::UnloadableDriver(why),
    }
}

/// Whether the loaded driver exports `name`. Call this only if the library is present.
fn is_exported(name: &str) -> bool {
    // SAFETY: the library is present; the symbol is only looked up, neither called nor read.
    unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.is_ok()
}

/// Converts the result of `call`, with the driver's message if it is an error.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    // SAFETY: the driver writes null or a pointer to a string that exists as long as the library.
    let ask_name = |text| unsafe { sys::cuGetErrorName(result, text) };
    // SAFETY: as above.
    let ask_words = |text| unsafe { sys::cuGetErrorString(result, text) };
    let (name, words) = (driver_text(ask_name), driver_text(ask_words));
    Err(Error::Call { call, code: result as u32, name, words })
}

fn driver_text(ask: impl FnOnce(*mut *const c_char) -> CUresult) -> String {
    let mut text = ptr::null();
    if ask(&mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
        return "unknown".into();
    }
    // SAFETY: the driver's strings are constant and end with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

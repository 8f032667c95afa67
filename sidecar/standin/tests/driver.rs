//! Tests of the driver that the stand-in poses as, and of injected faults.

use std::ffi::CString;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use crate::device::{Device, cu, result_of};
use crate::process::Machine;

fn load(text: &str) -> CUresult {
    let text = CString::new(text).expect("no zero byte");
    let mut module = ptr::null_mut();
    let result = result_of!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    if result == CUresult::CUDA_SUCCESS {
        cu!(cuModuleUnload(module));
    }
    result
}

fn module(version: &str, target: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry nothing()\n{{\n\tret;\n}}\n"
    )
}

fn has(function: &str) -> bool {
    // SAFETY: the library is loaded; the symbol is only looked up.
    unsafe { sys::culib().get::<*const ()>(function.as_bytes()) }.is_ok()
}

/// The address of a function by its name without a suffix, or the status of the driver.
fn address(name: &str) -> Result<usize, u32> {
    let text = CString::new(name).expect("no zero byte");
    let mut place = ptr::null_mut();
    let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let result = result_of!(cuGetProcAddress_v2(text.as_ptr(), &mut place, 13000, 0, &mut status));
    if result == CUresult::CUDA_SUCCESS { Ok(place as usize) } else { Err(status as u32) }
}

/// In the plain library, which has all names, the pose alone hides what is newer.
#[test]
fn a_newer_function_is_not_found_by_name_in_an_older_pose() {
    let name = "driver::a_newer_function_is_not_found_by_name_in_an_older_pose";
    Machine::new().with("SLUICE_STANDIN_DRIVER", "12.0").run(name, || {
        let _device = Device::open();
        assert!(has("cuFuncLoad"));
        assert_eq!(address("cuFuncLoad"), Err(2));
        assert!(address("cuEventElapsedTime").is_ok(), "an older form");
    });
}

#[test]
fn an_older_driver_lacks_functions_and_refuses_newer_ptx() {
    let name = "driver::an_older_driver_lacks_functions_and_refuses_newer_ptx";
    let errors = Machine::new().of_driver("12.0").run_noisy(name, || {
        let _device = Device::open();
        let mut version = 0;
        cu!(cuDriverGetVersion(&mut version));
        assert_eq!(version, 12000);
        assert_eq!((has("cuEventElapsedTime"), has("cuEventElapsedTime_v2")), (true, false));
        assert!(address("cuEventElapsedTime").is_ok() && address("cuMemAlloc").is_ok());
        assert_eq!(address("cuFuncLoad"), Err(1), "the library has no such name");
        assert_eq!(load(&module("8.0", "sm_80")), CUresult::CUDA_SUCCESS);
        assert_eq!(load(&module("8.7", "sm_80")), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
        assert_eq!(load("\u{7f}ELF"), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    });
    if let Some(errors) = errors {
        assert!(errors.contains("its .version 8.7 is newer than 8.0"), "{errors}");
        assert!(errors.contains("it is a cubin"), "{errors}");
    }
}

#[test]
fn a_newer_driver_has_them_and_takes_it() {
    let name = "driver::a_newer_driver_has_them_and_takes_it";
    Machine::new().of_driver("13.0").run(name, || {
        let _device = Device::open();
        assert!(has("cuEventElapsedTime_v2"));
        assert!(address("cuFuncLoad").is_ok());
        assert_eq!(address("cuNothing"), Err(1));
        assert_eq!(load(&module("9.0", "sm_80")), CUresult::CUDA_SUCCESS);
        assert_eq!(load(&module("9.0", "sm_90a")), CUresult::CUDA_SUCCESS);
        assert_eq!(load(&module("9.0", "sm_100")), CUresult::CUDA_ERROR_INVALID_PTX);
    });
}

#[test]
fn a_device_of_another_architecture_refuses_an_a_target() {
    let name = "driver::a_device_of_another_architecture_refuses_an_a_target";
    Machine::new().with("SLUICE_STANDIN_ATTRIBUTES", "75=12,76=0").run(name, || {
        let _device = Device::open();
        assert_eq!(load(&module("8.0", "sm_90a")), CUresult::CUDA_ERROR_INVALID_PTX);
        assert_eq!(load(&module("8.0", "sm_90")), CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn one_call_of_many_fails() {
    let name = "driver::one_call_of_many_fails";
    Machine::new().with("SLUICE_STANDIN_FAULTS", "cuMemAlloc_v2=2@2").run(name, || {
        let _device = Device::open();
        let mut places = [0; 3];
        let results = places.each_mut().map(|place| result_of!(cuMemAlloc_v2(place, 1 << 21)) as u32);
        assert_eq!(results, [0, 2, 0]);
        [places[0], places[2]].into_iter().for_each(|place| cu!(cuMemFree_v2(place)));
    });
}

#[test]
fn every_committed_module_loads_in_the_oldest_driver() {
    let name = "driver::every_committed_module_loads_in_the_oldest_driver";
    Machine::new().with("SLUICE_STANDIN_DRIVER", "12.0").run(name, || {
        let _device = Device::open();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/cuda");
        let files = std::fs::read_dir(folder).expect("the folder is in the repository");
        let files = files.map(|file| file.expect("an entry").path());
        let modules: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "ptx")).collect();
        assert!(!modules.is_empty());
        for path in modules {
            let text = std::fs::read_to_string(&path).expect("a text");
            assert_eq!(load(&text), CUresult::CUDA_SUCCESS, "{}", path.display());
        }
    });
}

//! Tests of functions: their attributes and the limits of launches.

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUlaunchConfig, CUmodule, CUresult,
};

use crate::device::{Buffer, Device, cu, result_of};
use crate::process::Machine;

/// A module with one kernel, unloaded on drop.
pub struct Kernel {
    module: CUmodule,
    pub function: CUfunction,
}

impl Kernel {
    pub fn load(text: &str, name: &str) -> Kernel {
        let (text, name) = (CString::new(text), CString::new(name));
        let (text, name) = (text.expect("no zero byte"), name.expect("no zero byte"));
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        cu!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        cu!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
        Kernel { module, function }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = result_of!(cuModuleUnload(self.module));
    }
}

fn writer() -> Kernel {
    Kernel::load(include_str!("../../probe/cuda/probe.ptx"), "sluice_write")
}

/// Launches one block of `threads` threads with this much dynamic shared memory, which writes `words` words.
fn launch(device: &Device, kernel: &Kernel, threads: u32, shared_bytes: u32, words: &Buffer) -> CUresult {
    let (mut address, mut count, mut value) = (words.address, 4_u64, 5_u64);
    let mut list = [(&raw mut address).cast::<c_void>(), (&raw mut count).cast(), (&raw mut value).cast()];
    result_of!(cuLaunchKernel(
        kernel.function,
        1,
        1,
        1,
        threads,
        1,
        1,
        shared_bytes,
        device.stream,
        list.as_mut_ptr(),
        ptr::null_mut()
    ))
}

#[test]
fn shared_memory_beyond_48_kib_needs_opting_in_and_beyond_227_kib_is_refused() {
    Machine::new().run(
        "function::shared_memory_beyond_48_kib_needs_opting_in_and_beyond_227_kib_is_refused",
        || {
            let (device, kernel, words) = (Device::open(), writer(), Buffer::of(&[0_u64; 4]));
            let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
            assert_eq!(launch(&device, &kernel, 32, 48 << 10, &words), CUresult::CUDA_SUCCESS);
            assert_eq!(launch(&device, &kernel, 32, (48 << 10) + 4, &words), invalid);
            let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cu!(cuFuncSetAttribute(kernel.function, most, 227 << 10));
            assert_eq!(launch(&device, &kernel, 32, 227 << 10, &words), CUresult::CUDA_SUCCESS);
            assert_eq!(result_of!(cuFuncSetAttribute(kernel.function, most, (227 << 10) + 4)), invalid);
            let mut value = 0;
            cu!(cuFuncGetAttribute(&mut value, most, kernel.function));
            assert_eq!(value, 227 << 10);
            device.synchronize();
            assert_eq!(words.read::<u64>(4), [5, 6, 7, 8]);
        },
    );
}

#[test]
fn launches_of_impossible_shapes_and_attributes_are_refused() {
    let name = "function::launches_of_impossible_shapes_and_attributes_are_refused";
    let errors = Machine::new().run_noisy(name, || {
        let (device, kernel, words) = (Device::open(), writer(), Buffer::of(&[0_u64; 4]));
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(launch(&device, &kernel, 1025, 0, &words), invalid);
        assert_eq!(launch(&device, &kernel, 0, 0, &words), invalid);
        let mut attribute = [0_u32; 18];
        let (mut address, mut count, mut value) = (words.address, 4_u64, 5_u64);
        let mut list =
            [(&raw mut address).cast::<c_void>(), (&raw mut count).cast(), (&raw mut value).cast()];
        let mut run = |id: u32, x: u32| {
            (attribute[0], attribute[2], attribute[3], attribute[4]) = (id, x, 1, 1);
            let config = CUlaunchConfig {
                gridDimX: 1,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 32,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: 0,
                hStream: device.stream,
                attrs: attribute.as_mut_ptr().cast(),
                numAttrs: 1,
            };
            result_of!(cuLaunchKernelEx(&config, kernel.function, list.as_mut_ptr(), ptr::null_mut()))
        };
        assert_eq!(run(8, 3), CUresult::CUDA_SUCCESS, "a priority");
        assert_eq!(run(4, 1), CUresult::CUDA_SUCCESS, "clusters of one block");
        assert_eq!(run(4, 2), CUresult::CUDA_ERROR_NOT_SUPPORTED, "clusters of two blocks");
        assert_eq!(run(2, 1), CUresult::CUDA_ERROR_NOT_SUPPORTED, "a cooperative launch");
        device.synchronize();
    });
    if let Some(errors) = errors {
        assert!(errors.contains("its attribute 4 is not supported"), "{errors}");
    }
}

#[test]
fn a_multiprocessor_holds_as_many_blocks_as_its_limits_allow() {
    Machine::new().run("function::a_multiprocessor_holds_as_many_blocks_as_its_limits_allow", || {
        let (_device, kernel) = (Device::open(), writer());
        let blocks = |threads, shared_bytes| {
            let mut blocks = 0;
            cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                kernel.function,
                threads,
                shared_bytes
            ));
            blocks
        };
        // 2048 threads, 32 blocks, and 228 KiB of shared memory, of which each block takes 1 KiB more.
        assert_eq!((blocks(1024, 0), blocks(32, 0), blocks(32, 48 << 10)), (2, 32, 4));
        assert_eq!(blocks(32, 64 << 10), 0, "without opting in");
    });
}

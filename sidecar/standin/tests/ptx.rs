//! Tests of modules and kernels: what is refused when a module is loaded, and how a kernel ends that does wrong.

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys::CUresult;

use crate::device::{Buffer, Device, result_of};
use crate::function::Kernel;
use crate::process::Machine;

/// Each thread writes its number to shared memory and reads that of its neighbour, without a barrier between: a race.
/// It writes what it read, times the multiplier, to its place in `words`.
const RACE: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry race(.param .u64 words, .param .u16 multiplier)
{
	.reg .b16 %h<2>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;
	.shared .align 4 .b8 exchanged[256];
	ld.param.u64 %rd1, [words];
	ld.param.u16 %h1, [multiplier];
	cvt.u32.u16 %r1, %h1;
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, exchanged;
	mad.lo.u32 %r4, %r2, 4, %r3;
	st.shared.u32 [%r4], %r2;
	xor.b32 %r5, %r2, 1;
	mad.lo.u32 %r6, %r5, 4, %r3;
	ld.shared.u32 %r7, [%r6];
	mul.lo.u32 %r7, %r7, %r1;
	mad.wide.u32 %rd2, %r2, 4, %rd1;
	st.global.u32 [%rd2], %r7;
	ret;
}";

/// Launches blocks of `threads` threads over the words at an address, with a multiplier of 16 bits.
fn run(device: &Device, kernel: &Kernel, [blocks, threads]: [u32; 2], words: u64) -> CUresult {
    let (mut words, mut multiplier) = (words, 3_u16);
    let mut list = [(&raw mut words).cast::<c_void>(), (&raw mut multiplier).cast()];
    let list = list.as_mut_ptr();
    let launched = result_of!(cuLaunchKernel(
        kernel.function,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        device.stream,
        list,
        ptr::null_mut()
    ));
    if launched == CUresult::CUDA_SUCCESS { device.outcome() } else { launched }
}

#[test]
fn a_module_with_an_unknown_instruction_is_refused_with_its_line() {
    let name = "ptx::a_module_with_an_unknown_instruction_is_refused_with_its_line";
    let errors = Machine::new().run_noisy(name, || {
        let _device = Device::open();
        let text = CString::new(RACE.replace("xor.b32", "xyz.b32")).expect("no zero byte");
        let mut module = ptr::null_mut();
        let refused = result_of!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_PTX);
    });
    if let Some(errors) = errors {
        let line = RACE.lines().position(|line| line.contains("xor.b32")).expect("it is there") + 1;
        assert!(errors.contains(&format!("PTX line {line}")), "{errors}");
    }
}

#[test]
fn a_race_is_found_in_checked_mode() {
    let name = "ptx::a_race_is_found_in_checked_mode";
    let machine = Machine::new().with("SLUICE_STANDIN_CHECKED", "1");
    let errors = machine.run_to_fault(name, || {
        let (device, words) = (Device::open(), Buffer::of(&[0_u32; 64]));
        assert_eq!(
            run(&device, &Kernel::load(RACE, "race"), [1, 64], words.address),
            CUresult::CUDA_ERROR_LAUNCH_FAILED
        );
    });
    if let Some(errors) = errors {
        assert!(errors.contains("stand-in: race: "), "{errors}");
    }
}

#[test]
fn without_checks_the_race_is_not_found() {
    Machine::new().run("ptx::without_checks_the_race_is_not_found", || {
        let (device, words) = (Device::open(), Buffer::of(&[0_u32; 64]));
        let kernel = Kernel::load(RACE, "race");
        assert_eq!(run(&device, &kernel, [1, 64], words.address), CUresult::CUDA_SUCCESS);
        assert_eq!(words.read::<u32>(2), [3, 0]);
    });
}

#[test]
fn a_kernel_beyond_the_bytes_of_an_allocation_faults() {
    let name = "ptx::a_kernel_beyond_the_bytes_of_an_allocation_faults";
    let errors = Machine::new().run_to_fault(name, || {
        // The memory of an allocation is 2 MiB, of which 252 bytes were asked for.
        let (device, words) = (Device::open(), Buffer::of(&[0_u32; 63]));
        assert_eq!(
            run(&device, &Kernel::load(RACE, "race"), [1, 64], words.address),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        );
    });
    if let Some(errors) = errors {
        assert!(errors.contains("thread [63, 0, 0]"), "{errors}");
    }
}

#[test]
fn a_kernel_with_addresses_that_are_not_aligned_faults() {
    let _ = Machine::new().run_to_fault("ptx::a_kernel_with_addresses_that_are_not_aligned_faults", || {
        let (device, words) = (Device::open(), Buffer::of(&[0_u32; 65]));
        let outcome = run(&device, &Kernel::load(RACE, "race"), [1, 64], words.address + 2);
        assert_eq!(outcome, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
    });
}

#[test]
fn a_limited_kernel_runs_its_first_blocks_only() {
    let machine = Machine::new().with("SLUICE_STANDIN_BLOCKS", "race=0,other=3");
    machine.run("ptx::a_limited_kernel_runs_its_first_blocks_only", || {
        // Two billion blocks would take hours. One is the least.
        let (device, words) = (Device::open(), Buffer::of(&[0_u32; 32]));
        let kernel = Kernel::load(RACE, "race");
        assert_eq!(run(&device, &kernel, [2_000_000_000, 32], words.address), CUresult::CUDA_SUCCESS);
        assert_eq!(words.read::<u32>(2), [3, 0]);
    });
}

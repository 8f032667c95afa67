//! Tests of device memory: copies, what the driver knows of addresses and handles, and processes that are killed.

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::ptr;

use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocationType, CUmemorytype, CUpointer_attribute as Attribute, CUresult,
};

use crate::device::{Buffer, Device, cu, result_of};
use crate::process::{Machine, is_body};

/// Bytes of a chunk.
pub const CHUNK: usize = 2 << 20;

/// The properties of a chunk on the device, exported as a descriptor or not.
pub fn properties(is_shared: bool) -> CUmemAllocationProp {
    // SAFETY: a structure of numbers.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    if is_shared {
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties
}

/// Makes mapped chunks accessible.
pub fn allow(address: u64, bytes: usize) {
    // SAFETY: a structure of numbers.
    let mut access: CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location = properties(false).location;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    cu!(cuMemSetAccess(address, bytes, &access, 1));
}

fn attribute<T: Default>(kind: Attribute, address: u64) -> Result<T, CUresult> {
    let mut value = T::default();
    match result_of!(cuPointerGetAttribute((&raw mut value).cast::<c_void>(), kind, address)) {
        CUresult::CUDA_SUCCESS => Ok(value),
        error => Err(error),
    }
}

#[test]
fn a_chunk_is_known_by_its_address_and_by_its_handle() {
    Machine::new().run("memory::a_chunk_is_known_by_its_address_and_by_its_handle", || {
        let _device = Device::open();
        let (mut handle, mut again, mut private, mut range) = (0, 0, 0, 0);
        cu!(cuMemCreate(&mut handle, CHUNK, &properties(true), 0));
        cu!(cuMemCreate(&mut private, CHUNK, &properties(false), 0));
        cu!(cuMemAddressReserve(&mut range, 2 * CHUNK, 0, 0, 0));
        cu!(cuMemMap(range + CHUNK as u64, CHUNK, 0, handle, 0));
        // The mapping keeps the memory, and gives a handle for it.
        cu!(cuMemRelease(handle));
        cu!(cuMemRetainAllocationHandle(&mut again, (range + CHUNK as u64 + 5) as *mut c_void));
        let mut found = properties(false);
        cu!(cuMemGetAllocationPropertiesFromHandle(&mut found, again));
        assert_eq!(found.requestedHandleTypes, properties(true).requestedHandleTypes);
        let mut descriptor = -1;
        let place = (&raw mut descriptor).cast::<c_void>();
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let refused = result_of!(cuMemExportToShareableHandle(place, private, kind, 0));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE, "it was not created for descriptors");

        assert_eq!(attribute::<u32>(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range), Ok(2));
        assert_eq!(attribute::<u64>(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, range + 9), Ok(range));
        assert_eq!(attribute::<u64>(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, range), Ok(2 * CHUNK as u64));
        let host = (&raw const range) as u64;
        let unknown = attribute::<u32>(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host);
        assert_eq!(unknown, Err(CUresult::CUDA_ERROR_INVALID_VALUE), "ordinary host memory");

        cu!(cuMemUnmap(range + CHUNK as u64, CHUNK));
        cu!(cuMemRelease(again));
        cu!(cuMemRelease(private));
        cu!(cuMemAddressFree(range, 2 * CHUNK));
    });
}

#[test]
fn copies_and_fills_of_every_width_arrive() {
    Machine::new().run("memory::copies_and_fills_of_every_width_arrive", || {
        let device = Device::open();
        let memory = Buffer::of(&[0_u8; 24]);
        cu!(cuMemsetD8Async(memory.address + 1, 1, 3, device.stream));
        cu!(cuMemsetD16Async(memory.address + 4, 0x0302, 2, device.stream));
        cu!(cuMemsetD32Async(memory.address + 8, 0x0706_0504, 1, device.stream));
        let misaligned = result_of!(cuMemsetD32Async(memory.address + 2, 0, 1, device.stream));
        assert_eq!(misaligned, CUresult::CUDA_ERROR_INVALID_VALUE);
        device.synchronize();
        assert_eq!(memory.read::<u8>(13), [0, 1, 1, 1, 2, 3, 2, 3, 4, 5, 6, 7, 0]);

        // Two rows of three bytes, from rows of five bytes on the host to rows of eight on the device.
        let rows = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 1,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: rows.as_ptr().cast(),
            srcDevice: 0,
            srcArray: ptr::null_mut(),
            srcPitch: 5,
            dstXInBytes: 0,
            dstY: 1,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: memory.address,
            dstArray: ptr::null_mut(),
            dstPitch: 8,
            WidthInBytes: 3,
            Height: 2,
        };
        cu!(cuMemcpy2DAsync_v2(&copy, device.stream));
        device.synchronize();
        let found = memory.read::<u8>(24);
        assert_eq!((&found[8..11], &found[16..19]), (&[2, 3, 4][..], &[7, 8, 9][..]));
    });
}

#[test]
fn ordinary_host_memory_may_be_used_again_after_an_asynchronous_copy() {
    Machine::new().run("memory::ordinary_host_memory_may_be_used_again_after_an_asynchronous_copy", || {
        let (device, memory) = (Device::open(), Buffer::new(64));
        let mut values = [3_u32; 16];
        // The stream waits for a word, so that the copy cannot have run.
        let word = Buffer::of(&[0_u64]);
        cu!(cuStreamWaitValue64_v2(device.stream, word.address, 1, 0));
        cu!(cuMemcpyHtoDAsync_v2(memory.address, values.as_ptr().cast(), 64, device.stream));
        values.fill(9);
        cu!(cuMemsetD32_v2(word.address, 1, 1));
        device.synchronize();
        assert_eq!(memory.read::<u32>(16), [3; 16]);
        cu!(cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), memory.address, 64, device.stream));
        assert_eq!(values, [3; 16], "to ordinary host memory it has arrived");
    });
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

/// The process that is killed: it holds ten chunks, says so, and waits for an end that does not come.
fn hold_and_wait() {
    let _device = Device::open();
    for _ in 0..10 {
        let (mut handle, mut range) = (0, 0);
        cu!(cuMemCreate(&mut handle, CHUNK, &properties(true), 0));
        cu!(cuMemAddressReserve(&mut range, CHUNK, 0, 0, 0));
        cu!(cuMemMap(range, CHUNK, 0, handle, 0));
        allow(range, CHUNK);
    }
    println!("holds");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn the_memory_of_a_killed_process_returns() {
    let name = "memory::the_memory_of_a_killed_process_returns";
    if std::env::var_os("SLUICE_STANDIN_TEST_VICTIM").is_some() && is_body(name) {
        return hold_and_wait();
    }
    Machine::new().run(name, || {
        let _device = Device::open();
        let before = free_bytes();
        let mut command = std::process::Command::new(std::env::current_exe().expect("this test is a file"));
        command.args(["--exact", name, "--nocapture"]).env("SLUICE_STANDIN_TEST_VICTIM", "1");
        let mut victim = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(victim.stdout.take().expect("it is piped")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("holds")), "it holds memory");
        // Its context takes memory too.
        assert!(before - free_bytes() >= 10 * CHUNK);
        victim.kill().expect("it runs");
        victim.wait().expect("it is ours");
        assert_eq!(free_bytes(), before);
    });
}

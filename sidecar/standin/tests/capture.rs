//! Tests of captures: what becomes a node, what it depends on, and what is refused.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{
    self, CUDA_BATCH_MEM_OP_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUresult,
    CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::device::{Buffer, Device, cu, result_of};
use crate::process::Machine;

/// A page of host memory that the device may use, with two words.
struct Page {
    words: Box<[AtomicU64; 512]>,
}

impl Page {
    fn new() -> Page {
        let words = Box::new([const { AtomicU64::new(0) }; 512]);
        cu!(cuMemHostRegister_v2(words.as_ptr().cast_mut().cast(), size_of_val(&*words), 2));
        Page { words }
    }

    fn address(&self, index: usize) -> u64 {
        let mut address = 0;
        let place = ptr::from_ref(&self.words[index]).cast_mut().cast::<c_void>();
        cu!(cuMemHostGetDevicePointer_v2(&mut address, place, 0));
        address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = result_of!(cuMemHostUnregister(self.words.as_ptr().cast_mut().cast()));
    }
}

fn begin(stream: CUstream, mode: CUstreamCaptureMode) {
    cu!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = ptr::null_mut();
    match result_of!(cuStreamEndCapture(stream, &mut graph)) {
        CUresult::CUDA_SUCCESS => Ok(graph),
        error => {
            assert!(graph.is_null(), "a failed capture has no graph");
            Err(error)
        }
    }
}

/// An instantiated graph; the graph itself is destroyed.
fn instantiated(graph: CUgraph) -> CUgraphExec {
    let mut ready = ptr::null_mut();
    cu!(cuGraphInstantiateWithFlags(&mut ready, graph, 0));
    cu!(cuGraphDestroy(graph));
    ready
}

fn status(stream: CUstream) -> (CUstreamCaptureStatus, CUgraph, Vec<CUgraphNode>) {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut nodes, mut count) = (0, ptr::null_mut(), ptr::null(), 0);
    cu!(cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count));
    if nodes.is_null() {
        return (status, graph, Vec::new());
    }
    // SAFETY: the driver's list has as many nodes as it says, until the next call.
    let nodes = unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec();
    (status, graph, nodes)
}

fn kinds(graph: CUgraph) -> Vec<CUgraphNodeType> {
    let mut count = 0;
    cu!(cuGraphGetNodes(graph, ptr::null_mut(), &mut count));
    let mut nodes = vec![ptr::null_mut(); count];
    cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    let kind = |node: &CUgraphNode| {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        cu!(cuGraphNodeGetType(*node, &mut kind));
        kind
    };
    nodes.iter().map(kind).collect()
}

/// Adds one to the word that its argument points to.
extern "C" fn count(word: *mut c_void) {
    // SAFETY: the tests pass a word that lives longer than the stream.
    unsafe { &*word.cast::<AtomicU64>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn work_of_every_kind_is_captured_and_runs_at_each_launch() {
    Machine::new().run("capture::work_of_every_kind_is_captured_and_runs_at_each_launch", || {
        let (device, page, memory) = (Device::open(), Page::new(), Buffer::of(&[0_u32; 8]));
        let calls = AtomicU64::new(0);
        begin(device.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        cu!(cuStreamWaitValue64_v2(device.stream, page.address(0), 1, 0));
        cu!(cuMemsetD32Async(memory.address, 7, 4, device.stream));
        cu!(cuMemcpyDtoDAsync_v2(memory.address + 16, memory.address, 16, device.stream));
        let place = (&raw const calls).cast_mut().cast::<c_void>();
        cu!(cuLaunchHostFunc(device.stream, Some(count), place));
        cu!(cuStreamWriteValue32_v2(device.stream, page.address(1), 5, 0));
        let graph = end(device.stream).expect("a capture");
        assert_eq!(kinds(graph).into_iter().map(|kind| kind as u32).collect::<Vec<_>>(), [12, 2, 1, 3, 12]);
        let ready = instantiated(graph);
        assert_eq!((calls.load(Ordering::SeqCst), memory.read::<u32>(8)), (0, vec![0; 8]), "nothing has run");
        for round in 1..=2 {
            page.words[0].store(0, Ordering::SeqCst);
            page.words[1].store(0, Ordering::SeqCst);
            cu!(cuGraphLaunch(ready, device.stream));
            assert_eq!(result_of!(cuStreamQuery(device.stream)), CUresult::CUDA_ERROR_NOT_READY, "it waits");
            page.words[0].store(1, Ordering::SeqCst);
            device.synchronize();
            assert_eq!((calls.load(Ordering::SeqCst), page.words[1].load(Ordering::SeqCst)), (round, 5));
            assert_eq!(memory.read::<u32>(8), [7; 8]);
        }
        cu!(cuGraphExecDestroy(ready));
    });
}

#[test]
fn a_node_that_is_added_by_hand_comes_before_later_work() {
    Machine::new().run("capture::a_node_that_is_added_by_hand_comes_before_later_work", || {
        let (device, page) = (Device::open(), Page::new());
        let mut context = ptr::null_mut();
        cu!(cuCtxGetCurrent(&mut context));
        begin(device.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        cu!(cuStreamWriteValue64_v2(device.stream, page.address(1), 1, 0));
        let (active, graph, before) = status(device.stream);
        assert_eq!((active as u32, before.len()), (1, 1));
        // SAFETY: a structure of numbers.
        let mut wait: CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
        wait.waitValue.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64;
        wait.waitValue.address = page.address(0);
        wait.waitValue.__bindgen_anon_1.value64 = 3;
        let parameters =
            CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx: context, count: 1, paramArray: &mut wait, flags: 0 };
        let mut node = ptr::null_mut();
        cu!(cuGraphAddBatchMemOpNode(&mut node, graph, before.as_ptr(), before.len(), &parameters));
        cu!(cuStreamUpdateCaptureDependencies(device.stream, &mut node, 1, 1));
        cu!(cuStreamWriteValue64_v2(device.stream, page.address(2), 1, 0));
        let (_, _, last) = status(device.stream);
        let (mut found, mut count) = (ptr::null_mut(), 1);
        cu!(cuGraphNodeGetDependencies(last[0], &mut found, &mut count));
        assert_eq!((found, count), (node, 1), "the write comes after the wait");
        let ready = instantiated(end(device.stream).expect("a capture"));
        cu!(cuGraphLaunch(ready, device.stream));
        while page.words[1].load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(page.words[2].load(Ordering::SeqCst), 0, "it waits");
        page.words[0].store(3, Ordering::SeqCst);
        device.synchronize();
        assert_eq!(page.words[2].load(Ordering::SeqCst), 1);
        cu!(cuGraphExecDestroy(ready));
    });
}

#[test]
fn a_stream_joins_by_an_event_and_must_return() {
    Machine::new().run("capture::a_stream_joins_by_an_event_and_must_return", || {
        let (device, memory) = (Device::open(), Buffer::of(&[0_u32; 4]));
        let (mut other, mut fork, mut join) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        cu!(cuStreamCreate(&mut other, 1));
        cu!(cuEventCreate(&mut fork, 2));
        cu!(cuEventCreate(&mut join, 2));
        for returns in [true, false] {
            begin(device.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
            cu!(cuEventRecord(fork, device.stream));
            cu!(cuStreamWaitEvent(other, fork, 0));
            cu!(cuMemsetD32Async(memory.address, 9, 4, other));
            if returns {
                cu!(cuEventRecord(join, other));
                cu!(cuStreamWaitEvent(device.stream, join, 0));
            }
            assert_eq!(result_of!(cuEventQuery(fork)), CUresult::CUDA_ERROR_CAPTURED_EVENT);
            match end(device.stream) {
                Ok(graph) => {
                    assert!(returns);
                    assert_eq!(kinds(graph).len(), 1);
                    cu!(cuGraphDestroy(graph));
                }
                Err(error) => {
                    assert_eq!((error as u32, returns), (904, false), "the other stream has not returned")
                }
            }
        }
        [fork, join].into_iter().for_each(|event| cu!(cuEventDestroy_v2(event)));
        cu!(cuStreamDestroy_v2(other));
    });
}

#[test]
fn what_a_capture_forbids_is_refused_and_ends_it() {
    Machine::new().run("capture::what_a_capture_forbids_is_refused_and_ends_it", || {
        let device = Device::open();
        let (mut other, mut event) = (ptr::null_mut(), ptr::null_mut());
        cu!(cuStreamCreate(&mut other, 1));
        cu!(cuEventCreate(&mut event, 0));
        cu!(cuEventRecord(event, other));
        let stream = device.stream;
        let mut address = 0;
        let forbidden: [(&str, u32, &mut dyn FnMut() -> CUresult); 5] = [
            ("synchronize", 900, &mut || result_of!(cuStreamSynchronize(stream))),
            ("query", 900, &mut || result_of!(cuStreamQuery(stream))),
            ("synchronize all", 900, &mut || result_of!(cuCtxSynchronize())),
            ("allocate", 900, &mut || result_of!(cuMemAlloc_v2(&mut address, 1 << 21))),
            ("wait for uncaptured work", 905, &mut || result_of!(cuStreamWaitEvent(stream, event, 0))),
        ];
        for (what, code, call) in forbidden {
            begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
            assert_eq!(call() as u32, code, "{what}");
            assert_eq!(status(stream).0 as u32, 2, "{what}");
            assert_eq!(result_of!(cuStreamWriteValue64_v2(stream, 8, 1, 0)) as u32, 901, "{what}");
            assert_eq!(end(stream).err().map(|error| error as u32), Some(901), "{what}");
        }
        // In relaxed mode a call that allocates is allowed.
        begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        cu!(cuMemAlloc_v2(&mut address, 1 << 21));
        cu!(cuMemFree_v2(address));
        cu!(cuGraphDestroy(end(stream).expect("a capture")));
        assert_eq!(end(stream).err().map(|error| error as u32), Some(401), "nothing is captured");
        // The legacy stream cannot be captured.
        let legacy = result_of!(cuStreamBeginCapture_v2(
            ptr::null_mut(),
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
        ));
        assert_eq!(legacy as u32, 900);
        cu!(cuEventDestroy_v2(event));
        cu!(cuStreamDestroy_v2(other));
    });
}

#[test]
fn a_capture_that_never_ends_is_a_leak_of_its_graph_until_its_stream_is_destroyed() {
    let name = "capture::a_capture_that_never_ends_is_a_leak_of_its_graph_until_its_stream_is_destroyed";
    Machine::new().run(name, || {
        let device = Device::open();
        begin(device.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        cu!(cuStreamWriteValue64_v2(device.stream, 8, 1, 0));
    });
}

/// Asks the driver for the device's count, and keeps the answer.
extern "C" fn ask(answer: *mut c_void) {
    let mut count = 0;
    let code = result_of!(cuDeviceGetCount(&mut count)) as u64;
    // SAFETY: as for `count`.
    unsafe { &*answer.cast::<AtomicU64>() }.store(code, Ordering::SeqCst);
}

#[test]
fn a_host_function_runs_in_order_and_must_not_call_the_driver() {
    Machine::new().run("capture::a_host_function_runs_in_order_and_must_not_call_the_driver", || {
        let (device, page, answer) = (Device::open(), Page::new(), AtomicU64::new(0));
        cu!(cuStreamWaitValue32_v2(device.stream, page.address(0), 1, 1));
        cu!(cuLaunchHostFunc(device.stream, Some(ask), (&raw const answer).cast_mut().cast()));
        assert_eq!(answer.load(Ordering::SeqCst), 0);
        page.words[0].store(1, Ordering::SeqCst);
        device.synchronize();
        assert_eq!(answer.load(Ordering::SeqCst), 800);
    });
}

#[test]
fn words_that_are_not_aligned_or_waits_that_are_unknown_are_refused() {
    Machine::new().run("capture::words_that_are_not_aligned_or_waits_that_are_unknown_are_refused", || {
        let (device, page) = (Device::open(), Page::new());
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(result_of!(cuStreamWaitValue64_v2(device.stream, page.address(0) + 4, 0, 0)), invalid);
        assert_eq!(result_of!(cuStreamWaitValue32_v2(device.stream, page.address(0) + 2, 0, 0)), invalid);
        assert_eq!(result_of!(cuStreamWaitValue64_v2(device.stream, page.address(0), 0, 4)), invalid);
        let flush = result_of!(cuStreamWaitValue64_v2(device.stream, page.address(0), 0, 1 << 30));
        assert_eq!(flush, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    });
}

//! Graphs: work that is built once and launched as a whole. Here all graphs are chains.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{
    self, CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as WaitWord,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteWord,
    CUstreamBatchMemOpType, CUstreamCaptureMode, CUstreamWaitValue_flags,
};

use super::Error;
use super::driver::call;
use super::{Address, Context, KernelLaunch, Stream};

/// Optional driver functions that this module needs.
const REQUIRED: [&str; 8] = [
    "cuGraphAddBatchMemOpNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
];

/// Optional driver functions that a captured graph needs.
const CAPTURE: [&str; 6] = [
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

/// An operation of a node on one word of memory.
#[derive(Clone, Copy, Debug)]
pub enum MemOp {
    /// Waits until the word is at least the value (as a circular comparison of 64 bits).
    AtLeast(Address, u64),
    /// Writes the word.
    Write(Address, u64),
}

/// A graph under construction: every node waits for the previous one.
#[derive(Debug)]
pub struct GraphBuilder {
    raw: sys::CUgraph,
    last: Option<sys::CUgraphNode>,
    context: Context,
}

/// A node of a [`GraphBuilder`], which can be changed in the [`ExecGraph`] made from it.
#[derive(Clone, Copy, Debug)]
pub struct GraphNode(sys::CUgraphNode);

/// A graph that can be launched.
#[derive(Debug)]
pub struct ExecGraph {
    raw: sys::CUgraphExec,
    // Kept because the nodes belong to the chain.
    chain: GraphBuilder,
}

impl GraphBuilder {
    /// Creates a graph without nodes.
    ///
    /// # Errors
    /// [`Error::Absent`] if the driver is older than such graphs.
    pub fn new(context: &Context) -> Result<GraphBuilder, Error> {
        let driver = context.device().driver();
        REQUIRED.iter().try_for_each(|name| driver.optional(name))?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(cuGraphCreate(&mut raw, 0)) }?;
        Ok(GraphBuilder { raw, last: None, context: context.clone() })
    }

    /// Whether the driver can capture graphs.
    ///
    /// # Errors
    /// [`Error::Absent`] if it is older than that.
    pub fn can_capture(context: &Context) -> Result<(), Error> {
        let driver = context.device().driver();
        CAPTURE.iter().try_for_each(|name| driver.optional(name))
    }

    /// Captures the work that `work` queues on the stream into a graph; the work does not run.
    pub fn capture<E: From<Error>>(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<GraphBuilder, E> {
        GraphBuilder::can_capture(stream.context())?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the caller's `Stream` owns the stream, which exists during the call.
        unsafe { call!(cuStreamBeginCapture_v2(stream.raw(), mode)) }?;
        let done = work(stream);
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer. The capture must end even if `work` failed.
        let ended = unsafe { call!(cuStreamEndCapture(stream.raw(), &mut raw)) };
        // A failed capture may still leave a graph, which this value destroys.
        let chain =
            (!raw.is_null()).then(|| GraphBuilder { raw, last: None, context: stream.context().clone() });
        done.and(ended.map_err(E::from))?;
        Ok(chain.expect("a capture that succeeds makes a graph"))
    }

    /// Adds a node with these operations, in order.
    pub fn words(&mut self, words: &[MemOp]) -> Result<GraphNode, Error> {
        let mut operations: Vec<_> = words.iter().map(|word| word.operation()).collect();
        let parameters = batch(&self.context, &mut operations);
        let (before, count) = self.before();
        let mut node = ptr::null_mut();
        // SAFETY: writes one pointer; reads the parameters, their list, which the driver copies, and at most one node.
        unsafe { call!(cuGraphAddBatchMemOpNode(&mut node, self.raw, before, count, &parameters)) }?;
        self.last = Some(node);
        Ok(GraphNode(node))
    }

    /// Adds a kernel.
    pub fn kernel(&mut self, launch: &KernelLaunch<'_>) -> Result<GraphNode, Error> {
        let mut values: Vec<u64> = launch.arguments.iter().map(|argument| argument.bits()).collect();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let parameters = kernel(launch, &mut places);
        let (before, count) = self.before();
        let mut node = ptr::null_mut();
        // SAFETY: as in `words`; a `Launch` has the arguments of its kernel, which the driver copies.
        unsafe { call!(cuGraphAddKernelNode_v2(&mut node, self.raw, before, count, &parameters)) }?;
        self.last = Some(node);
        Ok(GraphNode(node))
    }

    /// Instantiates the graph for launches.
    pub fn instantiate(self) -> Result<ExecGraph, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(cuGraphInstantiateWithFlags(&mut raw, self.raw, 0)) }?;
        Ok(ExecGraph { raw, chain: self })
    }

    /// Returns the node that the next one waits for, in the driver's form.
    fn before(&self) -> (*const sys::CUgraphNode, usize) {
        self.last.as_ref().map_or((ptr::null(), 0), |node| (ptr::from_ref(node), 1))
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph. After a device fault every call fails.
        let _ = unsafe { call!(cuGraphDestroy(self.raw)) };
    }
}

impl ExecGraph {
    /// Changes a node's operations from the next launch on.
    pub fn set_node(&self, node: GraphNode, words: &[MemOp]) -> Result<(), Error> {
        let mut operations: Vec<_> = words.iter().map(|word| word.operation()).collect();
        let parameters = batch(&self.chain.context, &mut operations);
        // SAFETY: the node belongs to the chain, which exists; the driver copies the parameters and their list.
        unsafe { call!(cuGraphExecBatchMemOpNodeSetParams(self.raw, node.0, &parameters)) }
    }

    /// Queues the graph on the stream.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: graph and stream exist; the driver keeps the resources of a running launch.
        unsafe { call!(cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl Drop for ExecGraph {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph. After a device fault every call fails.
        let _ = unsafe { call!(cuGraphExecDestroy(self.raw)) };
    }
}

impl MemOp {
    fn operation(self) -> CUstreamBatchMemOpParams {
        match self {
            MemOp::AtLeast(address, value) => CUstreamBatchMemOpParams {
                waitValue: WaitParams {
                    operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64,
                    address,
                    __bindgen_anon_1: WaitWord { value64: value },
                    flags: CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
                    alias: 0,
                },
            },
            MemOp::Write(address, value) => CUstreamBatchMemOpParams {
                writeValue: WriteParams {
                    operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                    address,
                    __bindgen_anon_1: WriteWord { value64: value },
                    flags: 0,
                    alias: 0,
                },
            },
        }
    }
}

fn batch(context: &Context, operations: &mut [CUstreamBatchMemOpParams]) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: context.raw(),
        count: u32::try_from(operations.len()).expect("a node has a few operations"),
        paramArray: operations.as_mut_ptr(),
        flags: 0,
    }
}

fn kernel(launch: &KernelLaunch<'_>, places: &mut [*mut c_void]) -> CUDA_KERNEL_NODE_PARAMS {
    let ([x, y, z], [a, b, c]) = (launch.grid.blocks, launch.grid.threads);
    CUDA_KERNEL_NODE_PARAMS {
        func: launch.function.raw(),
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: a,
        blockDimY: b,
        blockDimZ: c,
        sharedMemBytes: 0,
        kernelParams: places.as_mut_ptr(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

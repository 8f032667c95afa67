//! Functions: attributes, occupancy and launches.

use std::ffi::c_void;

use crate::abi::{InPtr, LaunchConfig, OutPtr, code};
use crate::call_guard::calls;
use crate::current_context::current;
use crate::enqueue::enqueue;
use crate::function::Function;
use crate::kernels::Launch;
use crate::objects::objects;
use crate::operation::Operation;

/// Attributes of launches that change only when work runs: accesses to the cache, synchronization, programmatic order
/// of kernels, priority, domains of memory. Here each kernel runs after the one before.
const WITHOUT_EFFECT: [u32; 7] = [0, 1, 3, 6, 8, 9, 10];
/// The attributes of a cooperative launch and of the size of clusters, with the values that ask for nothing.
const ORDINARY: [(u32, &[u32]); 2] = [(2, &[0]), (4, &[1, 1, 1])];

calls! {
    Context fn cuFuncGetAttribute(value: OutPtr<i32>, attribute: u32, function: usize) {
        value.set(find(function)?.attribute(attribute)?)
    }

    Context fn cuFuncSetAttribute(function: usize, attribute: u32, value: i32) {
        let mut objects = objects();
        objects.functions.get_mut(&function).ok_or(code::INVALID_HANDLE)?.set_attribute(attribute, value)
    }

    // A preference for the division of memory between shared memory and cache, which is not here.
    Context fn cuFuncSetCacheConfig(function: usize, preference: u32) {
        find(function)?;
        if preference > 3 { Err(code::INVALID_VALUE) } else { Ok(()) }
    }

    Context fn cuFuncGetModule(module: OutPtr<usize>, function: usize) {
        module.set(find(function)?.module)
    }

    Context fn cuFuncGetParamInfo(function: usize, index: usize, offset: OutPtr<usize>, bytes: OutPtr<usize>) {
        let (at, length) = find(function)?.kernel.parameter(index).ok_or(code::INVALID_VALUE)?;
        offset.set(at)?;
        // The length may not be wanted.
        let _ = bytes.set(length);
        Ok(())
    }

    Context fn cuFuncLoad(function: usize) {
        loaded(function).map(drop)
    }

    Context fn cuFuncIsLoaded(state: OutPtr<u32>, function: usize) {
        state.set(find(function)?.loaded.into())
    }

    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: OutPtr<i32>, function: usize, threads: i32, shared_bytes: usize,
    ) {
        blocks.set(find(function)?.occupancy(threads, shared_bytes)?)
    }

    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: OutPtr<i32>, function: usize, threads: i32, shared_bytes: usize, _flags: u32,
    ) {
        blocks.set(find(function)?.occupancy(threads, shared_bytes)?)
    }

    Context fn cuLaunchKernel(
        function: usize,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32,
        stream: usize,
        parameters: InPtr<InPtr<u8>>,
        extra: *const *const c_void,
    ) {
        let shape = LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        enqueue(stream, launch(function, shape, &parameters, extra.is_null())?)
    }

    Context fn cuLaunchKernelEx(
        config: InPtr<LaunchConfig>, function: usize, parameters: InPtr<InPtr<u8>>, extra: *const *const c_void,
    ) {
        let LaunchConfig { grid, block, shared_bytes, stream, attributes, count } = config.get()?;
        // SAFETY: null, or a list of `count` attributes, by the caller's guarantee for this field.
        let attributes = unsafe { InPtr::new(attributes) };
        for index in 0..count as usize {
            let attribute = attributes.at(index)?;
            let ordinary = ORDINARY.iter().find(|(id, _)| *id == attribute.id);
            let asks_nothing = ordinary.is_some_and(|(_, values)| attribute.value.starts_with(values));
            if !WITHOUT_EFFECT.contains(&attribute.id) && !asks_nothing {
                eprintln!("stand-in: a launch is refused: its attribute {} is not supported", attribute.id);
                return Err(code::NOT_SUPPORTED);
            }
        }
        let shape = LaunchShape { grid, block, shared_bytes };
        enqueue(stream, launch(function, shape, &parameters, extra.is_null())?)
    }
}

/// Blocks, threads of a block, and dynamic shared memory.
#[derive(Clone, Copy)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

/// Returns the launch of a kernel, with copies of its arguments.
pub fn launch(
    function: usize,
    shape: LaunchShape,
    parameters: &InPtr<InPtr<u8>>,
    is_plain: bool,
) -> Result<Operation, u32> {
    let function = loaded(function)?;
    let LaunchShape { grid, block, shared_bytes } = shape;
    function.check_launch(grid, block, shared_bytes)?;
    // Arguments as one buffer, the other way that the driver knows, are not read here.
    if !is_plain {
        return Err(code::NOT_SUPPORTED);
    }
    let arguments = function.kernel.read_arguments(parameters)?;
    Ok(Operation::Kernel(Launch { kernel: function.kernel, arguments, grid, block, shared_bytes }))
}

fn find(function: usize) -> Result<Function, u32> {
    objects().functions.get(&function).cloned().ok_or(code::INVALID_HANDLE)
}

/// Returns a function. Without eager loading, the first call waits for all streams of the context, as the driver may do.
/// A first launch therefore blocks if a queued wait needs later work of the caller.
fn loaded(function: usize) -> Result<Function, u32> {
    let known = find(function)?;
    if !known.loaded {
        let streams = objects().streams_of(current());
        streams.iter().for_each(|stream| stream.drain());
        if let Some(function) = objects().functions.get_mut(&function) {
            function.loaded = true;
        }
    }
    Ok(known)
}

//! Graphs: captured from a stream, or built node by node.

use std::ffi::c_void;

use crate::abi::{BatchNode, FillNode, HostNode, InPtr, KernelNode, OutPtr, code};
use crate::call_guard::calls;
use crate::enqueue::enqueue_graph;
use crate::graph::Node;
use crate::objects::objects;
use crate::operation::{HostFunction, Operation};

use super::copy::fill;
use super::function::{LaunchShape, launch};
use super::stream::batch;

calls! {
    Context fn cuGraphCreate(graph: OutPtr<usize>, _flags: u32) {
        graph.set(objects().create_graph())
    }

    Start fn cuGraphDestroy(graph: usize) {
        check_complete(graph)?;
        objects().graphs.remove(&graph).map(drop).ok_or(code::INVALID_VALUE)
    }

    Context fn cuGraphAddBatchMemOpNode(
        node: OutPtr<usize>, graph: usize, before: InPtr<usize>, count: usize, parameters: InPtr<BatchNode>,
    ) {
        let operation = words(&parameters.get()?)?;
        node.set(append(graph, &before, count, operation)?)
    }

    Context fn cuGraphAddKernelNode_v2(
        node: OutPtr<usize>, graph: usize, before: InPtr<usize>, count: usize, parameters: InPtr<KernelNode>,
    ) {
        let operation = kernel(&parameters.get()?)?;
        node.set(append(graph, &before, count, operation)?)
    }

    Context fn cuGraphAddHostNode(
        node: OutPtr<usize>, graph: usize, before: InPtr<usize>, count: usize, parameters: InPtr<HostNode>,
    ) {
        let function = HostFunction::new(parameters.get()?).ok_or(code::INVALID_VALUE)?;
        node.set(append(graph, &before, count, Operation::Host(function))?)
    }

    Context fn cuGraphAddMemsetNode(
        node: OutPtr<usize>, graph: usize, before: InPtr<usize>, count: usize, parameters: InPtr<FillNode>,
        _context: usize,
    ) {
        let FillNode { address, value, element, width, height, .. } = parameters.get()?;
        if height != 1 || ![1, 2, 4].contains(&element) {
            return Err(code::NOT_SUPPORTED);
        }
        node.set(append(graph, &before, count, fill(address, value, element, width)?)?)
    }

    Context fn cuGraphAddEmptyNode(node: OutPtr<usize>, graph: usize, before: InPtr<usize>, count: usize) {
        node.set(append(graph, &before, count, Operation::Nothing)?)
    }

    Context fn cuGraphNodeGetDependencies(node: usize, nodes: OutPtr<usize>, count: OutPtr<usize>) {
        let objects = objects();
        let known = &objects.node(node)?.dependencies;
        if !nodes.raw().is_null() {
            for (index, handle) in known.iter().enumerate() {
                // SAFETY: the caller provides space for all of them, whose number an earlier call returned.
                unsafe { nodes.raw().add(index).write(*handle) };
            }
        }
        count.set(known.len())
    }

    Context fn cuGraphGetNodes(graph: usize, nodes: OutPtr<usize>, count: OutPtr<usize>) {
        let objects = objects();
        let graph = objects.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
        if nodes.raw().is_null() {
            return count.set(graph.nodes.len());
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            // SAFETY: the caller provides space for all nodes of the graph, whose number an earlier call returned.
            unsafe { nodes.raw().add(index).write(node.handle) };
        }
        count.set(graph.nodes.len())
    }

    Context fn cuGraphNodeGetType(node: usize, kind: OutPtr<u32>) {
        kind.set(objects().node(node)?.kind())
    }

    Context fn cuGraphBatchMemOpNodeGetParams(node: usize, parameters: OutPtr<BatchNode>) {
        let objects = objects();
        let node = objects.node(node)?;
        if node.batch_params.is_empty() {
            return Err(code::INVALID_VALUE);
        }
        let count = node.batch_params.len() as u32;
        let context = std::ptr::null_mut::<c_void>();
        parameters.set(BatchNode { context, count, operations: node.batch_params.as_ptr(), flags: 0 })
    }

    Context fn cuGraphInstantiateWithFlags(ready: OutPtr<usize>, graph: usize, _flags: u64) {
        check_complete(graph)?;
        let mut objects = objects();
        let copy = objects.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.clone();
        let number = objects.next_handle();
        objects.ready_graphs.insert(number, copy);
        ready.set(number)
    }

    Start fn cuGraphExecDestroy(ready: usize) {
        objects().ready_graphs.remove(&ready).map(drop).ok_or(code::INVALID_VALUE)
    }

    Context fn cuGraphExecBatchMemOpNodeSetParams(ready: usize, node: usize, parameters: InPtr<BatchNode>) {
        change(ready, node, words(&parameters.get()?)?)
    }

    Context fn cuGraphExecKernelNodeSetParams_v2(ready: usize, node: usize, parameters: InPtr<KernelNode>) {
        change(ready, node, kernel(&parameters.get()?)?)
    }

    Context fn cuGraphUpload(ready: usize, stream: usize) {
        let objects = objects();
        objects.stream(stream)?;
        objects.ready_graphs.get(&ready).map(|_| ()).ok_or(code::INVALID_VALUE)
    }

    Context fn cuGraphLaunch(ready: usize, stream: usize) {
        let operations = objects().ready_graphs.get(&ready).ok_or(code::INVALID_VALUE)?.operations().collect();
        enqueue_graph(stream, operations)
    }
}

/// Refuses what the driver refuses for a graph that still receives the work of a stream.
fn check_complete(graph: usize) -> Result<(), u32> {
    if objects().captures.is_into(graph) { Err(code::INVALID_VALUE) } else { Ok(()) }
}

/// Adds a node after `count` nodes of the graph.
fn append(graph: usize, before: &InPtr<usize>, count: usize, operation: Operation) -> Result<usize, u32> {
    let dependencies = (0..count).map(|index| before.at(index)).collect::<Result<_, _>>()?;
    objects().add_node(graph, operation, dependencies)
}

fn change(ready: usize, node: usize, operation: Operation) -> Result<(), u32> {
    let mut objects = objects();
    let graph = objects.ready_graphs.get_mut(&ready).ok_or(code::INVALID_VALUE)?;
    let place = graph.nodes.iter_mut().find(|known| known.handle == node).ok_or(code::INVALID_VALUE)?;
    let changed = Node::new(node, operation, place.dependencies.clone());
    if changed.kind() != place.kind() {
        return Err(code::INVALID_VALUE);
    }
    *place = changed;
    Ok(())
}

fn words(parameters: &BatchNode) -> Result<Operation, u32> {
    // SAFETY: null, or a list of `count` operations, by the caller's guarantee for this field.
    let operations = unsafe { InPtr::new(parameters.operations) };
    Ok(Operation::Words(batch(&operations, parameters.count)?))
}

fn kernel(parameters: &KernelNode) -> Result<Operation, u32> {
    let KernelNode { function, grid, block, shared_bytes, extra, .. } = *parameters;
    // SAFETY: null, or a list of pointers to arguments, by the caller's guarantee for this field.
    let list = unsafe { InPtr::new(parameters.parameters.cast::<InPtr<u8>>()) };
    launch(function, LaunchShape { grid, block, shared_bytes }, &list, extra.is_null())
}

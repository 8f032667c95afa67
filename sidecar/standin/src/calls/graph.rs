//! Graphs: captured from a stream, or built node by node as a chain.

use std::ffi::c_void;

use crate::abi::{BatchNode, InPtr, KernelNode, OutPtr, code};
use crate::call_guard::calls;
use crate::graph::Node;
use crate::objects::objects;
use crate::operation::Operation;

use super::module::launch;
use super::stream::batch;

calls! {
    Context fn cuGraphCreate(graph: OutPtr<usize>, _flags: u32) {
        graph.set(objects().create_graph(Vec::new()))
    }

    Start fn cuGraphDestroy(graph: usize) {
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
        let objects = objects();
        let stream = objects.stream(stream)?;
        let graph = objects.ready_graphs.get(&ready).ok_or(code::INVALID_VALUE)?;
        stream.extend(graph.nodes.iter().map(|node| node.operation.clone()));
        Ok(())
    }
}

/// Adds a node at the end of a chain. It must depend on the last node only, or on nothing if it is the first.
fn append(graph: usize, before: &InPtr<usize>, count: usize, operation: Operation) -> Result<usize, u32> {
    let mut objects = objects();
    let number = objects.next_handle();
    let graph = objects.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?;
    let expected = graph.nodes.last().map(|node| node.handle);
    let given = if count == 0 { None } else { Some(before.at(count - 1)?) };
    if count > 1 || expected != given {
        return Err(code::NOT_SUPPORTED);
    }
    graph.nodes.push(Node::new(number, operation));
    Ok(number)
}

fn change(ready: usize, node: usize, operation: Operation) -> Result<(), u32> {
    let mut objects = objects();
    let graph = objects.ready_graphs.get_mut(&ready).ok_or(code::INVALID_VALUE)?;
    let place = graph.nodes.iter_mut().find(|known| known.handle == node).ok_or(code::INVALID_VALUE)?;
    let changed = Node::new(node, operation);
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
    let KernelNode { function, grid, block, extra, .. } = *parameters;
    let sizes = [grid[0], grid[1], grid[2], block[0], block[1], block[2]];
    // SAFETY: null, or a list of pointers to arguments, by the caller's guarantee for this field.
    let list = unsafe { InPtr::new(parameters.parameters.cast::<InPtr<u64>>()) };
    launch(function, &sizes, &list, extra.is_null())
}

//! Graphs: operations that are launched as one. Each node depends on earlier nodes, so that the order of adding is an
//! order in which they can run; a launch runs them in it, one after the other.

use std::collections::BTreeSet;

use crate::operation::Operation;
use crate::word_operation::WordOperation;

/// A node: its handle, its operation and what it depends on.
#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub operation: Operation,
    /// Handles of earlier nodes.
    pub dependencies: Vec<usize>,
    /// The operations of a batch node in the driver's form.
    pub batch_params: Vec<crate::abi::BatchOperation>,
}

/// A graph, instantiated or not.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

impl Graph {
    /// Returns a node.
    pub fn node(&self, handle: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.handle == handle)
    }

    /// Whether each of `targets` is one of `ends` or comes before one of them.
    pub fn reaches(&self, ends: &[usize], targets: impl IntoIterator<Item = usize>) -> bool {
        let mut reached: BTreeSet<usize> = ends.iter().copied().collect();
        // A node depends on earlier ones, so that one pass from the end meets every node before what it depends on.
        for node in self.nodes.iter().rev() {
            if reached.contains(&node.handle) {
                reached.extend(&node.dependencies);
            }
        }
        targets.into_iter().all(|target| reached.contains(&target))
    }

    /// Returns the operations in the order of a launch.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.nodes.iter().map(|node| node.operation.clone())
    }
}

impl Node {
    /// Creates a node that runs `operation` after `dependencies`.
    pub fn new(handle: usize, operation: Operation, dependencies: Vec<usize>) -> Self {
        let shown = match &operation {
            Operation::Words(all) => all.iter().copied().map(WordOperation::to_batch).collect(),
            _ => Vec::new(),
        };
        Self { handle, operation, dependencies, batch_params: shown }
    }

    /// Returns the `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self.operation {
            Operation::Kernel(_) | Operation::Matmul(_) => 0,
            Operation::Copy(_) | Operation::Store { .. } => 1,
            Operation::Fill(_) => 2,
            Operation::Host(_) => 3,
            Operation::Graph(_) => 4,
            Operation::Nothing => 5,
            Operation::Wait(_) => 6,
            Operation::Record(_) => 7,
            Operation::Words(_) => 12,
        }
    }
}

//! Graphs: lists of operations that are launched as one. Only chains are supported, in the order of adding.

use crate::operation::{Operation, WordOperation};

/// A node: its handle and its operation.
#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub operation: Operation,
    /// The operations of a batch node in the driver's form.
    pub batch_params: Vec<crate::abi::BatchOperation>,
}

/// A graph, instantiated or not.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

impl Node {
    /// Creates a node that runs `operation`.
    pub fn new(handle: usize, operation: Operation) -> Self {
        let shown = match &operation {
            Operation::Words(all) => all.iter().copied().map(WordOperation::to_batch).collect(),
            _ => Vec::new(),
        };
        Self { handle, operation, batch_params: shown }
    }

    /// Returns the `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self.operation {
            Operation::Kernel(_) | Operation::Matmul(_) => 0,
            Operation::Copy { .. } => 1,
            Operation::Fill { .. } => 2,
            Operation::Wait(_) => 6,
            Operation::Record(_) => 7,
            Operation::Words(_) => 12,
        }
    }
}

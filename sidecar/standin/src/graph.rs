//! Graphs: a list of operations that is launched as one. Only chains: the order is that of adding.

use crate::operation::{Operation, WordOperation};

/// A node: its handle and what it does.
#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub operation: Operation,
    /// The words of a node that waits or writes, as the driver shows them.
    pub batch_params: Vec<crate::abi::BatchOperation>,
}

/// A graph, or one made ready for launching.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

impl Node {
    /// A node that does `operation`.
    pub fn new(handle: usize, operation: Operation) -> Self {
        let shown = match &operation {
            Operation::Words(all) => all.iter().copied().map(WordOperation::to_batch).collect(),
            _ => Vec::new(),
        };
        Self { handle, operation, batch_params: shown }
    }

    /// `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self.operation {
            Operation::Kernel(_) => 0,
            Operation::Copy { .. } => 1,
            Operation::Fill { .. } => 2,
            Operation::Wait(_) => 6,
            Operation::Record(_) => 7,
            Operation::Words(_) => 12,
        }
    }
}

//! Orders the copies on the link: by deadline, with a limited wait for copies without one.
//!
//! One link carries streamed weights, KV fetched or spilled for a step, write-backs and restored KV. Each direction
//! serves one copy at a time, earliest deadline first; a copy that yields at a quantum keeps its progress. The memory
//! manager sets the deadlines ([`CopyDeadlines`]); a backend serves the least [`CopyPriority`]. The planner's step
//! model has the same rule ([`crate::placement_planner::steps`]), with layers instead of times.
//!
//! Source: OrbitFlow Fig. 3 for deadlines with carried-over progress; one link for all copies is ours.

use alloc::vec::Vec;

use crate::ids::{ActionId, LayerId, Nanos};

/// Deadline of a copy without one, nanoseconds after it could begin, so that a busy link cannot starve it. It is
/// shorter than a step of a model that streams its layers: on a saturated link a longer wait would only delay the
/// copy's request, without saving a stall.
pub const BACKGROUND_DEADLINE_NS: u64 = 5_000_000;

/// A copy's position in the order of its link direction: the least is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyPriority {
    due: Nanos,
    /// Ties are served in the order of the actions.
    order: ActionId,
}

impl CopyPriority {
    /// Returns the priority of the copy `order` that is needed at `due` and can begin at `since`. Copies without a
    /// deadline are ordered by `since`.
    pub const fn new(order: ActionId, due: Option<Nanos>, since: Nanos) -> CopyPriority {
        let due = match due {
            Some(due) => due,
            None => since.plus(BACKGROUND_DEADLINE_NS),
        };
        CopyPriority { due, order }
    }
}

/// Predicted times at which a step and the next one reach each of their layers, without stalls. Steps with prompts are
/// slower, but only the order of deadlines matters.
#[derive(Clone, Debug)]
pub struct CopyDeadlines {
    begins: Nanos,
    /// For each layer, the compute of the layers before it. The last entry is a whole step: all layers and the
    /// overhead.
    before_ns: Vec<u64>,
}

impl CopyDeadlines {
    /// Returns the deadlines of a step that starts at `begins`, with this compute per layer and overhead.
    pub fn new(begins: Nanos, compute_ns: &[u64], beside_ns: u64) -> CopyDeadlines {
        let mut before_ns = Vec::with_capacity(compute_ns.len() + 1);
        let mut sum_ns: u64 = 0;
        for ns in compute_ns {
            before_ns.push(sum_ns);
            sum_ns = sum_ns.saturating_add(*ns);
        }
        before_ns.push(sum_ns.saturating_add(beside_ns));
        CopyDeadlines { begins, before_ns }
    }

    /// Returns when the step, or the next one, reaches the layer; an index beyond the last layer means the end.
    pub fn layer(&self, layer: LayerId, next_step: bool) -> Nanos {
        let last = self.before_ns.len() - 1;
        let step_ns = if next_step { self.before_ns[last] } else { 0 };
        self.begins.plus(step_ns.saturating_add(self.before_ns[layer.index().min(last)]))
    }
}

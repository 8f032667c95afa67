//! Who uses the link next: by when each copy is needed, and how long one waits that nobody needs.
//!
//! One link carries weights that stream, KV that is fetched or spilled for a step, write-backs, and KV that comes home. Each
//! direction serves one copy at a time, earliest deadline first; what a copy has moved stays moved when it gives way at a
//! quantum. The memory manager says when it needs a copy ([`CopyDeadlines`]); a backend serves the least [`CopyPriority`]. The
//! planner's model of a step has the same rule ([`crate::planner::steps`]), with a layer in place of a time.
//!
//! Source: OrbitFlow Fig. 3 for deadlines with carried-over progress; one link for all users is ours (DESIGN 6).

use alloc::vec::Vec;

use crate::ids::{ActionId, LayerId, Nanos};

/// A copy that nobody needs by a certain moment goes behind all that are needed within so long, nanoseconds, from when it could
/// begin, and before the others: a busy link never starves it. Less than a step of a model that streams its layers takes: where
/// the link is full for long, what waits longer only makes its request wait, and saves no stall.
pub const BACKGROUND_DEADLINE_NS: u64 = 5_000_000;

/// A copy's place in the order of its direction of the link: the least is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyPriority {
    due: Nanos,
    /// Ties go in the order in which copies were ordered.
    order: ActionId,
}

impl CopyPriority {
    /// Of the copy `order` that is needed at `due`, if anybody needs it, and could begin at `since`. Copies without a deadline go
    /// in the order in which they could begin.
    pub const fn new(order: ActionId, due: Option<Nanos>, since: Nanos) -> CopyPriority {
        let due = match due {
            Some(due) => due,
            None => since.plus(BACKGROUND_DEADLINE_NS),
        };
        CopyPriority { due, order }
    }
}

/// When a step and the one after it come to each of their layers if they wait for nothing. A step with prompts is slower: it is the
/// order of deadlines that counts.
#[derive(Clone, Debug)]
pub struct CopyDeadlines {
    begins: Nanos,
    /// By layer: compute of those before it. The last entry is that of all, and what a step takes beside them.
    before_ns: Vec<u64>,
}

impl CopyDeadlines {
    /// Of a step that begins then and takes so long for each layer, and beside them.
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

    /// When the step comes to the layer, or the step after it does; a layer behind the last one stands for the end.
    pub fn layer(&self, layer: LayerId, next_step: bool) -> Nanos {
        let last = self.before_ns.len() - 1;
        let step_ns = if next_step { self.before_ns[last] } else { 0 };
        self.begins.plus(step_ns.saturating_add(self.before_ns[layer.index().min(last)]))
    }
}

//! Whether so many nodes are not ready at once that the fault is hardly theirs.
//!
//! A cut between the control plane and the nodes makes all of them not ready, and every pod on them serves on. Who gave up
//! their claims would stop what works, as soon as the kubelets are back. Kubernetes' node lifecycle controller stops evicting
//! in the same case: where all zones are disrupted, or in a zone of at most 50 nodes of which more than two, and 55 in 100
//! (`--unhealthy-zone-threshold`), are not ready; and it gives every node its grace anew when the case is over.

/// Fewest nodes that are too many at once, of however many; fewer are where they are all that there are.
const MIN_NODES: usize = 3;

/// The nodes of the cluster, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneDisruption {
    /// All of them.
    pub nodes: usize,
    /// Those that hold a claim.
    pub claim_nodes: usize,
    /// Those that hold a claim and are not ready.
    pub not_ready: usize,
    /// When too many were not ready at once last, seconds since 1970; 0 = never, as far as anybody remembers.
    pub last_active: i64,
}

impl ZoneDisruption {
    /// Whether too many are not ready now.
    pub const fn is_active(&self) -> bool {
        let most = self.not_ready >= MIN_NODES && 2 * self.not_ready > self.claim_nodes;
        let everything = self.not_ready > 1 && self.not_ready >= self.nodes;
        most || everything
    }

    /// Since when a node counts as not ready that has been so since `lost_since`, seconds since 1970: while there is an outage,
    /// and before it was over, no time passes.
    pub(crate) fn not_ready_since(&self, lost_since: i64, now: i64) -> i64 {
        if self.is_active() { now } else { lost_since.max(self.last_active) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_active(nodes: usize, holding: usize, not_ready: usize) -> bool {
        ZoneDisruption { nodes, claim_nodes: holding, not_ready, last_active: 0 }.is_active()
    }

    #[test]
    fn more_than_half_and_three_claim_nodes_not_ready_is_disruption() {
        assert!(is_active(100, 5, 3) && is_active(100, 4, 3) && is_active(3, 3, 3));
        assert!(!is_active(100, 6, 3), "half of them");
        assert!(!is_active(100, 2, 2) && !is_active(100, 3, 2), "two machines may break at once");
    }

    #[test]
    fn whole_cluster_not_ready_is_disruption_unless_single_node() {
        assert!(is_active(2, 2, 2));
        assert!(!is_active(3, 2, 2) && !is_active(1, 1, 1) && !is_active(0, 0, 0));
    }

    #[test]
    fn node_grace_restarts_after_disruption() {
        let outage = |not_ready| ZoneDisruption { nodes: 9, claim_nodes: 4, not_ready, last_active: 500 };
        assert_eq!(outage(3).not_ready_since(100, 700), 700);
        assert_eq!(outage(1).not_ready_since(100, 700), 500);
        assert_eq!(outage(1).not_ready_since(600, 700), 600);
    }
}

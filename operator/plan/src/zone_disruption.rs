//! Detects that too many nodes are not ready at once for a fault of the nodes themselves.
//!
//! A partition between the control plane and the nodes makes all nodes not ready, while their pods continue to serve.
//! Replacing their claims would stop working pods as soon as the kubelets reconnect. Kubernetes' node lifecycle
//! controller stops evictions in the same case: where all zones are disrupted, or in a zone of at most 50 nodes of
//! which more than two, and 55 in 100 (`--unhealthy-zone-threshold`), are not ready. It restarts the grace period of
//! every node when the case ends.

/// Minimum number of not ready nodes for a disruption; fewer suffice if they are all nodes of the cluster.
const MIN_NODES: usize = 3;

/// Node counts of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneDisruption {
    /// All nodes.
    pub nodes: usize,
    /// Nodes with a claim.
    pub claim_nodes: usize,
    /// Nodes with a claim that are not ready.
    pub not_ready: usize,
    /// When a disruption was last active, seconds since 1970; 0 = never seen.
    pub last_active: i64,
}

impl ZoneDisruption {
    /// Whether too many nodes are not ready now.
    pub const fn is_active(&self) -> bool {
        let most = self.not_ready >= MIN_NODES && 2 * self.not_ready > self.claim_nodes;
        let everything = self.not_ready > 1 && self.not_ready >= self.nodes;
        most || everything
    }

    /// Returns since when a node that is not ready since `lost_since` counts as not ready, seconds since 1970: the
    /// time of a disruption does not count.
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

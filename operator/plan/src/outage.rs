//! Whether so many nodes are not ready at once that the fault is hardly theirs.
//!
//! A cut between the control plane and the nodes makes all of them not ready, and every pod on them serves on. Who gave up
//! their claims would stop what works, as soon as the kubelets are back. Kubernetes' node lifecycle controller stops evicting
//! in the same case: where all zones are disrupted, or in a zone of at most 50 nodes of which more than two, and 55 in 100
//! (`--unhealthy-zone-threshold`), are not ready; and it gives every node its grace anew when the case is over.

/// Fewest nodes that are too many at once, of however many; fewer are where they are all that there are.
const FEWEST: usize = 3;

/// The nodes of the cluster, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    /// All of them.
    pub nodes: usize,
    /// Those that hold a claim.
    pub holding: usize,
    /// Those that hold a claim and are not ready.
    pub not_ready: usize,
    /// When too many were not ready at once last, seconds since 1970; 0 = never, as far as anybody remembers.
    pub last: i64,
}

impl Outage {
    /// Whether too many are not ready now.
    pub const fn is_on(&self) -> bool {
        let most = self.not_ready >= FEWEST && 2 * self.not_ready > self.holding;
        let everything = self.not_ready > 1 && self.not_ready >= self.nodes;
        most || everything
    }

    /// Since when a node counts as not ready that has been so since `lost_since`, seconds since 1970: while there is an outage,
    /// and before it was over, no time passes.
    pub(crate) fn counts_from(&self, lost_since: i64, now: i64) -> i64 {
        if self.is_on() { now } else { lost_since.max(self.last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_on(nodes: usize, holding: usize, not_ready: usize) -> bool {
        Outage { nodes, holding, not_ready, last: 0 }.is_on()
    }

    #[test]
    fn more_than_half_of_the_nodes_that_hold_claims_are_too_many_at_once_if_they_are_three() {
        assert!(is_on(100, 5, 3) && is_on(100, 4, 3) && is_on(3, 3, 3));
        assert!(!is_on(100, 6, 3), "half of them");
        assert!(!is_on(100, 2, 2) && !is_on(100, 3, 2), "two machines may break at once");
    }

    #[test]
    fn the_whole_cluster_is_too_much_unless_it_is_one_node() {
        assert!(is_on(2, 2, 2));
        assert!(!is_on(3, 2, 2) && !is_on(1, 1, 1) && !is_on(0, 0, 0));
    }

    #[test]
    fn a_nodes_grace_begins_anew_when_an_outage_is_over() {
        let outage = |not_ready| Outage { nodes: 9, holding: 4, not_ready, last: 500 };
        assert_eq!(outage(3).counts_from(100, 700), 700);
        assert_eq!(outage(1).counts_from(100, 700), 500);
        assert_eq!(outage(1).counts_from(600, 700), 600);
    }
}

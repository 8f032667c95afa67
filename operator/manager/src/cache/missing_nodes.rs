//! Tracks missing nodes, and how many nodes are not ready at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use sluice_plan::zone_disruption::ZoneDisruption;

use super::{ClusterCache, NamespacedName};

impl ClusterCache {
    /// Returns those of `nodes` that are known to be missing, and since when. A node that a broken watch does not
    /// list may exist.
    pub fn missing_nodes(&self, nodes: &BTreeSet<String>, now: i64) -> BTreeMap<String, i64> {
        let there = |node: &str| self.nodes.with(&NamespacedName::new("", node), |_| ()).is_some();
        let mut since = self.node_monitor.missing_since();
        since.retain(|node, _| !there(node));
        if !self.node_monitor.is_watch_healthy.load(Ordering::SeqCst) {
            return BTreeMap::new();
        }
        let gone = nodes.iter().filter(|node| !there(node));
        gone.map(|node| (node.clone(), *since.entry(node.clone()).or_insert(now))).collect()
    }

    /// Returns the node counts of the cluster.
    pub fn outage(&self, now: i64) -> ZoneDisruption {
        let holding: BTreeSet<String> = self
            .claims
            .filter_map(|_, entry| entry.claim.device.as_ref()?.node.clone())
            .into_iter()
            .collect();
        let ready = |node: &String| {
            self.nodes.with(&NamespacedName::new("", node.as_str()), |node| node.lost_since.is_none())
        };
        let known: Vec<bool> = holding.iter().filter_map(ready).collect();
        let not_ready = known.iter().filter(|ready| !**ready).count();
        self.node_monitor.missing_since().retain(|node, _| holding.contains(node));
        let counts =
            ZoneDisruption { nodes: self.nodes.len(), claim_nodes: known.len(), not_ready, last_active: 0 };
        if counts.is_active() {
            self.node_monitor.last_outage.store(now, Ordering::SeqCst);
        }
        ZoneDisruption { last_active: self.node_monitor.last_outage.load(Ordering::SeqCst), ..counts }
    }
}

#[cfg(test)]
mod tests {
    use sluice_plan::observed::{ObservedClaim, ObservedDevice, ObservedNode};

    use super::super::{ClaimEntry, PoolKey};
    use super::*;

    fn node(world: &ClusterCache, name: &str, lost_since: Option<i64>) {
        world.nodes.insert(
            NamespacedName::new("", name),
            PoolKey::default(),
            ObservedNode { lost_since, ..ObservedNode::default() },
        );
    }

    fn claim(world: &ClusterCache, node: &str) {
        let device = ObservedDevice { node: Some(node.to_owned()), ..ObservedDevice::default() };
        let claim = ObservedClaim { device: Some(device), ..ObservedClaim::default() };
        let entry = ClaimEntry { claim, ..ClaimEntry::default() };
        world.claims.insert(NamespacedName::new("ns", format!("on-{node}")), PoolKey::default(), entry);
    }

    fn only(node: &str) -> BTreeSet<String> {
        BTreeSet::from([node.to_owned()])
    }

    #[test]
    fn absent_node_is_missing_only_while_watch_is_healthy() {
        let world = ClusterCache::default();
        assert_eq!(world.missing_nodes(&only("a"), 10), BTreeMap::new(), "nothing was heard yet");
        world.node_monitor.set_watch_healthy(true, 1);
        let since = |at| BTreeMap::from([("a".to_owned(), at)]);
        assert_eq!(world.missing_nodes(&only("a"), 10), since(10));
        world.node_monitor.set_watch_healthy(false, 1);
        assert_eq!(world.missing_nodes(&only("a"), 20), BTreeMap::new(), "the watch broke");
        world.node_monitor.set_watch_healthy(true, 1);
        assert_eq!(world.missing_nodes(&only("a"), 30), since(10));
        node(&world, "a", None);
        assert_eq!(world.missing_nodes(&only("a"), 40), BTreeMap::new());
        world.nodes.remove(&NamespacedName::new("", "a"));
        assert_eq!(world.missing_nodes(&only("a"), 50), since(50), "it was there in between");
    }

    #[test]
    fn outage_counts_nodes_with_claims_and_is_remembered() {
        let world = ClusterCache::default();
        for name in ["a", "b", "c", "d"] {
            node(&world, name, Some(1));
        }
        for name in ["a", "b", "c", "gone"] {
            claim(&world, name);
        }
        let outage = ZoneDisruption { nodes: 4, claim_nodes: 3, not_ready: 3, last_active: 10 };
        assert_eq!(world.outage(10), outage);
        node(&world, "a", None);
        assert_eq!(world.outage(20), ZoneDisruption { not_ready: 2, ..outage });
    }
}

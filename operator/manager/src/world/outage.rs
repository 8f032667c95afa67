//! Nodes that are not as they should be: those that are not there, and how many are not ready at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_plan::outage::Outage;

use super::{Name, World};

/// What is remembered of nodes beside their mirror.
#[derive(Debug, Default)]
pub struct Absence {
    /// The watch of nodes tells what is there now; else it broke, and has told nothing since.
    heard: AtomicBool,
    /// Nodes that claims name and that are not there: since when, seconds since 1970.
    since: Mutex<BTreeMap<String, i64>>,
    /// When too many nodes were not ready at once last, seconds since 1970.
    last_outage: AtomicI64,
}

impl Absence {
    /// The watch of nodes has told something at `now`, seconds since 1970, or it broke. Whoever has begun to listen just now does
    /// not know what was before: to it that was an outage, and every node has its grace anew.
    pub fn heard(&self, anything: bool, now: i64) {
        self.heard.store(anything, Ordering::SeqCst);
        let _ = self.last_outage.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Those of `nodes` that are known not to be there, and since when. What a watch that broke does not name may be there.
    pub fn missing(&self, nodes: &BTreeSet<String>, now: i64) -> BTreeMap<String, i64> {
        let there = |node: &str| self.nodes.with(&Name::new("", node), |_| ()).is_some();
        let mut since = self.absence.since();
        since.retain(|node, _| !there(node));
        if !self.absence.heard.load(Ordering::SeqCst) {
            return BTreeMap::new();
        }
        let gone = nodes.iter().filter(|node| !there(node));
        gone.map(|node| (node.clone(), *since.entry(node.clone()).or_insert(now))).collect()
    }

    /// The nodes of the cluster, counted.
    pub fn outage(&self, now: i64) -> Outage {
        let holding: BTreeSet<String> =
            self.claims.all(|_, entry| entry.claim.device.as_ref()?.node.clone()).into_iter().collect();
        let ready =
            |node: &String| self.nodes.with(&Name::new("", node.as_str()), |node| node.lost_since.is_none());
        let known: Vec<bool> = holding.iter().filter_map(ready).collect();
        let not_ready = known.iter().filter(|ready| !**ready).count();
        self.absence.since().retain(|node, _| holding.contains(node));
        let counts = Outage { nodes: self.nodes.len(), holding: known.len(), not_ready, last: 0 };
        if counts.is_on() {
            self.absence.last_outage.store(now, Ordering::SeqCst);
        }
        Outage { last: self.absence.last_outage.load(Ordering::SeqCst), ..counts }
    }
}

#[cfg(test)]
mod tests {
    use sluice_plan::seen::{ClaimSeen, DeviceSeen, NodeSeen};

    use super::super::{ClaimEntry, Unit};
    use super::*;

    fn node(world: &World, name: &str, lost_since: Option<i64>) {
        world.nodes.put(Name::new("", name), Unit::default(), NodeSeen { lost_since, ..NodeSeen::default() });
    }

    fn claim(world: &World, node: &str) {
        let device = DeviceSeen { node: Some(node.to_owned()), ..DeviceSeen::default() };
        let claim = ClaimSeen { device: Some(device), ..ClaimSeen::default() };
        let entry = ClaimEntry { claim, ..ClaimEntry::default() };
        world.claims.put(Name::new("ns", format!("on-{node}")), Unit::default(), entry);
    }

    fn only(node: &str) -> BTreeSet<String> {
        BTreeSet::from([node.to_owned()])
    }

    #[test]
    fn a_node_that_is_not_there_is_missing_only_while_the_watch_tells() {
        let world = World::default();
        assert_eq!(world.missing(&only("a"), 10), BTreeMap::new(), "nothing was heard yet");
        world.absence.heard(true, 1);
        let since = |at| BTreeMap::from([("a".to_owned(), at)]);
        assert_eq!(world.missing(&only("a"), 10), since(10));
        world.absence.heard(false, 1);
        assert_eq!(world.missing(&only("a"), 20), BTreeMap::new(), "the watch broke");
        world.absence.heard(true, 1);
        assert_eq!(world.missing(&only("a"), 30), since(10));
        node(&world, "a", None);
        assert_eq!(world.missing(&only("a"), 40), BTreeMap::new());
        world.nodes.remove(&Name::new("", "a"));
        assert_eq!(world.missing(&only("a"), 50), since(50), "it was there in between");
    }

    #[test]
    fn nodes_that_hold_claims_are_counted_and_an_outage_is_remembered() {
        let world = World::default();
        for name in ["a", "b", "c", "d"] {
            node(&world, name, Some(1));
        }
        for name in ["a", "b", "c", "gone"] {
            claim(&world, name);
        }
        let outage = Outage { nodes: 4, holding: 3, not_ready: 3, last: 10 };
        assert_eq!(world.outage(10), outage);
        node(&world, "a", None);
        assert_eq!(world.outage(20), Outage { not_ready: 2, ..outage });
    }
}

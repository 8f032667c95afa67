//! A store of pruned objects by name, with an index by pool.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::pool_key::PoolKey;

/// Namespace and name; objects without a namespace have an empty one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    pub namespace: String,
    pub name: String,
}

impl NamespacedName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> NamespacedName {
        NamespacedName { namespace: namespace.into(), name: name.into() }
    }
}

/// A store of `V`. There are tens of thousands of objects, so a name is stored once and a pool key is shared.
#[derive(Debug)]
pub struct Store<V> {
    inner: RwLock<Inner<V>>,
    /// Whether the values differ in no relevant field.
    is_equivalent: fn(&V, &V) -> bool,
    /// Whether the first is a later version of the same object than the second.
    is_newer: fn(&V, &V) -> bool,
}

#[derive(Debug)]
struct Inner<V> {
    /// By namespace and name: a namespace has few pools, so the objects of a pool are found by a scan of its
    /// namespace. Boxed: names arrive in order, and half of a tree filled in order is spare capacity.
    items: HashMap<String, BTreeMap<Box<str>, Box<Item<V>>>>,
    /// Number of objects per pool.
    pool_counts: HashMap<Arc<PoolKey>, usize>,
}

#[derive(Debug)]
struct Item<V> {
    pool_key: Arc<PoolKey>,
    value: V,
}

impl<V: Clone> Store<V> {
    /// Returns an empty store that only a watch fills. `same`: whether two values differ in no relevant field.
    pub fn new(same: fn(&V, &V) -> bool) -> Self {
        Store::versioned(same, |_, _| false)
    }

    /// Returns an empty store that a watch and the answers to writes fill, in any order. `later`: whether the first
    /// is a later version of the same object than the second. An earlier version never replaces a later one.
    pub fn versioned(same: fn(&V, &V) -> bool, later: fn(&V, &V) -> bool) -> Self {
        Store {
            inner: RwLock::new(Inner { items: HashMap::new(), pool_counts: HashMap::new() }),
            is_equivalent: same,
            is_newer: later,
        }
    }

    pub fn get(&self, at: &NamespacedName) -> Option<V> {
        self.with(at, V::clone)
    }

    /// Reads the value of that name without cloning it.
    pub fn with<T>(&self, at: &NamespacedName, of: impl FnOnce(&V) -> T) -> Option<T> {
        self.read().item(at).map(|item| of(&item.value))
    }

    /// Returns the pool of that name.
    pub fn pool_key(&self, at: &NamespacedName) -> Option<PoolKey> {
        self.read().item(at).map(|item| item.pool_key.as_ref().clone())
    }

    /// Returns names and values of a pool, by name.
    pub fn list(&self, unit: &PoolKey) -> Vec<(String, V)> {
        let mut all = Vec::new();
        self.for_each(unit, |name, value| all.push((name.to_owned(), value.clone())));
        all
    }

    /// Calls `see` with names and values of a pool, by name.
    pub fn for_each(&self, unit: &PoolKey, mut see: impl FnMut(&str, &V)) {
        let inner = self.read();
        if inner.pool_counts.contains_key(unit) {
            let own = inner.items.get(&unit.namespace).into_iter().flatten();
            own.filter(|(_, item)| *item.pool_key == *unit).for_each(|(name, item)| see(name, &item.value));
        }
    }

    /// Returns all picked values, unordered.
    pub fn filter_map<T>(&self, mut pick: impl FnMut(&PoolKey, &V) -> Option<T>) -> Vec<T> {
        let inner = self.read();
        inner
            .items
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|item| pick(&item.pool_key, &item.value))
            .collect()
    }

    /// Returns all pools with objects.
    pub fn pool_keys(&self) -> Vec<PoolKey> {
        self.read().pool_counts.keys().map(|unit| unit.as_ref().clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.read().items.values().map(BTreeMap::len).sum()
    }

    /// Returns the number of objects in matching pools.
    pub fn count(&self, of: impl Fn(&PoolKey) -> bool) -> usize {
        self.read().pool_counts.iter().filter(|(unit, _)| of(unit)).map(|(_, count)| count).sum()
    }

    /// Sets a value, unless a later version is stored. Returns whether a relevant field changed.
    pub fn insert(&self, at: NamespacedName, unit: PoolKey, value: V) -> bool {
        let mut inner = self.write();
        match inner.item_mut(&at) {
            Some(item) if (self.is_newer)(&item.value, &value) => false,
            Some(item) if *item.pool_key == unit => {
                let changed = !(self.is_equivalent)(&item.value, &value);
                item.value = value;
                changed
            }
            _ => {
                inner.remove(&at);
                let unit = inner.interned(unit);
                *inner.pool_counts.entry(unit.clone()).or_default() += 1;
                let names = inner.items.entry(at.namespace).or_default();
                names.insert(at.name.into_boxed_str(), Box::new(Item { pool_key: unit, value }));
                true
            }
        }
    }

    /// Replaces an existing value, unless a later version is stored. A value that the watch removed is not restored.
    pub fn replace(&self, at: &NamespacedName, value: V) {
        if let Some(item) = self.write().item_mut(at).filter(|item| !(self.is_newer)(&item.value, &value)) {
            item.value = value;
        }
    }

    /// Removes a value. Returns its pool.
    pub fn remove(&self, at: &NamespacedName) -> Option<PoolKey> {
        self.write().remove(at).map(|unit| unit.as_ref().clone())
    }

    /// Removes the values in the namespace `scope` (`None` = all) that are not in `kept`. Returns the affected pools.
    pub fn retain(&self, scope: Option<&str>, kept: &HashSet<NamespacedName>) -> BTreeSet<PoolKey> {
        let mut inner = self.write();
        let within = |namespace: &&String| scope.is_none_or(|scope| *namespace == scope);
        let names = inner.items.keys().filter(within).flat_map(|namespace| inner.names(namespace));
        let gone: Vec<NamespacedName> = names.filter(|name| !kept.contains(name)).collect();
        gone.iter().filter_map(|name| inner.remove(name)).map(|unit| unit.as_ref().clone()).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<V>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<V>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Inner<V> {
    fn item(&self, at: &NamespacedName) -> Option<&Item<V>> {
        self.items.get(&at.namespace)?.get(at.name.as_str()).map(Box::as_ref)
    }

    fn item_mut(&mut self, at: &NamespacedName) -> Option<&mut Item<V>> {
        self.items.get_mut(&at.namespace)?.get_mut(at.name.as_str()).map(Box::as_mut)
    }

    fn names<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = NamespacedName> + 'a {
        let names = self.items.get(namespace).into_iter().flat_map(BTreeMap::keys);
        names.map(move |name| NamespacedName::new(namespace, name.as_ref()))
    }

    /// Returns the shared copy of `unit`.
    fn interned(&self, unit: PoolKey) -> Arc<PoolKey> {
        self.pool_counts.get_key_value(&unit).map_or_else(|| Arc::new(unit), |(known, _)| known.clone())
    }

    fn remove(&mut self, at: &NamespacedName) -> Option<Arc<PoolKey>> {
        let names = self.items.get_mut(&at.namespace)?;
        let Item { pool_key: unit, .. } = *names.remove(at.name.as_str())?;
        if names.is_empty() {
            self.items.remove(&at.namespace);
        }
        if let Some(count) = self.pool_counts.get_mut(&unit) {
            *count -= 1;
            if *count == 0 {
                self.pool_counts.remove(&unit);
            }
        }
        Some(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_key(pool: &str) -> PoolKey {
        PoolKey { namespace: "ns".into(), pool: pool.into() }
    }

    #[test]
    fn reinsert_under_other_pool_moves_object() {
        let mirror: Store<u32> = Store::new(|a, b| a == b);
        assert!(mirror.insert(NamespacedName::new("ns", "x"), pool_key("p"), 1));
        assert!(!mirror.insert(NamespacedName::new("ns", "x"), pool_key("p"), 1));
        assert!(mirror.insert(NamespacedName::new("ns", "x"), pool_key("p"), 2));
        assert_eq!(mirror.list(&pool_key("p")), [("x".to_owned(), 2)]);
        assert!(mirror.insert(NamespacedName::new("ns", "x"), pool_key("q"), 2));
        assert_eq!((mirror.list(&pool_key("p")), mirror.pool_keys()), (vec![], vec![pool_key("q")]));
        assert_eq!(mirror.remove(&NamespacedName::new("ns", "x")), Some(pool_key("q")));
        assert_eq!((mirror.len(), mirror.pool_keys()), (0, vec![]));
    }

    #[test]
    fn stale_view_neither_replaces_nor_restores_object() {
        let mirror: Store<u32> = Store::versioned(|a, b| a == b, |known, other| known > other);
        let at = NamespacedName::new("ns", "x");
        mirror.replace(&at, 1);
        assert_eq!(mirror.get(&at), None);
        mirror.insert(at.clone(), pool_key("p"), 3);
        // The answer to a write has version 2, and the watch has delivered version 3.
        mirror.replace(&at, 2);
        assert!(!mirror.insert(at.clone(), pool_key("p"), 2) && !mirror.insert(at.clone(), pool_key("q"), 2));
        assert_eq!((mirror.get(&at), mirror.pool_key(&at)), (Some(3), Some(pool_key("p"))));
        mirror.replace(&at, 4);
        assert!(mirror.insert(at.clone(), pool_key("q"), 5));
        assert_eq!((mirror.get(&at), mirror.pool_key(&at)), (Some(5), Some(pool_key("q"))));
    }

    #[test]
    fn relist_removes_only_objects_in_scope() {
        let mirror: Store<u32> = Store::new(|a, b| a == b);
        for (namespace, name) in [("ns", "kept"), ("ns", "gone"), ("other", "far")] {
            mirror.insert(
                NamespacedName::new(namespace, name),
                PoolKey { namespace: namespace.into(), pool: "p".into() },
                0,
            );
        }
        let kept = HashSet::from([NamespacedName::new("ns", "kept")]);
        assert_eq!(mirror.retain(Some("ns"), &kept), BTreeSet::from([pool_key("p")]));
        assert_eq!(mirror.len(), 2);
        mirror.retain(None, &kept);
        assert_eq!(mirror.len(), 1);
    }
}

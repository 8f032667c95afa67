//! A store of pruned objects by name, with an index by unit.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Unit;

/// Namespace and name; objects without a namespace have an empty one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Name {
    /// `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Name {
        Name { namespace: namespace.into(), name: name.into() }
    }
}

/// A store of `V`. There are tens of thousands of objects, so a name is kept once and a unit is shared.
#[derive(Debug)]
pub struct Mirror<V> {
    inner: RwLock<Inner<V>>,
    /// Whether a change from one to the other matters to nobody.
    same: fn(&V, &V) -> bool,
    /// Whether the first is a later view of the same object than the second.
    later: fn(&V, &V) -> bool,
}

#[derive(Debug)]
struct Inner<V> {
    /// By namespace and name: a namespace has a pool or a few, so what is of a unit is found by going through its namespace.
    /// Boxed: names come in their order, and half of a tree that is filled so is room for more.
    items: HashMap<String, BTreeMap<Box<str>, Box<Item<V>>>>,
    /// How many each unit has.
    units: HashMap<Arc<Unit>, usize>,
}

#[derive(Debug)]
struct Item<V> {
    unit: Arc<Unit>,
    value: V,
}

impl<V: Clone> Mirror<V> {
    /// An empty mirror that only a watch fills. `same` says whether two values differ in nothing that matters.
    pub fn new(same: fn(&V, &V) -> bool) -> Self {
        Mirror::of_views(same, |_, _| false)
    }

    /// An empty mirror that a watch and the answers to writes fill, in any order. `later` says whether the first is a later view
    /// of the same object than the second. An earlier view never replaces a later one.
    pub fn of_views(same: fn(&V, &V) -> bool, later: fn(&V, &V) -> bool) -> Self {
        Mirror { inner: RwLock::new(Inner { items: HashMap::new(), units: HashMap::new() }), same, later }
    }

    /// The value of that name.
    pub fn get(&self, at: &Name) -> Option<V> {
        self.with(at, V::clone)
    }

    /// Something of the value of that name, without a copy of it.
    pub fn with<T>(&self, at: &Name, of: impl FnOnce(&V) -> T) -> Option<T> {
        self.read().item(at).map(|item| of(&item.value))
    }

    /// The unit of that name.
    pub fn unit(&self, at: &Name) -> Option<Unit> {
        self.read().item(at).map(|item| item.unit.as_ref().clone())
    }

    /// Names and values of a unit, in the order of their names.
    pub fn of(&self, unit: &Unit) -> Vec<(String, V)> {
        let mut all = Vec::new();
        self.each_of(unit, |name, value| all.push((name.to_owned(), value.clone())));
        all
    }

    /// Goes through names and values of a unit, in the order of their names.
    pub fn each_of(&self, unit: &Unit, mut see: impl FnMut(&str, &V)) {
        let inner = self.read();
        if inner.units.contains_key(unit) {
            let own = inner.items.get(&unit.namespace).into_iter().flatten();
            own.filter(|(_, item)| *item.unit == *unit).for_each(|(name, item)| see(name, &item.value));
        }
    }

    /// Everything, in no order.
    pub fn all<T>(&self, mut pick: impl FnMut(&Unit, &V) -> Option<T>) -> Vec<T> {
        let inner = self.read();
        inner
            .items
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|item| pick(&item.unit, &item.value))
            .collect()
    }

    /// All units that have any.
    pub fn units(&self) -> Vec<Unit> {
        self.read().units.keys().map(|unit| unit.as_ref().clone()).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read().items.values().map(BTreeMap::len).sum()
    }

    /// How many are of such units.
    pub fn count(&self, of: impl Fn(&Unit) -> bool) -> usize {
        self.read().units.iter().filter(|(unit, _)| of(unit)).map(|(_, count)| count).sum()
    }

    /// Sets a value, unless a later view is there; says whether that matters to anybody.
    pub fn put(&self, at: Name, unit: Unit, value: V) -> bool {
        let mut inner = self.write();
        match inner.item_mut(&at) {
            Some(item) if (self.later)(&item.value, &value) => false,
            Some(item) if *item.unit == unit => {
                let changed = !(self.same)(&item.value, &value);
                item.value = value;
                changed
            }
            _ => {
                inner.remove(&at);
                let unit = inner.shared(unit);
                *inner.units.entry(unit.clone()).or_default() += 1;
                let names = inner.items.entry(at.namespace).or_default();
                names.insert(at.name.into_boxed_str(), Box::new(Item { unit, value }));
                true
            }
        }
    }

    /// Sets the value of a name that is there, unless a later view is. What the watch has taken away stays away.
    pub fn replace(&self, at: &Name, value: V) {
        if let Some(item) = self.write().item_mut(at).filter(|item| !(self.later)(&item.value, &value)) {
            item.value = value;
        }
    }

    /// Takes a value away; answers its unit.
    pub fn remove(&self, at: &Name) -> Option<Unit> {
        self.write().remove(at).map(|unit| unit.as_ref().clone())
    }

    /// Takes away what is in the namespace `scope` (`None` = anywhere) and not among `kept`; answers the units concerned.
    pub fn retain(&self, scope: Option<&str>, kept: &HashSet<Name>) -> BTreeSet<Unit> {
        let mut inner = self.write();
        let within = |namespace: &&String| scope.is_none_or(|scope| *namespace == scope);
        let names = inner.items.keys().filter(within).flat_map(|namespace| inner.names(namespace));
        let gone: Vec<Name> = names.filter(|name| !kept.contains(name)).collect();
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
    fn item(&self, at: &Name) -> Option<&Item<V>> {
        self.items.get(&at.namespace)?.get(at.name.as_str()).map(Box::as_ref)
    }

    fn item_mut(&mut self, at: &Name) -> Option<&mut Item<V>> {
        self.items.get_mut(&at.namespace)?.get_mut(at.name.as_str()).map(Box::as_mut)
    }

    fn names<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = Name> + 'a {
        let names = self.items.get(namespace).into_iter().flat_map(BTreeMap::keys);
        names.map(move |name| Name::new(namespace, name.as_ref()))
    }

    /// `unit`, as the others of it have it.
    fn shared(&self, unit: Unit) -> Arc<Unit> {
        self.units.get_key_value(&unit).map_or_else(|| Arc::new(unit), |(known, _)| known.clone())
    }

    fn remove(&mut self, at: &Name) -> Option<Arc<Unit>> {
        let names = self.items.get_mut(&at.namespace)?;
        let Item { unit, .. } = *names.remove(at.name.as_str())?;
        if names.is_empty() {
            self.items.remove(&at.namespace);
        }
        if let Some(count) = self.units.get_mut(&unit) {
            *count -= 1;
            if *count == 0 {
                self.units.remove(&unit);
            }
        }
        Some(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(pool: &str) -> Unit {
        Unit { namespace: "ns".into(), pool: pool.into() }
    }

    #[test]
    fn a_unit_has_what_was_put_under_it_and_moves_when_it_is_put_elsewhere() {
        let mirror: Mirror<u32> = Mirror::new(|a, b| a == b);
        assert!(mirror.put(Name::new("ns", "x"), unit("p"), 1));
        assert!(!mirror.put(Name::new("ns", "x"), unit("p"), 1));
        assert!(mirror.put(Name::new("ns", "x"), unit("p"), 2));
        assert_eq!(mirror.of(&unit("p")), [("x".to_owned(), 2)]);
        assert!(mirror.put(Name::new("ns", "x"), unit("q"), 2));
        assert_eq!((mirror.of(&unit("p")), mirror.units()), (vec![], vec![unit("q")]));
        assert_eq!(mirror.remove(&Name::new("ns", "x")), Some(unit("q")));
        assert_eq!((mirror.len(), mirror.units()), (0, vec![]));
    }

    #[test]
    fn an_earlier_view_replaces_no_later_one_and_brings_none_back() {
        let mirror: Mirror<u32> = Mirror::of_views(|a, b| a == b, |known, other| known > other);
        let at = Name::new("ns", "x");
        mirror.replace(&at, 1);
        assert_eq!(mirror.get(&at), None);
        mirror.put(at.clone(), unit("p"), 3);
        // The answer to a write has version 2, and the watch has brought version 3.
        mirror.replace(&at, 2);
        assert!(!mirror.put(at.clone(), unit("p"), 2) && !mirror.put(at.clone(), unit("q"), 2));
        assert_eq!((mirror.get(&at), mirror.unit(&at)), (Some(3), Some(unit("p"))));
        mirror.replace(&at, 4);
        assert!(mirror.put(at.clone(), unit("q"), 5));
        assert_eq!((mirror.get(&at), mirror.unit(&at)), (Some(5), Some(unit("q"))));
    }

    #[test]
    fn a_new_list_takes_away_only_what_it_covers() {
        let mirror: Mirror<u32> = Mirror::new(|a, b| a == b);
        for (namespace, name) in [("ns", "kept"), ("ns", "gone"), ("other", "far")] {
            mirror.put(Name::new(namespace, name), Unit { namespace: namespace.into(), pool: "p".into() }, 0);
        }
        let kept = HashSet::from([Name::new("ns", "kept")]);
        assert_eq!(mirror.retain(Some("ns"), &kept), BTreeSet::from([unit("p")]));
        assert_eq!(mirror.len(), 2);
        mirror.retain(None, &kept);
        assert_eq!(mirror.len(), 1);
    }
}

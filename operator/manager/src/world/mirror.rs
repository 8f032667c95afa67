//! A store of pruned objects by name, with an index by unit.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

/// A store of `V`.
#[derive(Debug)]
pub struct Mirror<V> {
    inner: RwLock<Inner<V>>,
    /// Whether a change from one to the other matters to nobody.
    same: fn(&V, &V) -> bool,
}

#[derive(Debug)]
struct Inner<V> {
    items: HashMap<Name, (Unit, V)>,
    units: HashMap<Unit, BTreeSet<String>>,
}

impl<V: Clone> Mirror<V> {
    /// An empty one; `same` tells whether a change matters to nobody.
    pub fn new(same: fn(&V, &V) -> bool) -> Self {
        Mirror { inner: RwLock::new(Inner { items: HashMap::new(), units: HashMap::new() }), same }
    }

    /// The value of that name.
    pub fn get(&self, at: &Name) -> Option<V> {
        self.read().items.get(at).map(|(_, value)| value.clone())
    }

    /// Names and values of a unit, in the order of their names.
    pub fn of(&self, unit: &Unit) -> Vec<(String, V)> {
        let inner = self.read();
        let names = inner.units.get(unit).into_iter().flatten();
        let value = |name: &String| {
            let (_, value) = inner.items.get(&Name::new(unit.namespace.clone(), name.clone()))?;
            Some((name.clone(), value.clone()))
        };
        names.filter_map(value).collect()
    }

    /// Everything, in no order.
    pub fn all<T>(&self, mut pick: impl FnMut(&Name, &Unit, &V) -> Option<T>) -> Vec<T> {
        self.read().items.iter().filter_map(|(name, (unit, value))| pick(name, unit, value)).collect()
    }

    /// All units that have any.
    pub fn units(&self) -> Vec<Unit> {
        self.read().units.keys().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read().items.len()
    }

    /// Sets a value; says whether that matters to anybody.
    pub fn put(&self, at: Name, unit: Unit, value: V) -> bool {
        let mut inner = self.write();
        match inner.items.get_mut(&at) {
            Some((old, known)) if *old == unit => {
                let changed = !(self.same)(known, &value);
                *known = value;
                changed
            }
            _ => {
                inner.remove(&at);
                inner.units.entry(unit.clone()).or_default().insert(at.name.clone());
                inner.items.insert(at, (unit, value));
                true
            }
        }
    }

    /// Takes a value away; answers its unit.
    pub fn remove(&self, at: &Name) -> Option<Unit> {
        self.write().remove(at)
    }

    /// Takes away what is in the namespace `scope` (`None` = anywhere) and not among `kept`; answers the units concerned.
    pub fn retain(&self, scope: Option<&str>, kept: &HashSet<Name>) -> BTreeSet<Unit> {
        let mut inner = self.write();
        let within = |name: &Name| scope.is_none_or(|scope| name.namespace == scope);
        let gone: Vec<Name> =
            inner.items.keys().filter(|name| within(name) && !kept.contains(*name)).cloned().collect();
        gone.iter().filter_map(|name| inner.remove(name)).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<V>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<V>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Inner<V> {
    fn remove(&mut self, at: &Name) -> Option<Unit> {
        let (unit, _) = self.items.remove(at)?;
        if let Some(names) = self.units.get_mut(&unit) {
            names.remove(&at.name);
            if names.is_empty() {
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

//! The host tier: places for columns in host memory, and the cached columns there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::columns::Columns;
use crate::ids::ColumnId;

/// Places for whole columns, and the unreferenced columns in them.
#[derive(Clone, Debug, Default)]
pub(super) struct HostKvPool {
    columns: u32,
    /// Places that were used and are free again.
    vacant: Vec<u32>,
    /// The first place that was never used.
    fresh: u32,
    /// Shareable unreferenced columns, least recently used first.
    idle: BTreeMap<u64, ColumnId>,
    /// The same columns by the name of their preceding column.
    children: BTreeSet<(u64, ColumnId)>,
}

impl HostKvPool {
    pub fn new(columns: u32) -> HostKvPool {
        HostKvPool { columns, ..HostKvPool::default() }
    }

    /// Returns the capacity, columns.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Returns the number of used places.
    pub fn used(&self) -> u32 {
        self.fresh - self.vacant.len() as u32
    }

    /// Returns the number of free places.
    pub fn room(&self) -> u32 {
        self.columns - self.used()
    }

    /// Returns the number of unreferenced columns.
    pub fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    /// Returns a free place for a column.
    ///
    /// # Panics
    /// If no place is free.
    pub fn take(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            assert!(self.fresh < self.columns, "a place is taken only when there is one");
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Frees a place.
    pub fn give(&mut self, place: u32) {
        self.vacant.push(place);
    }

    /// Keeps a column as cache when its last reference is dropped.
    pub fn keep(&mut self, stamp: u64, parent: u64, id: ColumnId) {
        self.idle.insert(stamp, id);
        self.children.insert((parent, id));
    }

    /// Removes a cached column from the cache because it is referenced again.
    pub fn reuse(&mut self, stamp: u64, parent: u64, id: ColumnId) {
        self.idle.remove(&stamp);
        self.children.remove(&(parent, id));
    }

    /// Returns the release stamp of the least recently used cached column.
    pub fn oldest(&self) -> Option<u64> {
        self.idle.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// Removes the least recently used column from the cache.
    pub fn take_oldest(&mut self, columns: &Columns) -> Option<ColumnId> {
        let (_, id) = self.idle.pop_first()?;
        let content = columns.get(id).content.as_ref().expect("an idle column is shareable");
        self.children.remove(&(content.parent, id));
        Some(id)
    }

    /// Removes the children of the column named `parent` from the cache.
    pub fn take_children(&mut self, parent: u64, columns: &Columns) -> Vec<ColumnId> {
        let of_parent = (parent, ColumnId(0))..=(parent, ColumnId(u32::MAX));
        let children: Vec<_> = self.children.range(of_parent).map(|(_, id)| *id).collect();
        children.iter().for_each(|id| self.reuse(columns.get(*id).stamp, parent, *id));
        children
    }

    /// Checks that every cached column is one of `columns` and has both of its keys.
    pub fn check(&self, columns: &Columns) {
        assert_eq!(self.idle.len(), self.children.len(), "cached columns have two keys");
        for (stamp, id) in &self.idle {
            let column = columns.get(*id);
            let parent = column.content.as_ref().map(|content| content.parent);
            assert_eq!((column.refs, column.stamp), (0, *stamp), "{id:?} is cache");
            assert!(
                parent.is_some_and(|parent| self.children.contains(&(parent, *id))),
                "{id:?} has a parent"
            );
        }
        let used = columns.iter().filter(|(_, column)| column.host_location.is_some()).count() as u32;
        assert!(self.used() >= used && self.used() <= self.columns, "every stowed column has a place");
    }
}

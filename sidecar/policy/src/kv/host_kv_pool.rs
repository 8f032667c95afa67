//! The host tier: room for columns in host memory, and the cached ones that lie there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::columns::Columns;
use crate::ids::ColumnId;

/// Room, in whole columns, and unused columns in it.
#[derive(Clone, Debug, Default)]
pub(super) struct HostKvPool {
    columns: u32,
    /// Places that were used and are not.
    vacant: Vec<u32>,
    /// Places from here on were never used.
    fresh: u32,
    /// Shareable columns that nobody uses, longest unused first.
    idle: BTreeMap<u64, ColumnId>,
    /// The same by the name of the column before each.
    children: BTreeSet<(u64, ColumnId)>,
}

impl HostKvPool {
    pub fn new(columns: u32) -> HostKvPool {
        HostKvPool { columns, ..HostKvPool::default() }
    }

    /// Room in all.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Places in use.
    pub fn used(&self) -> u32 {
        self.fresh - self.vacant.len() as u32
    }

    /// Places that may be taken.
    pub fn room(&self) -> u32 {
        self.columns - self.used()
    }

    /// Columns here that nobody uses.
    pub fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    /// A place for a column.
    ///
    /// # Panics
    /// If there is no room.
    pub fn take(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            assert!(self.fresh < self.columns, "a place is taken only when there is one");
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// A place is free again.
    pub fn give(&mut self, place: u32) {
        self.vacant.push(place);
    }

    /// Nobody uses the column any more; it stays as cache.
    pub fn keep(&mut self, stamp: u64, parent: u64, id: ColumnId) {
        self.idle.insert(stamp, id);
        self.children.insert((parent, id));
    }

    /// Somebody uses a cached column.
    pub fn reuse(&mut self, stamp: u64, parent: u64, id: ColumnId) {
        self.idle.remove(&stamp);
        self.children.remove(&(parent, id));
    }

    /// When the unused column that was let go first was let go.
    pub fn oldest(&self) -> Option<u64> {
        self.idle.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// The unused column that was let go first is cache no longer.
    pub fn take_oldest(&mut self, columns: &Columns) -> Option<ColumnId> {
        let (_, id) = self.idle.pop_first()?;
        let content = columns.get(id).content.as_ref().expect("an idle column is shareable");
        self.children.remove(&(content.parent, id));
        Some(id)
    }

    /// Unused columns that follow the one of this name are cache no longer.
    pub fn take_children(&mut self, parent: u64, columns: &Columns) -> Vec<ColumnId> {
        let of_parent = (parent, ColumnId(0))..=(parent, ColumnId(u32::MAX));
        let children: Vec<_> = self.children.range(of_parent).map(|(_, id)| *id).collect();
        children.iter().for_each(|id| self.reuse(columns.get(*id).stamp, parent, *id));
        children
    }

    /// Every unused column here is one of `columns`, under both of its keys.
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

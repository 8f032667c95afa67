//! Which extents of the engine have memory, and under which names the memory manager knows them.
//!
//! To the memory manager an extent is a request whose KV is complete. While the engine is held, an extent that no request
//! of the engine uses is closed: its KV is unreferenced cache, which the memory manager evicts when it needs memory. An
//! extent that was not evicted is opened again before the engine goes on.

use std::collections::BTreeMap;

use sluice_policy::geometry::BLOCK_TOKENS;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{Admission, CachedPrefix, MemoryManager, SuspendReason, TableChange};
use sluice_ports::block_budget::{ExtentId, ExtentMemory};

/// An extent that has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granted {
    /// The memory manager holds it for this request.
    Open(RequestId),
    /// Its KV is cache.
    Idle,
    /// The tenant sleeps: its KV may be in the host tier.
    Suspended(RequestId),
}

/// The extents of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    /// Extents that the engine has addresses for.
    total: u32,
    /// KV blocks of the memory manager in an extent.
    kv_blocks: u32,
    granted: BTreeMap<ExtentId, Granted>,
    requests: BTreeMap<RequestId, ExtentId>,
    next_request: u64,
    /// The request that each granted extent was opened for first. It distinguishes the extent's KV from that of other
    /// times.
    salts: BTreeMap<ExtentId, u64>,
    /// Extents granted and withdrawn since the engine went on last.
    new: Vec<ExtentId>,
    gone: Vec<ExtentId>,
}

impl Extents {
    /// The extents of an engine that has just attached: none has memory.
    pub fn attach(&mut self, total: u32, kv_blocks: u32) {
        assert!(self.granted.is_empty(), "the extents of the former engine were closed");
        (self.total, self.kv_blocks) = (total, kv_blocks);
        (self.new, self.gone) = (Vec::new(), Vec::new());
    }

    /// Extents that have memory.
    pub fn granted(&self) -> u32 {
        self.granted.len() as u32
    }

    /// Extents that could be granted in addition.
    pub fn room(&self) -> u32 {
        self.total - self.granted()
    }

    /// KV blocks of the memory manager in an extent.
    pub fn kv_blocks(&self) -> u32 {
        self.kv_blocks
    }

    /// Closes the extents that no request of the engine uses, in this order: the first is evicted first.
    pub fn close_idle(&mut self, idle: &[ExtentId], manager: &mut MemoryManager) {
        for extent in idle.iter().filter(|extent| **extent != ExtentId::NULL) {
            let Some(state) = self.granted.get_mut(extent) else { continue };
            if let Granted::Open(request) = *state {
                *state = Granted::Idle;
                self.requests.remove(&request);
                manager.close(request);
            }
        }
    }

    /// Withdraws idle extents that the memory manager has evicted.
    pub fn drop_evicted(&mut self, manager: &MemoryManager) {
        let idle =
            self.granted.iter().filter(|(_, state)| **state == Granted::Idle).map(|(extent, _)| *extent);
        let evicted: Vec<_> = idle.filter(|extent| self.prefix(*extent, manager).is_none()).collect();
        evicted.into_iter().for_each(|extent| self.withdraw(extent));
    }

    /// Withdraws all idle extents, whose KV stays cache until its memory is needed. Returns whether there were any.
    pub fn drop_idle(&mut self) -> bool {
        let is_idle = |(extent, state): (&ExtentId, &Granted)| (*state == Granted::Idle).then_some(*extent);
        let idle: Vec<_> = self.granted.iter().filter_map(is_idle).collect();
        idle.iter().for_each(|extent| self.withdraw(*extent));
        !idle.is_empty()
    }

    /// The engine gave these extents back: it knows that it has them no more. Others than granted ones are ignored.
    pub fn retire(&mut self, extents: &[ExtentId], manager: &mut MemoryManager) {
        for extent in extents.iter().filter(|extent| **extent != ExtentId::NULL) {
            // One that was evicted in this hold: the engine did not know it yet, and does now.
            self.gone.retain(|one| one != extent);
            let Some(state) = self.granted.remove(extent) else { continue };
            if let Granted::Open(request) | Granted::Suspended(request) = state {
                self.requests.remove(&request);
                manager.close(request);
            }
            self.salts.remove(extent);
            self.new.retain(|one| one != extent);
        }
    }

    /// The engine is lost: all of its KV is.
    pub fn close_all(&mut self, manager: &mut MemoryManager) {
        self.requests.keys().for_each(|request| manager.close(*request));
        *self = Extents { next_request: self.next_request, ..Extents::default() };
    }

    fn withdraw(&mut self, extent: ExtentId) {
        if let Some(Granted::Open(request) | Granted::Suspended(request)) = self.granted.remove(&extent) {
            self.requests.remove(&request);
        }
        self.salts.remove(&extent);
        match self.new.iter().position(|one| *one == extent) {
            Some(at) => drop(self.new.remove(at)),
            None => self.gone.push(extent),
        }
    }

    /// The admissions that open every idle extent, and resume every suspended one.
    pub fn reopening(&self, manager: &MemoryManager) -> Vec<(ExtentId, Admission)> {
        let mut next = self.next_request;
        let mut admissions = Vec::new();
        for (extent, state) in &self.granted {
            match *state {
                Granted::Open(_) => {}
                Granted::Suspended(request) => admissions.push((*extent, Admission::suspended(request))),
                Granted::Idle => {
                    let Some(prefix) = self.prefix(*extent, manager) else { continue };
                    admissions.push((*extent, Admission::new(RequestId(next), prefix)));
                    next += 1;
                }
            }
        }
        admissions
    }

    /// The admissions of `count` further extents, with their KV blocks. `after` admissions precede them.
    pub fn opening(
        &self,
        count: u32,
        after: &[(ExtentId, Admission)],
        manager: &MemoryManager,
    ) -> Vec<(ExtentId, Admission)> {
        let absent = (0..self.total).map(ExtentId).filter(|extent| !self.granted.contains_key(extent));
        let used =
            after.iter().filter(|(_, admission)| admission.request.0 >= self.next_request).count() as u64;
        let names = (self.next_request + used..).map(RequestId);
        let new = |(extent, request): (_, RequestId)| {
            (extent, Admission::new(request, manager.cached_prefix(request.0, &[])))
        };
        absent.zip(names).take(count as usize).map(new).collect()
    }

    /// The admissions were carried out: these extents are open.
    pub fn on_opened(&mut self, opened: &[(ExtentId, Admission)], manager: &mut MemoryManager) {
        for (extent, admission) in opened {
            let request = admission.request;
            let before = self.granted.insert(*extent, Granted::Open(request));
            self.requests.insert(request, *extent);
            self.next_request = self.next_request.max(request.0 + 1);
            if before.is_none() {
                self.salts.insert(*extent, request.0);
                manager.on_tokens_computed(request, &self.tokens(*extent));
                self.new.push(*extent);
            }
        }
    }

    /// The tenant falls asleep: its KV goes to the host tier.
    pub fn suspend_all(&mut self, manager: &mut MemoryManager) {
        for state in self.granted.values_mut() {
            if let Granted::Open(request) = *state {
                manager.suspend(request, SuspendReason::Sleep);
                *state = Granted::Suspended(request);
            }
        }
    }

    /// Names the extents and parts of these changes.
    pub fn memory_of(&self, changes: Vec<TableChange>) -> Vec<ExtentMemory> {
        let memory = |change: TableChange| {
            let extent = *self.requests.get(&change.request)?;
            Some(ExtentMemory { extent, part: change.kv_block, layers: change.layer_blocks })
        };
        changes.into_iter().filter_map(memory).collect()
    }

    /// Takes the extents that were granted and withdrawn since the last call.
    pub fn take_changes(&mut self) -> (Vec<ExtentId>, Vec<ExtentId>) {
        (std::mem::take(&mut self.new), std::mem::take(&mut self.gone))
    }

    /// Returns a fingerprint word for each granted extent.
    pub fn digest_words(&self) -> impl Iterator<Item = u64> + '_ {
        self.granted.iter().map(|(extent, state)| match *state {
            Granted::Idle => u64::from(extent.0) << 2,
            Granted::Open(request) => (request.0 << 32 | u64::from(extent.0)) << 2 | 1,
            Granted::Suspended(request) => (request.0 << 32 | u64::from(extent.0)) << 2 | 2,
        })
    }

    /// The cached KV of an idle extent; `None` if it is not complete any more.
    fn prefix(&self, extent: ExtentId, manager: &MemoryManager) -> Option<CachedPrefix> {
        let salt = *self.salts.get(&extent)?;
        // The last token of a request is never looked up.
        let tokens = [self.tokens(extent), vec![extent.0]].concat();
        let prefix = manager.cached_prefix(salt, &tokens);
        (prefix.kv_block_count() == self.kv_blocks).then_some(prefix)
    }

    /// Names of the contents of an extent: no other KV has them.
    fn tokens(&self, extent: ExtentId) -> Vec<u32> {
        vec![extent.0; (self.kv_blocks * BLOCK_TOKENS) as usize]
    }
}

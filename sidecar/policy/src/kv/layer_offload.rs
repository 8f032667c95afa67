//! KV that stays in the host tier while its request runs (OrbitFlow, Pie): staging slots, buffers and the fetches of
//! each step.
//!
//! Full KV blocks that a [`Placement`] names are written to the host tier in parallel with steps and get a *staging
//! slot*. Their blocks of the named layers are then evicted from the device. Each step fetches these layers one after
//! the other into a few buffers, which the block tables name instead: slot `k` is block `k` of each buffer. Full
//! KV blocks never change, so each is written once.
//!
//! Moving KV layers share buffers as moving weight layers share slots, with the same sequence of generations
//! ([`Slots`]). A fetch covers the slots that existed when it was ordered. A block is evicted when every fetch that a
//! later step reads covers its slot; the tables name the buffer from the first step whose fetch does.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

mod fetch;
mod host_places;
mod paused;
mod placement;
mod prefill_spill;
mod spills;
mod staging;
mod write_back;

use crate::action::staging::StagingTable;
use crate::ids::{Generation, KvBlockId, LayerBlockId, LayerId, RequestId, SlotId};
use crate::kv::blocks::KvBlocks;
use crate::layer_set::LayerSet;
use crate::slots::Slots;
use crate::step_model::Layout;
use spills::Spills;

/// The offloaded layers of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// All layers with offloaded KV, and the number of buffers they share. Each buffer serves at least two layers.
    pub layout: Layout,
    /// Sets of offloaded layers, each ascending and part of the layout.
    pub sets: Vec<Vec<LayerId>>,
    /// The set index of each request. The KV of other requests is on the device.
    pub of: BTreeMap<RequestId, u16>,
}

impl Placement {
    /// Returns a placement with one set for all of these requests.
    pub fn uniform(layout: Layout, requests: impl Iterator<Item = RequestId>) -> Placement {
        let sets = vec![layout.moving.clone()];
        Placement { layout, sets, of: requests.map(|request| (request, 0)).collect() }
    }

    /// Whether both placements offload the same layers of the same requests, regardless of set numbers.
    pub fn is_equivalent(&self, other: &Placement) -> bool {
        self.layout == other.layout && self.away().eq(other.away())
    }

    /// Returns the offloaded layers of each request.
    fn away(&self) -> impl Iterator<Item = (RequestId, &[LayerId])> + '_ {
        self.of.iter().map(|(request, set)| (*request, self.sets[usize::from(*set)].as_slice()))
    }
}

/// A KV block in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StagingSlot {
    kv_block: KvBlockId,
    set: u16,
    /// A request that uses the KV block, and the KV block's index in it.
    user: (RequestId, u32),
}

/// The state of partly offloaded KV blocks.
#[derive(Clone, Debug, Default)]
pub struct LayerOffload {
    /// Layers of the model.
    layers: u32,
    placement: Placement,
    /// The placement's sets.
    sets: Vec<Set>,
    slots: Slots,
    staging_slots: Vec<Option<StagingSlot>>,
    free_slots: u32,
    /// The blocks of each buffer, at least one per staging slot.
    buffers: Vec<Vec<LayerBlockId>>,
    /// Staging slots that each fetch covers.
    covered: Coverage,
    /// For each layer, the staging slots for which the tables name the buffer.
    slots_in_tables: Vec<u32>,
    /// For each layer, the staging slots whose own blocks are evicted.
    evicted_slots: Vec<u32>,
    /// Fetches in progress, oldest first, and the newest one ordered.
    fetching: VecDeque<Generation>,
    newest: Generation,
    /// Host places that a fetch in progress may still read, with the newest such fetch.
    pinned_places: Vec<(Generation, u32)>,
    /// Prefills that are offloaded during their computation.
    prefill_spills: Spills,
    /// Whether the step in progress neither reads nor writes buffers.
    are_buffers_idle: bool,
    /// Whether fetching is disabled after a failure, until another placement is in force.
    is_fetching_disabled: bool,
    /// KV blocks with complete copies that wait for a staging slot.
    ready: VecDeque<StagingSlot>,
    /// The table of staging slots for the backend, up to the last update.
    table: Arc<StagingTable>,
}

/// A set of the placement, in the form that steps need.
#[derive(Clone, Debug)]
struct Set {
    members: LayerSet,
    /// Each layer with its buffer.
    places: Vec<(LayerId, SlotId)>,
}

impl Set {
    fn of(set: &[LayerId], layout: &Layout) -> Set {
        let places = set.iter().filter_map(|layer| Some((*layer, layout.slot_of(*layer)?)));
        Set { members: set.iter().copied().collect(), places: places.collect() }
    }
}

/// Groups layers by their range of staging slots; empty ranges are omitted.
fn group_by_slots(spans: impl Iterator<Item = (LayerId, [u32; 2])>) -> BTreeMap<[u32; 2], LayerSet> {
    let mut groups: BTreeMap<_, LayerSet> = BTreeMap::new();
    for (layer, [from, to]) in spans.filter(|(_, [from, to])| from < to) {
        groups.entry([from, to]).or_default().insert(layer);
    }
    groups
}

/// The number of covered staging slots by fetch generation, oldest first.
#[derive(Clone, Debug, Default)]
struct Coverage(VecDeque<(Generation, u32)>);

impl Coverage {
    /// Records the coverage of a fetch, unless it is already recorded.
    fn record(&mut self, generation: Generation, slots: u32) {
        if let Err(at) = self.find(generation) {
            self.0.insert(at, (generation, slots));
        }
    }

    fn get(&self, generation: Generation) -> Option<u32> {
        self.find(generation).ok().map(|at| self.0[at].1)
    }

    /// Returns the coverage of each generation, if recorded. Consecutive generations are found without a search.
    fn walk(&self, generations: impl Iterator<Item = Generation>) -> impl Iterator<Item = Option<u32>> {
        let mut next = 0;
        generations.map(move |generation| {
            let known = |at: &usize| self.0.get(*at).is_some_and(|(known, _)| *known == generation);
            let at = Some(next).filter(known).or_else(|| self.find(generation).ok())?;
            next = at + 1;
            Some(self.0[at].1)
        })
    }

    /// Drops the coverage of fetches before `oldest`, which no step reads any more.
    fn forget_before(&mut self, oldest: Option<Generation>) {
        match oldest {
            Some(oldest) => drop(self.0.drain(..self.find(oldest).unwrap_or_else(|at| at))),
            None => self.0.clear(),
        }
    }

    fn find(&self, generation: Generation) -> Result<usize, usize> {
        // Most queries are for a newer generation than all recorded ones.
        match self.0.back() {
            Some((newest, _)) if *newest < generation => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&generation, |(known, _)| *known),
        }
    }
}

impl LayerOffload {
    /// Nothing is offloaded, of a model of `layers` layers.
    pub(super) fn new(layers: u16) -> LayerOffload {
        LayerOffload { layers: layers.into(), ..LayerOffload::default() }
    }

    /// Returns the number of blocks of all buffers.
    pub fn buffer_layer_blocks(&self) -> u32 {
        self.buffers.iter().map(|buffer| buffer.len() as u32).sum()
    }

    /// Returns the number of host places that no longer belong to a KV block.
    pub(super) fn pinned_host_places(&self) -> u32 {
        self.pinned_places.len() as u32
    }

    /// Returns the layers whose block may be offloaded for this staging slot.
    fn members(&self, slot: u32) -> LayerSet {
        self.staging_slots[slot as usize]
            .map_or(LayerSet::NONE, |staged| self.sets[usize::from(staged.set)].members)
    }

    /// Returns the layers of a KV block whose layer block is neither on the device nor in a buffer.
    pub(super) fn missing(&self, id: KvBlockId, kv_blocks: &KvBlocks) -> LayerSet {
        let slot = kv_blocks.get(id).staging_slot();
        kv_blocks.missing_layer_blocks_of(id) - slot.map_or(LayerSet::NONE, |slot| self.members(slot))
    }

    /// Returns the number of a used KV block's layer blocks that are neither on the device nor in a buffer.
    pub(super) fn lacking(&self, id: KvBlockId, kv_blocks: &KvBlocks) -> u32 {
        let used = kv_blocks.find(id).is_some_and(|kv_block| kv_block.refs > 0);
        if used { self.missing(id, kv_blocks).len() } else { 0 }
    }

    fn set(&self, set: u16) -> &[LayerId] {
        &self.placement.sets[usize::from(set)]
    }

    fn set_index(&mut self, members: LayerSet) -> u16 {
        let at = self.sets.iter().position(|known| known.members == members).unwrap_or_else(|| {
            let set: Vec<_> = members.iter().collect();
            self.sets.push(Set::of(&set, &self.placement.layout));
            self.placement.sets.push(set);
            self.sets.len() - 1
        });
        u16::try_from(at).expect("there are no more sets than requests")
    }

    /// Records a fetch in progress.
    fn record_fetch(&mut self, generation: Generation) {
        let later = self.fetching.iter().rev().take_while(|known| **known > generation).count();
        let at = self.fetching.len() - later;
        if at == 0 || self.fetching[at - 1] != generation {
            self.fetching.insert(at, generation);
        }
        self.newest = self.newest.max(generation);
    }

    /// Returns the blocks from which steps read a KV block: its own, or those of a buffer.
    pub(super) fn table_layer_blocks(&self, id: KvBlockId, kv_blocks: &KvBlocks) -> Vec<LayerBlockId> {
        let mut layer_blocks = kv_blocks.layer_blocks(id).to_vec();
        if let Some(slot) = kv_blocks.get(id).staging_slot() {
            self.fill_table_layer_blocks(slot, &mut layer_blocks);
        }
        layer_blocks
    }

    /// Replaces the blocks that the tables name in buffers for this staging slot.
    fn fill_table_layer_blocks(&self, slot: u32, layer_blocks: &mut [LayerBlockId]) {
        let Some(StagingSlot { set, .. }) = self.staging_slots[slot as usize] else { return };
        for (layer, buffer) in &self.sets[usize::from(set)].places {
            if slot < self.slots_in_tables[layer.index()] {
                layer_blocks[layer.index()] = self.buffers[buffer.index()][slot as usize];
            }
        }
    }

    /// Removes the request from the placement and the spills.
    pub(super) fn forget_request(&mut self, request: RequestId) {
        self.placement.of.remove(&request);
        self.prefill_spills.forget(request);
    }

    /// Disables fetching. Returns the staged KV blocks.
    pub(super) fn disable_fetching(&mut self) -> BTreeSet<KvBlockId> {
        self.is_fetching_disabled = true;
        self.staging_slots.iter().flatten().map(|staged| staged.kv_block).collect()
    }

    /// Frees a staging slot.
    fn vacate(&mut self, slot: u32) {
        self.staging_slots[slot as usize] = None;
        if (slot as usize) < self.table.slots.len() {
            Arc::make_mut(&mut self.table).slots[slot as usize] = None;
        }
        self.free_slots += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(sets: &[&[u16]], of: &[(u64, u16)]) -> Placement {
        let sets: Vec<Vec<_>> = sets.iter().map(|set| set.iter().copied().map(LayerId).collect()).collect();
        let layout = Layout { moving: (0..4).map(LayerId).collect(), beta: 1 };
        Placement { layout, sets, of: of.iter().map(|(request, set)| (RequestId(*request), *set)).collect() }
    }

    #[test]
    fn placements_with_renumbered_sets_are_equivalent() {
        let one = placement(&[&[0, 1], &[2, 3]], &[(1, 0), (2, 1)]);
        assert!(one.is_equivalent(&placement(&[&[2, 3], &[0, 1, 2], &[0, 1]], &[(1, 2), (2, 0)])));
        let others = [
            placement(&[&[0, 1], &[2, 3]], &[(1, 1), (2, 0)]),
            placement(&[&[0, 1], &[2, 3]], &[(1, 0)]),
            placement(&[&[0, 1], &[2, 3]], &[(1, 0), (3, 1)]),
            Placement { layout: Layout::resident(), ..one.clone() },
        ];
        others.iter().for_each(|other| assert!(!one.is_equivalent(other), "{other:?}"));
    }

    /// Two KV blocks of four layers in staging slots 0 and 1, of which layers 0 and 1 are offloaded through one buffer.
    fn staged() -> (LayerOffload, KvBlocks) {
        let mut kv_blocks = KvBlocks::new(4);
        let placement = placement(&[&[0, 1]], &[(1, 0)]);
        let mut offload = LayerOffload {
            slots: Slots::new(placement.layout.clone(), vec![None]),
            buffers: vec![vec![LayerBlockId(90), LayerBlockId(91)]],
            sets: vec![Set::of(&placement.sets[0], &placement.layout)],
            slots_in_tables: vec![0; 4],
            evicted_slots: vec![0; 4],
            placement,
            ..LayerOffload::new(4)
        };
        for at in 0..2 {
            let kv_block = kv_blocks.add();
            let own = [0, 1, 2, 3].map(|layer| LayerBlockId(at * 4 + layer));
            kv_blocks.set_layer_blocks(kv_block, &own);
            kv_blocks.set_staging_slot(kv_block, Some(at));
            offload.staging_slots.push(Some(StagingSlot { kv_block, set: 0, user: (RequestId(1), at) }));
        }
        (offload, kv_blocks)
    }

    #[test]
    fn tables_name_the_buffer_for_covered_slots_and_layers_of_the_set() {
        let (mut offload, kv_blocks) = staged();
        let table = |offload: &LayerOffload, id| offload.table_layer_blocks(KvBlockId(id), &kv_blocks);
        assert_eq!(table(&offload, 1), [4, 5, 6, 7].map(LayerBlockId), "no fetch covers it");
        offload.slots_in_tables[1] = 2;
        assert_eq!(table(&offload, 1), [4, 91, 6, 7].map(LayerBlockId));
        assert_eq!(table(&offload, 0), [0, 90, 2, 3].map(LayerBlockId));
    }

    #[test]
    fn layers_in_a_buffer_are_not_missing() {
        let (offload, mut kv_blocks) = staged();
        let all = [0, 1, 2].map(LayerId).into_iter().collect();
        kv_blocks.take_layers(KvBlockId(0), all, &mut Vec::new());
        assert_eq!(offload.missing(KvBlockId(0), &kv_blocks).iter().collect::<Vec<_>>(), [LayerId(2)]);
        assert_eq!(offload.lacking(KvBlockId(0), &kv_blocks), 1);
        kv_blocks.get_mut(KvBlockId(0)).refs = 0;
        assert_eq!(offload.lacking(KvBlockId(0), &kv_blocks), 0, "no request needs it");
    }

    #[test]
    fn host_place_is_free_when_no_fetch_reads_it() {
        let (mut offload, _) = staged();
        let mut host_pool = crate::kv::host_kv_pool::HostKvPool::new(4);
        let places = [host_pool.take(), host_pool.take()];
        offload.record_fetch(Generation(5));
        offload.free_place(Some(1), places[0], &mut host_pool);
        assert_eq!((offload.slot_counts(), host_pool.room()), ((1, 1), 2), "the fetch may read it");
        offload.fetching.clear();
        offload.record_fetch(Generation(6));
        offload.release_pinned_places(&mut host_pool);
        assert_eq!((host_pool.room(), offload.pinned_host_places()), (3, 0), "a later fetch does not");
    }

    #[test]
    fn coverage_is_known_for_ordered_fetches_until_it_is_forgotten() {
        let mut coverage = Coverage::default();
        [(3, 1), (5, 2), (4, 9), (5, 7)]
            .iter()
            .for_each(|(name, slots)| coverage.record(Generation(*name), *slots));
        let walked =
            |coverage: &Coverage| coverage.walk([3, 4, 5, 6].map(Generation).into_iter()).collect::<Vec<_>>();
        assert_eq!(walked(&coverage), [Some(1), Some(9), Some(2), None], "the first record counts");
        coverage.forget_before(Some(Generation(5)));
        assert_eq!(walked(&coverage), [None, None, Some(2), None]);
    }
}

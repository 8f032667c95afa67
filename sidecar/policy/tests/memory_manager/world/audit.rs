//! The checker of the memory manager against the device.

use std::collections::{BTreeMap, BTreeSet};

use sluice_policy::action::Address;
use sluice_policy::ids::ChunkId;
use sluice_policy::memory_manager::MemoryManager;

use crate::memory_manager::device::Device;

/// Checks the capacity, that each chunk has one owner, and that both address tables are equal. Uses only the device and
/// the memory manager's plain lists.
pub fn audit(manager: &MemoryManager, device: &Device) {
    let created: BTreeSet<ChunkId> = manager.figures().ledger().owners().map(|(chunk, _)| chunk).collect();
    let capacity = device.geometry.capacity_chunks as usize;
    assert!(device.memory.chunks.len() <= capacity, "never more chunks than the capacity");
    let mapped: BTreeSet<ChunkId> = device.memory.table.values().copied().collect();
    let existing: BTreeSet<ChunkId> = device.memory.chunks.keys().copied().collect();
    assert!(mapped.is_subset(&existing), "what is mapped exists");
    if manager.status().is_blocked() {
        return;
    }
    assert_eq!(created, existing, "the ledger knows what exists");
    assert_eq!(
        manager.figures().addresses().collect::<BTreeMap<_, _>>(),
        device.memory.table,
        "both address tables are equal"
    );
    let by_owner: u32 = manager.figures().ledger().counts().map(|(_, count)| count).sum();
    assert_eq!(by_owner as usize, device.memory.chunks.len(), "capacity = the sum over owners");
    let free = manager.figures().ledger().free().count();
    assert_eq!(mapped.len() + free, device.memory.chunks.len(), "chunks are mapped or free, none is lost");
    let mut users: BTreeMap<ChunkId, Vec<Address>> = BTreeMap::new();
    for (address, chunk) in &device.memory.table {
        users.entry(*chunk).or_default().push(*address);
    }
    let mut left = 0;
    for (chunk, users) in users.iter().filter(|(_, users)| users.len() > 1) {
        if let [Address::Kv(_), Address::Activation(at)] = users[..] {
            assert!(
                at >= manager.figures().activation_chunks(),
                "{chunk:?} is KV, and a step could reach it: {users:?}"
            );
            left += 1;
            continue;
        }
        let moving = |a: &Address| matches!(a, Address::Layer(layer, _) if manager.figures().layout().moving.contains(layer));
        assert!(users.iter().all(moving), "{chunk:?} is shared by moving layers only: {users:?}");
    }
    assert_eq!(left, manager.figures().stale_addresses(), "what an inflation left behind is known");
}

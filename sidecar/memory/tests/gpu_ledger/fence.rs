//! The engine's view of the current epoch.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::time::Duration;

use sluice_memory::SliceFence;
use sluice_memory::gpu_ledger::{
    Epoch, GpuLedger, LedgerError, OVERDUE_GRACE, OpenError, ParticipantHandle, SliceOrder,
};

use super::env::LedgerEnv;

const ORDER: SliceOrder = SliceOrder::RoundRobin;
const LONG: Duration = Duration::from_secs(60);

fn open(participant: &ParticipantHandle) -> SliceFence {
    SliceFence::open(participant.liveness()).unwrap().expect("it has peers")
}

fn take(participant: &ParticipantHandle) -> Epoch {
    participant.slice_queue().request(0).unwrap();
    participant.slice_queue().acquire_within(ORDER, LONG).unwrap().expect("it gets the slice")
}

fn truncate(env: &LedgerEnv, file: &str, bytes: u64) -> File {
    let file = OpenOptions::new().write(true).open(env.folder().join(file)).unwrap();
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn epoch_is_stale_only_after_next_slice_starts() {
    let env = LedgerEnv::new();
    let participants = ["a", "b"].map(|name| env.open().join(name, 0, 0).unwrap());
    let fences = participants.each_ref().map(open);
    let passed = |epoch| fences.each_ref().map(|fence| fence.is_stale(epoch));
    assert_eq!((take(&participants[0]), passed(1), passed(0)), (Epoch(1), [false; 2], [false; 2]));
    participants[0].slice_queue().release().unwrap();
    assert_eq!(passed(1), [false; 2], "no other slice is in force");
    assert_eq!(
        (take(&participants[1]), passed(1), passed(2), passed(0)),
        (Epoch(2), [true; 2], [false; 2], [false; 2])
    );
    assert_eq!(passed(3), [true; 2], "an epoch that was not taken is not in force");
}

#[test]
fn non_lock_file_has_no_epoch() {
    let null = File::open("/dev/null").unwrap();
    assert!(SliceFence::open(null.as_fd()).unwrap().is_none());
    let pool = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for bytes in [0, 4096, 1 << 20] {
        rustix::fs::ftruncate(&pool, bytes).unwrap();
        assert!(SliceFence::open(pool.as_fd()).unwrap().is_none(), "{bytes} bytes");
    }
}

#[test]
fn an_engine_can_read_the_epoch_and_not_write_it() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 0).unwrap();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let locks = env.folder().join("locks").display().to_string();
        let ours = maps.lines().filter(|line| line.ends_with(&locks));
        let mut access: Vec<_> = ours.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
        access.sort_unstable();
        access
    };
    assert_eq!(mappings(), ["rw-s"], "the sidecar's");
    let fence = open(&participant);
    assert_eq!(mappings(), ["r--s", "rw-s"]);
    drop(fence);
    assert_eq!(mappings(), ["rw-s"]);
}

/// Opens more fences in total than a process can have guarded mappings at once.
#[test]
fn dropped_fence_frees_its_guard_slot() {
    let env = LedgerEnv::new();
    let participant = env.open().join("a", 0, 0).unwrap();
    for _ in 0..2000 {
        assert!(!open(&participant).is_stale(0));
    }
}

#[test]
fn epochs_continue_without_ledger() {
    let env = LedgerEnv::new();
    let [a, b] = ["a", "b"].map(|name| env.open().join(name, 0, 0).unwrap());
    let fence = open(&a);
    take(&a);
    truncate(&env, "ledger", 0);
    assert_eq!(a.slice_queue().held(), Some(Epoch(1)));
    a.slice_queue().release().unwrap();
    assert_eq!(take(&b), Epoch(2));
    assert!(fence.is_stale(1) && !fence.is_stale(2));
    assert_eq!(a.slice_queue().held(), None);
}

/// Then the locks alone decide: exclusive as before, and without takeovers.
#[test]
fn truncated_lock_file_ends_no_process_and_no_epoch_is_stale() {
    for (bytes, grown) in [(0, false), (1, false), (100, false), (4095, false), (0, true), (8, true)] {
        let env = LedgerEnv::new();
        let [a, b] = ["a", "b"].map(|name| env.open().join(name, 0, 0).unwrap());
        let fence = open(&a);
        let first = take(&a);
        let file = truncate(&env, "locks", bytes);
        if grown {
            file.set_len(4096).unwrap();
        }
        assert!(!fence.is_stale(first.0) && !fence.is_stale(7), "{bytes} bytes");
        assert!(SliceFence::open(a.liveness()).unwrap().is_none());
        assert_eq!(a.slice_queue().held(), Some(first), "{bytes} bytes");
        a.slice_queue().set_deadline(1).unwrap();
        b.slice_queue().request(0).unwrap();
        let vain = |participant: &ParticipantHandle, limit| {
            participant.slice_queue().acquire_within(ORDER, limit).unwrap().is_none()
        };
        assert!(vain(&b, 2 * OVERDUE_GRACE), "{bytes} bytes: the other has it");
        a.slice_queue().release().unwrap();
        let second = take(&b);
        assert_eq!(b.slice_queue().held(), Some(second));
        assert!(vain(&a, Duration::from_millis(50)), "{bytes} bytes: the other has it");
        b.slice_queue().release().unwrap();
        assert!(take(&a) > first, "{bytes} bytes: epochs of a tenant rise");
        assert_eq!(a.slice_queue().release(), Ok(()));
        assert_eq!(a.slice_queue().release(), Err(LedgerError::SliceNotHeld));
        a.reserve(10).unwrap();
        let refused = GpuLedger::open(env.folder(), &env.identity());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "others still use it");
    }
}

#[test]
fn taken_over_holder_releases_slice_lock() {
    let env = LedgerEnv::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| env.open().join(name, 0, 0).unwrap());
    take(&a);
    a.slice_queue().set_deadline(1).unwrap();
    take(&b);
    assert_eq!(a.slice_queue().held(), None);
    b.slice_queue().release().unwrap();
    // Without epochs a participant gets the time slice only if no description holds any of its bytes.
    truncate(&env, "locks", 0);
    take(&c);
}

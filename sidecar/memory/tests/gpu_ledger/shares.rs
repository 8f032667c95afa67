//! Shares that rise and fall while their participants are live: together they never exceed the GPU, even when
//! processes are killed.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_common::random::Rng;
use sluice_memory::gpu_ledger::{
    GpuLedger, JoinError, LedgerError, LedgerFaults, Participant, ParticipantHandle, ShareRequest,
};

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};
use super::raw;
use super::stress::HeldBytes;

const PROCESSES: usize = 6;
const OPERATIONS: u64 = 200;
const MAX_DURATION: Duration = Duration::from_secs(4);
const MAX_ROUNDS: usize = 60;
/// Upper bound of the writes of an operation.
const MAX_WRITES: u64 = 40;

fn share_request(share_bytes: u64) -> ShareRequest {
    ShareRequest { floor_bytes: 0, share_bytes, min_bytes: 0 }
}

fn participant(watch: &GpuLedger, handle: &ParticipantHandle) -> Participant {
    watch.survey().unwrap().into_iter().find(|one| one.peer == handle.peer()).unwrap()
}

#[test]
fn join_gets_remaining_share_if_at_least_minimum() {
    let env = LedgerEnv::new();
    let watch = env.open();
    let a = watch.join("a", 100, 700).unwrap();
    let few =
        watch.join_with("b", ShareRequest { floor_bytes: 0, share_bytes: 500, min_bytes: 301 }).unwrap_err();
    assert_eq!(
        few.to_string(),
        "the shares sum to 700 bytes, and 301 more exceed the capacity of 1000 bytes"
    );
    let floor = watch.join_with("b", ShareRequest { floor_bytes: 301, share_bytes: 500, min_bytes: 0 });
    assert!(matches!(floor, Err(JoinError::Overcommitted { what: "share", asked: 301, .. })));
    let b = watch.join_with("b", ShareRequest { floor_bytes: 300, share_bytes: 500, min_bytes: 0 }).unwrap();
    assert_eq!((b.share_bytes(), participant(&watch, &b).share_bytes), (300, 300));
    let none = watch.join_with("c", share_request(500)).unwrap();
    assert_eq!((none.share_bytes(), participant(&watch, &none).share_bytes), (0, 0));
    env.end(a);
    let d = watch.join_with("d", share_request(500)).unwrap();
    assert_eq!(d.share_bytes(), 500);
    assert_eq!(watch.audit().unwrap().shares_bytes, 800);
}

#[test]
fn share_rises_to_free_capacity_and_falls_to_floor() {
    let env = LedgerEnv::new();
    let watch = env.open();
    let (a, b) = (watch.join("a", 0, 700).unwrap(), watch.join_with("b", share_request(600)).unwrap());
    assert_eq!(b.share_bytes(), 300);
    assert_eq!(b.raise_share(600), Ok(300), "nothing is left");
    assert_eq!(a.release_share(500), Ok(500));
    assert_eq!(a.release_share(600), Ok(500), "it does not rise by that");
    assert_eq!(b.raise_share(450), Ok(450));
    assert_eq!(b.raise_share(100), Ok(450), "it does not fall by that");
    assert_eq!(b.raise_share(600), Ok(500));
    assert_eq!(a.raise_share(u64::MAX), Ok(500));
    a.set_floor(400).unwrap();
    assert_eq!(a.release_share(0), Ok(400));
    a.set_floor(100).unwrap();
    assert_eq!(a.release_share(50), Ok(100));
    assert_eq!((a.share_bytes(), participant(&watch, &a).share_bytes), (100, 100));
    assert_eq!((b.share_bytes(), participant(&watch, &b).share_bytes), (500, 500));
    // The share of an exited participant is free at once.
    env.end(b);
    assert_eq!(a.raise_share(u64::MAX), Ok(CAPACITY));
    assert_eq!(watch.audit().unwrap().shares_bytes, CAPACITY);
}

#[test]
#[should_panic(expected = "a floor of 301 bytes is within the share of 300")]
fn floor_above_share_panics() {
    let env = LedgerEnv::new();
    let _ = env.open().join("a", 0, 300).unwrap().set_floor(301);
}

#[test]
fn share_change_does_not_wait_for_frozen_peer() {
    let env = LedgerEnv::new();
    let participant = env.open().join("b", 0, 300).unwrap();
    let mut actor = env.spawn_joined("frozen", 300);
    actor.ok("freeze 1");
    actor.send("ask 400");
    actor.wait_until_stopped();
    let busy = || LedgerError::Busy { holder: "frozen (record 1)".to_owned(), waited_ms: 0 };
    assert_eq!(participant.raise_share(700), Err(busy()));
    assert_eq!(participant.release_share(100), Err(busy()));
    assert_eq!(participant.set_floor(100), Err(busy()));
    assert_eq!(participant.share_bytes(), 300, "nothing has changed");
    actor.resume();
    assert_eq!(actor.answer(), Some(Ok("400".to_owned())));
    assert_eq!(participant.raise_share(700), Ok(600));
}

#[test]
fn share_written_by_other_process_is_rejected() {
    let env = LedgerEnv::new();
    let (participant, other) = (env.open().join("a", 0, 300).unwrap(), env.open().join("b", 0, 300).unwrap());
    let ledger = OpenOptions::new().write(true).open(env.folder().join("ledger")).unwrap();
    // The first record follows the header's page; this is its third word.
    ledger.write_all_at(&900_u64.to_ne_bytes(), 4096 + 16).unwrap();
    for result in [participant.raise_share(1000), participant.release_share(0)] {
        assert!(matches!(result, Err(LedgerError::Damaged { .. })), "{result:?}");
    }
    assert_eq!(
        (participant.share_bytes(), other.raise_share(1000)),
        (300, Ok(300)),
        "no other tenant ends by it"
    );
}

/// Raises a share while another participant raises its own between the check and the write.
fn raise_interrupted(faults: LedgerFaults) -> Result<u64, LedgerError> {
    let env = LedgerEnv::new();
    let other = Arc::new(Mutex::new(None));
    let peer = other.clone();
    let tap = move || {
        let participant: Option<ParticipantHandle> = peer.lock().unwrap().take();
        if let Some(participant) = participant {
            let _ = participant.raise_share(CAPACITY);
            *peer.lock().unwrap() = Some(participant);
        }
    };
    let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..faults };
    let participant = env.open_with(faults).join("a", 0, 400).unwrap();
    *other.lock().unwrap() = Some(env.open().join("b", 0, 400).unwrap());
    participant.raise_share(CAPACITY).unwrap();
    participant.audit().map(|audit| audit.shares_bytes)
}

#[test]
fn raise_share_is_atomic_only_under_lock() {
    assert_eq!(raise_interrupted(LedgerFaults::default()), Ok(CAPACITY));
    let bad = raise_interrupted(LedgerFaults { unlocked_share: true, ..LedgerFaults::default() });
    assert_eq!(bad, Err(LedgerError::SharesOvercommitted { shares: 1200, capacity: CAPACITY }));
}

/// Kills a process before write `n` of the last command. Returns false if there are fewer writes.
fn kill_at_write(commands: &[&str], n: u64) -> bool {
    let env = LedgerEnv::new();
    let watch = env.open();
    let friend = watch.join("friend", 0, 300).unwrap();
    let (last, before) = commands.split_last().unwrap();
    let mut actor = env.spawn_process();
    actor.ok("open");
    for command in before {
        actor.ok(command);
    }
    actor.ok(&format!("die {n}"));
    if actor.request(last).is_some() {
        return false;
    }
    actor.kill();
    let shares = watch.audit().unwrap().shares_bytes;
    assert_eq!(shares, 300, "{last} at write {n}: the dead have none");
    assert_eq!(friend.raise_share(CAPACITY), Ok(CAPACITY), "{last} at write {n}");
    friend.release_share(300).unwrap();
    let heir = watch.join_with("victim", share_request(CAPACITY)).unwrap();
    assert_eq!(heir.share_bytes(), 700, "{last} at write {n}");
    true
}

#[test]
fn kill_before_any_write_of_share_frees_it() {
    let join = "join_for victim 500 0";
    let stories: [&[&str]; 5] = [
        &[join],
        &[join, "ask 600"],
        &[join, "cede 200"],
        &[join, "ask 700", "cede 100", "ask 650"],
        &[join, "floor 400", "cede 0"],
    ];
    for story in stories {
        let writes = (1..MAX_WRITES).take_while(|n| kill_at_write(story, *n)).count();
        assert!(writes > 0, "{story:?} writes something");
    }
}

/// The child's part: `count` random changes. A file of the test records the bytes that it uses: more after a
/// share was granted, less before it is released.
pub fn stress(
    participant: &ParticipantHandle,
    folder: &Path,
    at: u64,
    seed: u64,
    count: u64,
) -> Result<String, String> {
    let (mut rng, mut has) = (Rng::new(seed), HeldBytes::new(folder, at));
    has.set(participant.share_bytes());
    let mut changes = 0;
    for _ in 0..count {
        let before = participant.share_bytes();
        let result = if rng.below(2) == 0 {
            participant.raise_share(rng.below(CAPACITY + 1)).map(|granted| has.set(granted))
        } else {
            let less = rng.below(before + 1);
            has.set(less.min(has.bytes));
            participant.release_share(less).map(drop)
        };
        match result.and_then(|()| participant.audit()) {
            Ok(_) | Err(LedgerError::Busy { .. }) => {
                changes += u64::from(participant.share_bytes() != before)
            }
            Err(error) => return Err(format!("{error:?}")),
        }
    }
    Ok(changes.to_string())
}

/// The parent's part.
struct ShareStressTest {
    // Before `env`, so that they end before their folder is removed.
    processes: Vec<LedgerProcess>,
    env: LedgerEnv,
    started: u64,
    changes: u64,
}

impl ShareStressTest {
    fn new() -> ShareStressTest {
        let env = LedgerEnv::new();
        std::fs::write(env.folder().join("truth"), [0; 8 * PROCESSES]).unwrap();
        let mut dealt = ShareStressTest { processes: vec![], env, started: 0, changes: 0 };
        for _ in 0..PROCESSES {
            let actor = dealt.start();
            dealt.processes.push(actor);
        }
        dealt
    }

    fn start(&mut self) -> LedgerProcess {
        let mut actor = self.env.spawn_process();
        actor.ok("open");
        self.started += 1;
        actor.join_by(&format!("join_for tenant-{} {} 0", self.started, CAPACITY / 2));
        actor
    }

    /// All processes work. After one answer, stops all of them at an arbitrary point, compares the sums, and
    /// kills one.
    fn round(&mut self, rng: &mut Rng) {
        for (at, actor) in self.processes.iter_mut().enumerate() {
            actor.send(&format!("deal {at} {} {OPERATIONS}", rng.below(1 << 30) + 1));
        }
        let first = rng.below(PROCESSES as u64) as usize;
        let mut answers = vec![self.processes[first].answer()];
        self.processes.iter().for_each(LedgerProcess::stop);
        self.check();
        let victim = (first + 1 + rng.below(PROCESSES as u64 - 1) as usize) % PROCESSES;
        self.processes.iter().for_each(LedgerProcess::resume);
        self.processes[victim].kill();
        let truth = OpenOptions::new().write(true).open(self.env.folder().join("truth")).unwrap();
        truth.write_all_at(&[0; 8], 8 * victim as u64).unwrap();
        let others = (0..PROCESSES).filter(|at| *at != first && *at != victim);
        answers.extend(others.map(|at| self.processes[at].answer()));
        for answer in answers {
            self.changes += answer.expect("it lives").expect("it succeeds").parse::<u64>().unwrap();
        }
        self.processes[victim] = self.start();
        self.check();
        let audit = self.env.open().audit().unwrap();
        assert!(audit.shares_bytes <= CAPACITY, "{audit:?}");
    }

    fn check(&self) {
        let truth = std::fs::read(self.env.folder().join("truth")).unwrap();
        let used = truth.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        let records = raw::records(self.env.folder());
        let share = |actor: &LedgerProcess| {
            let own = records.iter().find(|record| record.instance == actor.peer.instance);
            own.expect("it has a record").share
        };
        let shares: Vec<u64> = self.processes.iter().map(share).collect();
        assert!(shares.iter().sum::<u64>() <= CAPACITY, "{shares:?}");
        for (used, share) in used.zip(&shares) {
            assert!(used <= *share, "{used} bytes are used of a share of {share}");
        }
    }
}

#[test]
fn shares_never_exceed_capacity_under_kills() {
    let seed = super::seed();
    println!("seed {seed}");
    let (mut rng, begun) = (Rng::new(seed), Instant::now());
    let (mut dealt, mut rounds) = (ShareStressTest::new(), 0);
    while rounds < MAX_ROUNDS && begun.elapsed() < MAX_DURATION {
        dealt.round(&mut rng);
        rounds += 1;
    }
    println!("{rounds} rounds, as many deaths, {} changes", dealt.changes);
    assert!(dealt.changes > 100, "shares rose and fell");
    dealt.processes.iter_mut().for_each(LedgerProcess::kill);
    let heir = dealt.env.open().join("heir", CAPACITY, CAPACITY).unwrap();
    assert_eq!(heir.share_bytes(), CAPACITY);
}

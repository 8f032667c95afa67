//! A process is killed before every single write of every operation that a tenant performs on its ledger. The
//! test tracks the actual bytes of each process. The ledger must never count fewer, must never grant counted
//! bytes twice, and must count exactly those bytes once the killed processes have exited. Then the survivor
//! and a new instance of the victim exchange loans normally.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use sluice_memory::gpu_ledger::{GpuLedger, LedgerError, Participant, ParticipantHandle, Peer};

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};
use super::raw;

const BYTES: u64 = 100;
/// Bytes of an earmark that were never held.
const SPARE: u64 = 40;
const NONCE: u64 = 7;
/// Upper bound of the writes of an operation.
const MAX_WRITES: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Lender,
    Borrower,
}
use Side::{Borrower as B, Lender as L};

impl Side {
    fn other(self) -> Side {
        if self == L { B } else { L }
    }

    fn name(self) -> &'static str {
        if self == L { "lender" } else { "borrower" }
    }
}

/// An operation of one side. `end` kills both its processes.
type Step = (Side, &'static str);

/// Each step of each scenario runs after all earlier steps, and its side is killed before each of its writes.
/// Together they cover all operations of a tenant except opening and joining, tested below, and time slices,
/// tested in `slice_kills`.
const SCENARIOS: [&[Step]; 10] = [
    &[(L, "release"), (L, "reserve"), (B, "release"), (B, "reserve"), (L, "floor"), (B, "floor")],
    // A loan and its return under one nonce.
    &[
        (L, "earmark"),
        (B, "accept"),
        (L, "clear"),
        (B, "clear"),
        (B, "earmark"),
        (L, "accept"),
        (B, "clear"),
        (L, "clear"),
    ],
    // The borrower's first `clear` finds the earmark still there and keeps the nonce.
    &[(L, "earmark"), (B, "accept"), (B, "clear"), (B, "release"), (L, "clear"), (B, "clear")],
    // The next part under one nonce, with nothing cleared in between, or on one side only.
    &[
        (L, "earmark"),
        (B, "accept"),
        (L, "earmark"),
        (B, "accept"),
        (L, "clear"),
        (L, "earmark"),
        (B, "accept"),
    ],
    &[(L, "earmark"), (L, "void"), (L, "reserve")],
    // A debt is paid with bytes that its debtor has never held.
    &[(B, "release"), (B, "earmark_spare"), (L, "accept"), (B, "clear"), (L, "clear")],
    // The other side is killed while an earmark is pending.
    &[(L, "earmark"), (B, "end"), (L, "void"), (L, "reserve")],
    &[(L, "earmark"), (B, "end"), (L, "clear")],
    &[(L, "earmark"), (B, "accept"), (B, "end"), (L, "clear")],
    &[(L, "earmark"), (B, "accept"), (L, "end"), (B, "clear")],
];

/// Actual bytes of each side, and bytes in transfer, as the test tracks them.
#[derive(Clone, Copy, Debug)]
struct ExpectedBytes {
    lender: u64,
    borrower: u64,
    in_transfer: u64,
}

/// Two processes, one of which is killed together with its engine; the test plays the engine.
struct KillTest {
    lender: LedgerProcess,
    borrower: LedgerProcess,
    ended: Option<Side>,
    ledger: GpuLedger,
    env: LedgerEnv,
    expected: ExpectedBytes,
}

impl KillTest {
    fn new(fault: Option<&str>) -> KillTest {
        let env = LedgerEnv::new();
        let start = |side: Side| {
            let mut actor = env.spawn_process();
            if let Some(fault) = fault {
                actor.ok(&format!("fault {fault}"));
            }
            actor.ok("open");
            actor.join(side.name(), CAPACITY / 2);
            actor
        };
        let (mut lender, mut borrower) = (start(L), start(B));
        // Use all bytes, so that anything counted twice exceeds the capacity.
        lender.ok("reserve 600");
        borrower.ok("reserve 400");
        let truth = ExpectedBytes { lender: 600, borrower: 400, in_transfer: 0 };
        KillTest { ledger: env.open(), env, lender, borrower, ended: None, expected: truth }
    }

    fn process(&mut self, side: Side) -> &mut LedgerProcess {
        if side == L { &mut self.lender } else { &mut self.borrower }
    }

    fn peer(&self, side: Side) -> Peer {
        if side == L { self.lender.peer } else { self.borrower.peer }
    }

    fn expected_of(&mut self, side: Side) -> &mut u64 {
        if side == L { &mut self.expected.lender } else { &mut self.expected.borrower }
    }

    /// Runs the operation on that side and updates the expected bytes by its effect and its answer. Returns
    /// `None` if the process was killed during it, otherwise whether it was granted.
    fn run(&mut self, (side, operation): Step) -> Option<bool> {
        if operation == "end" {
            self.end(side);
            return Some(true);
        }
        let Peer { index, instance } = self.peer(side.other());
        let command = match operation {
            "reserve" | "release" => format!("{operation} {BYTES}"),
            "earmark" => format!("earmark {index} {instance} {BYTES} 0 {NONCE}"),
            "earmark_spare" => format!("earmark {index} {instance} {} {SPARE} {NONCE}", BYTES - SPARE),
            "accept" => format!("accept {index} {instance} {NONCE} {BYTES}"),
            "void" => format!("void {NONCE}"),
            "floor" => "floor 50".to_owned(),
            _ => operation.to_owned(),
        };
        // The memory is freed before the ledger is updated.
        *self.expected_of(side) -= match operation {
            "release" | "earmark" => BYTES,
            "earmark_spare" => BYTES - SPARE,
            _ => 0,
        };
        let granted = self.process(side).request(&command)?.is_ok();
        if granted {
            self.on_success(side, operation);
        }
        Some(granted)
    }

    fn on_success(&mut self, side: Side, operation: &str) {
        match operation {
            "earmark" | "earmark_spare" => self.expected.in_transfer += BYTES,
            "void" => self.expected.in_transfer = 0,
            "accept" => {
                // Each side relies only on the ledger's answer, even if the other side has exited.
                self.expected.in_transfer = 0;
                *self.expected_of(side) += BYTES;
            }
            "reserve" => *self.expected_of(side) += BYTES,
            _ => {}
        }
    }

    /// Ends the sidecar and the engine of a side.
    fn end(&mut self, side: Side) {
        self.process(side).kill();
        self.env.wait_until_dead(self.peer(side));
        *self.expected_of(side) = 0;
        self.expected.in_transfer = 0;
        self.ended = Some(side);
    }

    fn alive(&self) -> Vec<u64> {
        let sides = [L, B].into_iter().filter(|side| self.ended != Some(*side));
        sides.map(|side| self.peer(side).instance).collect()
    }

    /// Checks that the ledger counts at least the bytes in use and at most the capacity.
    fn check(&self) -> Result<(), String> {
        let ExpectedBytes { lender, borrower, in_transfer: on_its_way } = self.expected;
        let (counted, unsettled) = raw::counted(self.env.folder(), &self.alive());
        if counted < lender + borrower + on_its_way {
            return Err(format!("{counted} bytes counted of {:?}", self.expected));
        }
        let audit = self.ledger.audit().map_err(|error| error.to_string())?;
        if (audit.counted_bytes, audit.unsettled_bytes) != (counted, unsettled) {
            return Err(format!("{audit:?}, but {counted} bytes and {unsettled} by the file"));
        }
        if counted - unsettled > CAPACITY {
            return Err(format!("{counted} bytes counted, {unsettled} twice"));
        }
        Ok(())
    }

    /// Checks that exactly `bytes` are counted.
    fn check_exact(&self, bytes: u64) {
        let audit = self.ledger.audit().unwrap();
        assert_eq!((audit.counted_bytes, audit.unsettled_bytes), (bytes, 0), "{:?}", self.expected);
    }

    /// Joins a new instance while `bytes` are counted, and checks that it can reserve exactly the rest.
    fn join_new_instance(&self, name: &str, bytes: u64) -> ParticipantHandle {
        self.check_exact(bytes);
        let participant = self.ledger.join(name, 0, CAPACITY / 2).unwrap();
        let books = self.participant(participant.peer());
        assert!(books.earmarks.is_empty() && books.accepted.is_empty() && books.held_bytes == 0, "{books:?}");
        let free = CAPACITY - bytes;
        let full = LedgerError::OutOfMemory { counted: bytes, capacity: CAPACITY, asked: free + 1 };
        assert_eq!(participant.reserve(free + 1), Err(full));
        participant.reserve(free).unwrap();
        participant
    }

    fn participant(&self, peer: Peer) -> Participant {
        self.ledger.survey().unwrap().into_iter().find(|one| one.peer == peer).unwrap()
    }

    /// Checks that the record contains no transfers, because none is pending.
    fn check_settled(&self, peer: Peer) {
        let books = self.participant(peer);
        assert!(books.earmarks.is_empty() && books.accepted.is_empty(), "{books:?}");
    }
}

/// Runs the last step of `story` and kills its process before write `n`. Returns false if there are fewer
/// writes.
fn kill_at_write(story: &[Step], n: u64) -> bool {
    let (step, before) = story.split_last().expect("a story has steps");
    let mut scene = KillTest::new(None);
    for step in before {
        assert_eq!(scene.run(*step), Some(true), "{step:?}");
        scene.check().unwrap();
    }
    let victim = step.0;
    let engine: OwnedFd = {
        let KillTest { env, lender, borrower, .. } = &mut scene;
        if victim == L { lender.receive_liveness(env) } else { borrower.receive_liveness(env) }
    };
    scene.process(victim).ok(&format!("die {n}"));
    if let Some(granted) = scene.run(*step) {
        assert!(granted, "{story:?} without a death");
        return false;
    }
    scene.process(victim).kill();
    // The sidecar has exited; its engine still has its memory.
    scene.check().unwrap();
    let survivor = Some(victim.other()).filter(|side| scene.ended != Some(*side));
    if let Some(survivor) = survivor {
        run_survivor(&mut scene, survivor);
    }
    drop(engine);
    scene.end(victim);
    match survivor {
        Some(survivor) => check_after_kill(&mut scene, victim, survivor),
        None => scene.env.end(scene.join_new_instance(victim.name(), 0)),
    }
    true
}

/// Runs all operations that the survivor could run next.
fn run_survivor(scene: &mut KillTest, survivor: Side) {
    for operation in ["accept", "void", "clear", "reserve"] {
        scene.run((survivor, operation)).expect("the survivor lives");
        scene.check().unwrap();
    }
}

/// Restarts the victim, and lets both lend to each other under the nonce of the failed loan. Then ends the
/// survivor too.
fn check_after_kill(scene: &mut KillTest, victim: Side, survivor: Side) {
    let (dead, friend) = (scene.peer(victim), scene.peer(survivor));
    let left = *scene.expected_of(survivor);
    let heir = scene.join_new_instance(victim.name(), left);
    assert_eq!(heir.index(), dead.index, "the record is used again");
    let Peer { index, instance } = heir.peer();
    scene.process(survivor).ok("clear");
    scene.check_settled(friend);
    heir.earmark(&friend, BYTES, 0, NONCE).unwrap();
    scene.process(survivor).ok(&format!("accept {index} {instance} {NONCE} {BYTES}"));
    scene.process(survivor).ok(&format!("earmark {index} {instance} {BYTES} 0 {NONCE}"));
    heir.accept(&friend, NONCE, BYTES).unwrap();
    scene.check_exact(CAPACITY);
    for _ in 0..2 {
        heir.clear_settled().unwrap();
        scene.process(survivor).ok("clear");
    }
    scene.check_settled(friend);
    scene.check_settled(heir.peer());
    assert_eq!((heir.held_bytes(), scene.participant(friend).held_bytes), (CAPACITY - left, left));
    scene.end(survivor);
    scene.check_exact(CAPACITY - left);
    heir.reserve(left).unwrap();
    scene.env.end(heir);
    scene.env.end(scene.join_new_instance("stranger", 0));
}

#[test]
fn kill_before_any_write_of_operation_keeps_accounting_exact() {
    let mut most = BTreeMap::new();
    for steps in SCENARIOS.iter().flat_map(|story| (1..=story.len()).map(|end| &story[..end])) {
        let step = steps[steps.len() - 1];
        if step.1 != "end" {
            let writes = (1..MAX_WRITES).take_while(|n| kill_at_write(steps, *n)).count();
            most.entry(step).and_modify(|most: &mut usize| *most = writes.max(*most)).or_insert(writes);
        }
    }
    println!("writes: {most:?}");
    assert!(most.values().all(|writes| *writes > 0), "each writes something: {most:?}");
}

#[test]
fn kill_before_any_write_of_open_or_join_does_not_block_next() {
    for operation in ["open", "join late 100"] {
        let mut writes = 0;
        while writes < MAX_WRITES {
            let env = LedgerEnv::new();
            let mut actor = env.spawn_process();
            // Create an exited participant's record, which joining has to clear.
            if operation != "open" {
                let mut dead = env.spawn_joined("late", 100);
                dead.ok("reserve 900");
                dead.kill();
                actor.ok("open");
            }
            actor.ok(&format!("die {}", writes + 1));
            if actor.request(operation).is_some() {
                break;
            }
            writes += 1;
            actor.kill();
            let participant = env.open().join("late", 0, CAPACITY).unwrap();
            participant.reserve(CAPACITY).unwrap();
            assert_eq!(participant.audit().unwrap().counted_bytes, CAPACITY);
        }
        assert!(writes >= 3, "{operation} writes several times, not {writes}");
    }
}

/// Runs a whole transfer with an optional fault and the checks above, for the negative control.
pub fn transfer_with(fault: Option<&str>) -> Result<(), String> {
    let mut scene = KillTest::new(fault);
    for step in [(L, "earmark"), (B, "accept"), (L, "clear")] {
        assert!(scene.run(step).is_some(), "both live");
        scene.check()?;
    }
    Ok(())
}

//! A process dies before every single write of every operation that a tenant does on its ledger. What the processes really
//! have is kept by the test itself; the ledger must never count less, never let anybody have what is counted, and count
//! exactly that once the dead are gone. Then the survivor and the next life of the dead trade as if nothing had been.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use sluice_memory::neighbourhood::{LedgerError, Neighbourhood, Participant, Peer, Seat};

use super::raw;
use super::stage::{Actor, CAPACITY, Stage};

const BYTES: u64 = 100;
/// Of an earmark with spare bytes, those that were never held.
const SPARE: u64 = 40;
const NONCE: u64 = 7;
/// No operation writes so often.
const MOST_WRITES: u64 = 40;

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

/// A side's operation. `end` is the death of both its processes.
type Step = (Side, &'static str);

/// Each step of each story is done with all before it done, and its side dies before each of its writes. Together: all that
/// a tenant does but opening, joining and turns, which are below and in `turn_kills`.
const STORIES: [&[Step]; 10] = [
    &[(L, "release"), (L, "reserve"), (B, "release"), (B, "reserve"), (L, "floor"), (B, "floor")],
    // A loan and its way home, under one name.
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
    // The next part under one name, with nothing cleared in between, or on one side only.
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
    // The other side dies with an earmark out.
    &[(L, "earmark"), (B, "end"), (L, "void"), (L, "reserve")],
    &[(L, "earmark"), (B, "end"), (L, "clear")],
    &[(L, "earmark"), (B, "accept"), (B, "end"), (L, "clear")],
    &[(L, "earmark"), (B, "accept"), (L, "end"), (B, "clear")],
];

/// What each side really has, and what is on its way to the other: the test's own account.
#[derive(Clone, Copy, Debug)]
struct Truth {
    lender: u64,
    borrower: u64,
    on_its_way: u64,
}

/// Two processes of which one is to die, with its engine, which the test stands for.
struct Scene {
    lender: Actor,
    borrower: Actor,
    ended: Option<Side>,
    watch: Neighbourhood,
    stage: Stage,
    truth: Truth,
}

impl Scene {
    fn new(fault: Option<&str>) -> Scene {
        let stage = Stage::new();
        let start = |side: Side| {
            let mut actor = stage.actor();
            if let Some(fault) = fault {
                actor.ok(&format!("fault {fault}"));
            }
            actor.ok("open");
            actor.join(side.name(), CAPACITY / 2);
            actor
        };
        let (mut lender, mut borrower) = (start(L), start(B));
        // Full, so that whatever is counted twice is more than there is.
        lender.ok("reserve 600");
        borrower.ok("reserve 400");
        let truth = Truth { lender: 600, borrower: 400, on_its_way: 0 };
        Scene { watch: stage.open(), stage, lender, borrower, ended: None, truth }
    }

    fn actor(&mut self, side: Side) -> &mut Actor {
        if side == L { &mut self.lender } else { &mut self.borrower }
    }

    fn peer(&self, side: Side) -> Peer {
        if side == L { self.lender.peer } else { self.borrower.peer }
    }

    fn has(&mut self, side: Side) -> &mut u64 {
        if side == L { &mut self.truth.lender } else { &mut self.truth.borrower }
    }

    /// The operation as that side runs it; the truth follows what was really done and what was answered. `None` when the
    /// process died of it, else whether it was granted.
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
        // Memory goes before the ledger is told.
        *self.has(side) -= match operation {
            "release" | "earmark" => BYTES,
            "earmark_spare" => BYTES - SPARE,
            _ => 0,
        };
        let granted = self.actor(side).ask(&command)?.is_ok();
        if granted {
            self.granted(side, operation);
        }
        Some(granted)
    }

    fn granted(&mut self, side: Side, operation: &str) {
        match operation {
            "earmark" | "earmark_spare" => self.truth.on_its_way += BYTES,
            "void" => self.truth.on_its_way = 0,
            "accept" => {
                // The ledger's answer is all that either side goes by, even where the other side has died.
                self.truth.on_its_way = 0;
                *self.has(side) += BYTES;
            }
            "reserve" => *self.has(side) += BYTES,
            _ => {}
        }
    }

    /// Neither its sidecar nor its engine is left.
    fn end(&mut self, side: Side) {
        self.actor(side).kill();
        self.stage.await_death(self.peer(side));
        *self.has(side) = 0;
        self.truth.on_its_way = 0;
        self.ended = Some(side);
    }

    fn alive(&self) -> Vec<u64> {
        let sides = [L, B].into_iter().filter(|side| self.ended != Some(*side));
        sides.map(|side| self.peer(side).instance).collect()
    }

    /// Nobody has what is not counted, and the ledger does not count more than there is.
    fn check(&self) -> Result<(), String> {
        let Truth { lender, borrower, on_its_way } = self.truth;
        let (counted, unsettled) = raw::counted(self.stage.folder(), &self.alive());
        if counted < lender + borrower + on_its_way {
            return Err(format!("{counted} bytes counted of {:?}", self.truth));
        }
        let audit = self.watch.audit().map_err(|error| error.to_string())?;
        if (audit.counted_bytes, audit.unsettled_bytes) != (counted, unsettled) {
            return Err(format!("{audit:?}, but {counted} bytes and {unsettled} by the file"));
        }
        if counted - unsettled > CAPACITY {
            return Err(format!("{counted} bytes counted, {unsettled} twice"));
        }
        Ok(())
    }

    /// Exactly `bytes` are counted.
    fn check_exact(&self, bytes: u64) {
        let audit = self.watch.audit().unwrap();
        assert_eq!((audit.counted_bytes, audit.unsettled_bytes), (bytes, 0), "{:?}", self.truth);
    }

    /// A life that begins now, where `bytes` are counted: exactly the rest is its to reserve.
    fn new_life(&self, name: &str, bytes: u64) -> Seat {
        self.check_exact(bytes);
        let seat = self.watch.join(name, 0, CAPACITY / 2).unwrap();
        let books = self.books(seat.peer());
        assert!(books.earmarks.is_empty() && books.accepted.is_empty() && books.held_bytes == 0, "{books:?}");
        let free = CAPACITY - bytes;
        let full = LedgerError::OutOfMemory { counted: bytes, capacity: CAPACITY, asked: free + 1 };
        assert_eq!(seat.reserve(free + 1), Err(full));
        seat.reserve(free).unwrap();
        seat
    }

    fn books(&self, peer: Peer) -> Participant {
        self.watch.survey().unwrap().into_iter().find(|one| one.peer == peer).unwrap()
    }

    /// What is on record of transfers, for nobody has one under way.
    fn check_settled(&self, peer: Peer) {
        let books = self.books(peer);
        assert!(books.earmarks.is_empty() && books.accepted.is_empty(), "{books:?}");
    }
}

/// Runs the last step of `story` with a death before write `n`; false when there are fewer writes.
fn die_at(story: &[Step], n: u64) -> bool {
    let (step, before) = story.split_last().expect("a story has steps");
    let mut scene = Scene::new(None);
    for step in before {
        assert_eq!(scene.run(*step), Some(true), "{step:?}");
        scene.check().unwrap();
    }
    let victim = step.0;
    let engine: OwnedFd = {
        let Scene { stage, lender, borrower, .. } = &mut scene;
        if victim == L { lender.lend_liveness(stage) } else { borrower.lend_liveness(stage) }
    };
    scene.actor(victim).ok(&format!("die {n}"));
    if let Some(granted) = scene.run(*step) {
        assert!(granted, "{story:?} without a death");
        return false;
    }
    scene.actor(victim).kill();
    // The sidecar is dead, its engine still has its memory.
    scene.check().unwrap();
    let survivor = Some(victim.other()).filter(|side| scene.ended != Some(*side));
    if let Some(survivor) = survivor {
        go_on(&mut scene, survivor);
    }
    drop(engine);
    scene.end(victim);
    match survivor {
        Some(survivor) => live_on(&mut scene, victim, survivor),
        None => scene.stage.end(scene.new_life(victim.name(), 0)),
    }
    true
}

/// What the survivor does next: everything that it could.
fn go_on(scene: &mut Scene, survivor: Side) {
    for operation in ["accept", "void", "clear", "reserve"] {
        scene.run((survivor, operation)).expect("the survivor lives");
        scene.check().unwrap();
    }
}

/// The dead begin a new life, and both lend each other something under the name of the loan that failed. Then the survivor
/// ends as well.
fn live_on(scene: &mut Scene, victim: Side, survivor: Side) {
    let (dead, friend) = (scene.peer(victim), scene.peer(survivor));
    let left = *scene.has(survivor);
    let heir = scene.new_life(victim.name(), left);
    assert_eq!(heir.index(), dead.index, "the record is used again");
    let Peer { index, instance } = heir.peer();
    scene.actor(survivor).ok("clear");
    scene.check_settled(friend);
    heir.earmark(&friend, BYTES, 0, NONCE).unwrap();
    scene.actor(survivor).ok(&format!("accept {index} {instance} {NONCE} {BYTES}"));
    scene.actor(survivor).ok(&format!("earmark {index} {instance} {BYTES} 0 {NONCE}"));
    heir.accept(&friend, NONCE, BYTES).unwrap();
    scene.check_exact(CAPACITY);
    for _ in 0..2 {
        heir.clear().unwrap();
        scene.actor(survivor).ok("clear");
    }
    scene.check_settled(friend);
    scene.check_settled(heir.peer());
    assert_eq!((heir.held_bytes(), scene.books(friend).held_bytes), (CAPACITY - left, left));
    scene.end(survivor);
    scene.check_exact(CAPACITY - left);
    heir.reserve(left).unwrap();
    scene.stage.end(heir);
    scene.stage.end(scene.new_life("stranger", 0));
}

#[test]
fn a_death_before_any_write_of_an_operation_neither_loses_a_byte_nor_promises_one_twice() {
    let mut most = BTreeMap::new();
    for steps in STORIES.iter().flat_map(|story| (1..=story.len()).map(|end| &story[..end])) {
        let step = steps[steps.len() - 1];
        if step.1 != "end" {
            let writes = (1..MOST_WRITES).take_while(|n| die_at(steps, *n)).count();
            most.entry(step).and_modify(|most: &mut usize| *most = writes.max(*most)).or_insert(writes);
        }
    }
    println!("writes: {most:?}");
    assert!(most.values().all(|writes| *writes > 0), "each writes something: {most:?}");
}

#[test]
fn a_death_before_any_write_of_opening_or_joining_leaves_room_for_the_next() {
    for operation in ["open", "join late 100"] {
        let mut writes = 0;
        while writes < MOST_WRITES {
            let stage = Stage::new();
            let mut actor = stage.actor();
            // A dead participant's record is there to be wiped.
            if operation != "open" {
                let mut dead = stage.joined("late", 100);
                dead.ok("reserve 900");
                dead.kill();
                actor.ok("open");
            }
            actor.ok(&format!("die {}", writes + 1));
            if actor.ask(operation).is_some() {
                break;
            }
            writes += 1;
            actor.kill();
            let seat = stage.open().join("late", 0, CAPACITY).unwrap();
            seat.reserve(CAPACITY).unwrap();
            assert_eq!(seat.audit().unwrap().counted_bytes, CAPACITY);
        }
        assert!(writes >= 3, "{operation} writes several times, not {writes}");
    }
}

/// For the negative control: a whole transfer with a faulty lender, as the checks above see it.
pub fn transfer_with(fault: Option<&str>) -> Result<(), String> {
    let mut scene = Scene::new(fault);
    for step in [(L, "earmark"), (B, "accept"), (L, "clear")] {
        assert!(scene.run(step).is_some(), "both live");
        scene.check()?;
    }
    Ok(())
}

//! A process dies before every single write of every operation. What the processes really have is kept by the test itself;
//! the ledger must never count less, never let anybody have what is counted, and count exactly that once the dead are gone.

use std::os::fd::OwnedFd;

use sluice_memory::neighbourhood::{LedgerError, Neighbourhood};

use super::raw;
use super::stage::{Actor, CAPACITY, Stage};

const BYTES: u64 = 100;
const NONCE: u64 = 7;
/// No operation writes so often.
const MOST_WRITES: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Lender,
    Borrower,
}

/// An operation, and those that have to come before it.
struct Case {
    victim: Side,
    operation: &'static str,
    before: &'static [(Side, &'static str)],
}

const CASES: [Case; 8] = [
    Case { victim: Side::Lender, operation: "reserve", before: &[(Side::Lender, "release")] },
    Case { victim: Side::Lender, operation: "release", before: &[] },
    Case { victim: Side::Lender, operation: "earmark", before: &[] },
    Case { victim: Side::Lender, operation: "take_back", before: &[(Side::Lender, "earmark")] },
    Case {
        victim: Side::Lender,
        operation: "clear",
        before: &[(Side::Lender, "earmark"), (Side::Borrower, "accept")],
    },
    Case { victim: Side::Borrower, operation: "accept", before: &[(Side::Lender, "earmark")] },
    Case {
        victim: Side::Borrower,
        operation: "clear",
        before: &[(Side::Lender, "earmark"), (Side::Borrower, "accept"), (Side::Lender, "clear")],
    },
    // The borrower's first `clear` finds the earmark still there and keeps the nonce.
    Case {
        victim: Side::Borrower,
        operation: "release",
        before: &[(Side::Lender, "earmark"), (Side::Borrower, "accept"), (Side::Borrower, "clear")],
    },
];

/// What each side really has, and what is on its way to the borrower: the test's own account.
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
    watch: Neighbourhood,
    stage: Stage,
    truth: Truth,
}

impl Scene {
    fn new(fault: Option<&str>) -> Scene {
        let stage = Stage::new();
        let start = |name| {
            let mut actor = stage.actor();
            if let Some(fault) = fault {
                actor.ok(&format!("fault {fault}"));
            }
            actor.ok("open");
            actor.join(name, CAPACITY / 2);
            actor
        };
        let (mut lender, mut borrower) = (start("lender"), start("borrower"));
        // Full, so that whatever is counted twice is more than there is.
        lender.ok("reserve 600");
        borrower.ok("reserve 400");
        let truth = Truth { lender: 600, borrower: 400, on_its_way: 0 };
        Scene { watch: stage.open(), stage, lender, borrower, truth }
    }

    fn side(&mut self, side: Side) -> &mut Actor {
        if side == Side::Lender { &mut self.lender } else { &mut self.borrower }
    }

    /// The operation as that side runs it; the truth follows what was really done and what was answered.
    /// False when the process died of it.
    fn run(&mut self, side: Side, operation: &str) -> bool {
        let (lender, borrower) = (self.lender.peer, self.borrower.peer);
        let command = match operation {
            "reserve" | "release" => format!("{operation} {BYTES}"),
            "earmark" => format!("earmark {} {} {BYTES} {NONCE}", borrower.index, borrower.instance),
            "accept" => format!("accept {} {} {NONCE}", lender.index, lender.instance),
            "take_back" => format!("take_back {NONCE}"),
            _ => operation.to_owned(),
        };
        // Memory goes before the ledger is told.
        if operation == "release" || operation == "earmark" {
            *self.has(side) -= BYTES;
        }
        let answer = self.side(side).ask(&command);
        if matches!(answer, Some(Ok(_))) {
            self.succeeded(side, operation);
        }
        answer.is_some()
    }

    fn succeeded(&mut self, side: Side, operation: &str) {
        match operation {
            "earmark" => self.truth.on_its_way += BYTES,
            "accept" | "take_back" => {
                // The ledger's answer is all that either side goes by, even where the other side has died.
                self.truth.on_its_way = 0;
                *self.has(side) += BYTES;
            }
            "reserve" => *self.has(side) += BYTES,
            _ => {}
        }
    }

    fn has(&mut self, side: Side) -> &mut u64 {
        if side == Side::Lender { &mut self.truth.lender } else { &mut self.truth.borrower }
    }

    fn alive(&self) -> [u64; 2] {
        [self.lender.peer.instance, self.borrower.peer.instance]
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

    /// Exactly `bytes` are counted, and exactly the rest can be reserved.
    fn check_exact(&self, bytes: u64, name: &str) {
        let audit = self.watch.audit().unwrap();
        assert_eq!((audit.counted_bytes, audit.unsettled_bytes), (bytes, 0));
        let seat = self.watch.join(name, 0, CAPACITY / 2).unwrap();
        let free = CAPACITY - bytes;
        let full = LedgerError::OutOfMemory { counted: bytes, capacity: CAPACITY, asked: free + 1 };
        assert_eq!(seat.reserve(free + 1), Err(full));
        seat.reserve(free).unwrap();
        self.stage.end(seat);
    }
}

/// What the survivor does next: everything that it could.
fn go_on(scene: &mut Scene, survivor: Side) -> Result<(), String> {
    let operations: &[&str] =
        if survivor == Side::Lender { &["take_back", "clear"] } else { &["accept", "clear"] };
    for operation in operations {
        assert!(scene.run(survivor, operation), "the survivor lives");
        scene.check()?;
    }
    Ok(())
}

/// Runs the case with a death before write `n`; false when there are fewer writes.
fn die_at(case: &Case, n: u64) -> bool {
    let mut scene = Scene::new(None);
    for (side, operation) in case.before {
        assert!(scene.run(*side, operation));
        scene.check().unwrap();
    }
    let stage_of = |scene: &mut Scene| -> OwnedFd {
        let Scene { stage, lender, borrower, .. } = scene;
        if case.victim == Side::Lender { lender.lend_liveness(stage) } else { borrower.lend_liveness(stage) }
    };
    let engine = stage_of(&mut scene);
    scene.side(case.victim).ok(&format!("die {n}"));
    let died = !scene.run(case.victim, case.operation);
    if !died {
        return false;
    }
    scene.side(case.victim).kill();
    let survivor = if case.victim == Side::Lender { Side::Borrower } else { Side::Lender };
    // The sidecar is dead, its engine still has its memory.
    scene.check().unwrap();
    go_on(&mut scene, survivor).unwrap();
    drop(engine);
    let dead = scene.side(case.victim).peer;
    scene.stage.await_death(dead);
    // Both are: exactly what the survivor has counts, also after it has looked again.
    *scene.has(case.victim) = 0;
    scene.truth.on_its_way = 0;
    let left = *scene.has(survivor);
    scene.check_exact(left, if case.victim == Side::Lender { "lender" } else { "borrower" });
    die_after(&mut scene, survivor);
    true
}

/// The survivor's last deeds, then its death: all is free.
fn die_after(scene: &mut Scene, survivor: Side) {
    for operation in ["take_back", "accept", "clear"] {
        assert!(scene.run(survivor, operation), "the survivor lives");
        let left = *scene.has(survivor);
        assert_eq!(scene.watch.audit().unwrap().counted_bytes, left);
    }
    scene.side(survivor).kill();
    let dead = scene.side(survivor).peer;
    scene.stage.await_death(dead);
    scene.check_exact(0, "heir");
}

#[test]
fn a_death_before_any_write_of_an_operation_neither_loses_a_byte_nor_promises_one_twice() {
    for case in &CASES {
        let writes = (1..MOST_WRITES).take_while(|n| die_at(case, *n)).count();
        println!("{:?} {}: {writes} writes", case.victim, case.operation);
        assert!(writes >= 1, "{:?} {} writes something", case.victim, case.operation);
    }
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
    for (side, operation) in [(Side::Lender, "earmark"), (Side::Borrower, "accept"), (Side::Lender, "clear")]
    {
        assert!(scene.run(side, operation));
        scene.check()?;
    }
    Ok(())
}

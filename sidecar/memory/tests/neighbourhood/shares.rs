//! Shares that rise and fall while their participants live: together never more than the GPU, whoever dies whenever.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_memory::neighbourhood::{
    JoinError, LedgerError, LedgerFaults, Neighbourhood, Participant, Seat, Wish,
};

use super::hammer::{Dice, Has};
use super::raw;
use super::stage::{Actor, CAPACITY, Stage};

const PROCESSES: usize = 6;
const OPERATIONS: u64 = 200;
const LONGEST: Duration = Duration::from_secs(4);
const MOST_ROUNDS: usize = 60;
/// No operation writes so often.
const MOST_WRITES: u64 = 40;

fn up_to(share_bytes: u64) -> Wish {
    Wish { floor_bytes: 0, share_bytes, least_bytes: 0 }
}

fn books(watch: &Neighbourhood, seat: &Seat) -> Participant {
    watch.survey().unwrap().into_iter().find(|one| one.peer == seat.peer()).unwrap()
}

#[test]
fn who_joins_gets_what_is_left_unless_that_is_of_no_use_to_it() {
    let stage = Stage::new();
    let watch = stage.open();
    let a = watch.join("a", 100, 700).unwrap();
    let few = watch.join_for("b", Wish { floor_bytes: 0, share_bytes: 500, least_bytes: 301 }).unwrap_err();
    assert_eq!(few.to_string(), "the shares sum to 700 bytes; 301 more do not fit the capacity of 1000");
    let floor = watch.join_for("b", Wish { floor_bytes: 301, share_bytes: 500, least_bytes: 0 });
    assert!(matches!(floor, Err(JoinError::Overcommitted { what: "share", asked: 301, .. })));
    let b = watch.join_for("b", Wish { floor_bytes: 300, share_bytes: 500, least_bytes: 0 }).unwrap();
    assert_eq!((b.share_bytes(), books(&watch, &b).share_bytes), (300, 300));
    let none = watch.join_for("c", up_to(500)).unwrap();
    assert_eq!((none.share_bytes(), books(&watch, &none).share_bytes), (0, 0));
    stage.end(a);
    let d = watch.join_for("d", up_to(500)).unwrap();
    assert_eq!(d.share_bytes(), 500);
    assert_eq!(watch.audit().unwrap().shares_bytes, 800);
}

#[test]
fn a_share_rises_as_far_as_others_leave_room_and_falls_no_lower_than_its_floor() {
    let stage = Stage::new();
    let watch = stage.open();
    let (a, b) = (watch.join("a", 0, 700).unwrap(), watch.join_for("b", up_to(600)).unwrap());
    assert_eq!(b.share_bytes(), 300);
    assert_eq!(b.ask_share(600), Ok(300), "nothing is left");
    assert_eq!(a.cede_share(500), Ok(500));
    assert_eq!(a.cede_share(600), Ok(500), "it does not rise by that");
    assert_eq!(b.ask_share(450), Ok(450));
    assert_eq!(b.ask_share(100), Ok(450), "it does not fall by that");
    assert_eq!(b.ask_share(600), Ok(500));
    assert_eq!(a.ask_share(u64::MAX), Ok(500));
    a.declare_floor(400).unwrap();
    assert_eq!(a.cede_share(0), Ok(400));
    a.declare_floor(100).unwrap();
    assert_eq!(a.cede_share(50), Ok(100));
    assert_eq!((a.share_bytes(), books(&watch, &a).share_bytes), (100, 100));
    assert_eq!((b.share_bytes(), books(&watch, &b).share_bytes), (500, 500));
    // What the dead had is free at once.
    stage.end(b);
    assert_eq!(a.ask_share(u64::MAX), Ok(CAPACITY));
    assert_eq!(watch.audit().unwrap().shares_bytes, CAPACITY);
}

#[test]
#[should_panic(expected = "a floor of 301 bytes is within the share of 300")]
fn a_floor_above_its_share_is_a_broken_invariant() {
    let stage = Stage::new();
    let _ = stage.open().join("a", 0, 300).unwrap().declare_floor(301);
}

#[test]
fn nobody_waits_for_a_frozen_neighbour_to_change_a_share() {
    let stage = Stage::new();
    let seat = stage.open().join("b", 0, 300).unwrap();
    let mut actor = stage.joined("frozen", 300);
    actor.ok("freeze 1");
    actor.tell("ask 400");
    actor.await_stop();
    let busy = || LedgerError::Busy { holder: "frozen (record 1)".to_owned(), waited_ms: 0 };
    assert_eq!(seat.ask_share(700), Err(busy()));
    assert_eq!(seat.cede_share(100), Err(busy()));
    assert_eq!(seat.declare_floor(100), Err(busy()));
    assert_eq!(seat.share_bytes(), 300, "nothing has changed");
    actor.go_on();
    assert_eq!(actor.answer(), Some(Ok("400".to_owned())));
    assert_eq!(seat.ask_share(700), Ok(600));
}

#[test]
fn a_share_that_somebody_else_wrote_is_trusted_no_more() {
    let stage = Stage::new();
    let (seat, other) = (stage.open().join("a", 0, 300).unwrap(), stage.open().join("b", 0, 300).unwrap());
    let ledger = OpenOptions::new().write(true).open(stage.folder().join("ledger")).unwrap();
    // The first record follows the header's page; its third word.
    ledger.write_all_at(&900_u64.to_ne_bytes(), 4096 + 16).unwrap();
    for result in [seat.ask_share(1000), seat.cede_share(0)] {
        assert!(matches!(result, Err(LedgerError::Damaged { .. })), "{result:?}");
    }
    assert_eq!((seat.share_bytes(), other.ask_share(1000)), (300, Ok(300)), "nobody else ends by it");
}

/// Between the look and the write of a share that rises somebody else asks as well.
fn meddled(faults: LedgerFaults) -> Result<u64, LedgerError> {
    let stage = Stage::new();
    let other = Arc::new(Mutex::new(None));
    let meddler = other.clone();
    let tap = move || {
        let seat: Option<Seat> = meddler.lock().unwrap().take();
        if let Some(seat) = seat {
            let _ = seat.ask_share(CAPACITY);
            *meddler.lock().unwrap() = Some(seat);
        }
    };
    let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..faults };
    let seat = stage.open_with(faults).join("a", 0, 400).unwrap();
    *other.lock().unwrap() = Some(stage.open().join("b", 0, 400).unwrap());
    seat.ask_share(CAPACITY).unwrap();
    seat.audit().map(|audit| audit.shares_bytes)
}

#[test]
fn look_and_rise_are_one_step_only_under_the_lock() {
    assert_eq!(meddled(LedgerFaults::default()), Ok(CAPACITY));
    let bad = meddled(LedgerFaults { unlocked_share: true, ..LedgerFaults::default() });
    assert_eq!(bad, Err(LedgerError::Overdealt { shares: 1200, capacity: CAPACITY }));
}

/// A process dies before write `n` of the last command; false when there are fewer writes.
fn die_at(commands: &[&str], n: u64) -> bool {
    let stage = Stage::new();
    let watch = stage.open();
    let friend = watch.join("friend", 0, 300).unwrap();
    let (last, before) = commands.split_last().unwrap();
    let mut actor = stage.actor();
    actor.ok("open");
    for command in before {
        actor.ok(command);
    }
    actor.ok(&format!("die {n}"));
    if actor.ask(last).is_some() {
        return false;
    }
    actor.kill();
    let shares = watch.audit().unwrap().shares_bytes;
    assert_eq!(shares, 300, "{last} at write {n}: the dead have none");
    assert_eq!(friend.ask_share(CAPACITY), Ok(CAPACITY), "{last} at write {n}");
    friend.cede_share(300).unwrap();
    let heir = watch.join_for("victim", up_to(CAPACITY)).unwrap();
    assert_eq!(heir.share_bytes(), 700, "{last} at write {n}");
    true
}

#[test]
fn a_death_before_any_write_of_a_share_leaves_it_to_others() {
    let join = "join_for victim 500 0";
    let stories: [&[&str]; 5] = [
        &[join],
        &[join, "ask 600"],
        &[join, "cede 200"],
        &[join, "ask 700", "cede 100", "ask 650"],
        &[join, "floor 400", "cede 0"],
    ];
    for story in stories {
        let writes = (1..MOST_WRITES).take_while(|n| die_at(story, *n)).count();
        assert!(writes > 0, "{story:?} writes something");
    }
}

/// The child's half: `count` random wishes. What it makes use of lies in a file of the test's own: more after it was granted,
/// less before it is told.
pub fn pound(seat: &Seat, folder: &Path, at: u64, seed: u64, count: u64) -> Result<String, String> {
    let (mut dice, mut has) = (Dice(seed), Has::new(folder, at));
    has.set(seat.share_bytes());
    let mut changes = 0;
    for _ in 0..count {
        let before = seat.share_bytes();
        let result = if dice.below(2) == 0 {
            seat.ask_share(dice.below(CAPACITY + 1)).map(|granted| has.set(granted))
        } else {
            let less = dice.below(before + 1);
            has.set(less.min(has.bytes));
            seat.cede_share(less).map(drop)
        };
        match result.and_then(|()| seat.audit()) {
            Ok(_) | Err(LedgerError::Busy { .. }) => changes += u64::from(seat.share_bytes() != before),
            Err(error) => return Err(format!("{error:?}")),
        }
    }
    Ok(changes.to_string())
}

/// The parent's half.
struct Dealt {
    // Before the stage, so that they end before their folder goes.
    actors: Vec<Actor>,
    stage: Stage,
    started: u64,
    changes: u64,
}

impl Dealt {
    fn new() -> Dealt {
        let stage = Stage::new();
        std::fs::write(stage.folder().join("truth"), [0; 8 * PROCESSES]).unwrap();
        let mut dealt = Dealt { actors: vec![], stage, started: 0, changes: 0 };
        for _ in 0..PROCESSES {
            let actor = dealt.start();
            dealt.actors.push(actor);
        }
        dealt
    }

    fn start(&mut self) -> Actor {
        let mut actor = self.stage.actor();
        actor.ok("open");
        self.started += 1;
        actor.sit(&format!("join_for tenant-{} {} 0", self.started, CAPACITY / 2));
        actor
    }

    /// Everybody works; one answer is waited for, all are stopped wherever they are, and the sums are compared. One dies.
    fn round(&mut self, dice: &mut Dice) {
        for (at, actor) in self.actors.iter_mut().enumerate() {
            actor.tell(&format!("deal {at} {} {OPERATIONS}", dice.below(1 << 30) + 1));
        }
        let first = dice.below(PROCESSES as u64) as usize;
        let mut answers = vec![self.actors[first].answer()];
        self.actors.iter().for_each(Actor::stop);
        self.check();
        let victim = (first + 1 + dice.below(PROCESSES as u64 - 1) as usize) % PROCESSES;
        self.actors.iter().for_each(Actor::go_on);
        self.actors[victim].kill();
        let truth = OpenOptions::new().write(true).open(self.stage.folder().join("truth")).unwrap();
        truth.write_all_at(&[0; 8], 8 * victim as u64).unwrap();
        let others = (0..PROCESSES).filter(|at| *at != first && *at != victim);
        answers.extend(others.map(|at| self.actors[at].answer()));
        for answer in answers {
            self.changes += answer.expect("it lives").expect("it succeeds").parse::<u64>().unwrap();
        }
        self.actors[victim] = self.start();
        self.check();
        let audit = self.stage.open().audit().unwrap();
        assert!(audit.shares_bytes <= CAPACITY, "{audit:?}");
    }

    fn check(&self) {
        let truth = std::fs::read(self.stage.folder().join("truth")).unwrap();
        let used = truth.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        let records = raw::records(self.stage.folder());
        let share = |actor: &Actor| {
            let own = records.iter().find(|record| record.instance == actor.peer.instance);
            own.expect("it has a record").share
        };
        let shares: Vec<u64> = self.actors.iter().map(share).collect();
        assert!(shares.iter().sum::<u64>() <= CAPACITY, "{shares:?}");
        for (used, share) in used.zip(&shares) {
            assert!(used <= *share, "{used} bytes are used of a share of {share}");
        }
    }
}

#[test]
fn shares_never_sum_to_more_than_the_gpu_whoever_asks_cedes_or_dies() {
    let seed = super::seed();
    println!("seed {seed}");
    let (mut dice, begun) = (Dice(seed), Instant::now());
    let (mut dealt, mut rounds) = (Dealt::new(), 0);
    while rounds < MOST_ROUNDS && begun.elapsed() < LONGEST {
        dealt.round(&mut dice);
        rounds += 1;
    }
    println!("{rounds} rounds, as many deaths, {} changes", dealt.changes);
    assert!(dealt.changes > 100, "shares rose and fell");
    dealt.actors.iter_mut().for_each(Actor::kill);
    let heir = dealt.stage.open().join("heir", CAPACITY, CAPACITY).unwrap();
    assert_eq!(heir.share_bytes(), CAPACITY);
}

//! Many processes run all operations concurrently and are killed at random moments. A file of the test
//! records the actual bytes of each. While all are stopped, their sum is compared with the ledger's count,
//! which the test reads with its own reader.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_common::random::Rng;
use sluice_memory::gpu_ledger::{EarmarkState, LedgerError, Participant, ParticipantHandle};

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};
use super::raw;

const PROCESSES: usize = 8;
const OPERATIONS: u64 = 150;
const MAX_DURATION: Duration = Duration::from_secs(4);
const MAX_ROUNDS: usize = 60;

/// Actual bytes of one process, visible to the parent.
pub struct HeldBytes {
    file: File,
    at: u64,
    pub bytes: u64,
}

impl HeldBytes {
    pub fn new(folder: &Path, at: u64) -> HeldBytes {
        HeldBytes { file: OpenOptions::new().write(true).open(folder.join("truth")).unwrap(), at, bytes: 0 }
    }

    pub fn set(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.file.write_all_at(&bytes.to_ne_bytes(), self.at * 8).unwrap();
    }
}

/// The child's part: `count` random operations. Memory is used after the ledger granted it and freed before
/// the ledger is updated.
pub fn stress(
    participant: &ParticipantHandle,
    folder: &Path,
    at: u64,
    seed: u64,
    count: u64,
) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let mut has = HeldBytes::new(folder, at);
    has.bytes = participant.held_bytes();
    for operation in 0..count {
        let result = stress_once(participant, &mut has, &mut rng, seed ^ (operation + 1));
        result.and_then(|()| participant.audit()).map_err(|error| format!("{error:?}"))?;
        if participant.held_bytes() != has.bytes {
            return Err(format!("{} bytes held, {} had", participant.held_bytes(), has.bytes));
        }
    }
    Ok(String::new())
}

fn stress_once(
    participant: &ParticipantHandle,
    has: &mut HeldBytes,
    rng: &mut Rng,
    nonce: u64,
) -> Result<(), LedgerError> {
    match rng.below(6) {
        0 | 1 => {
            let bytes = 1 + rng.below(CAPACITY / 4);
            match participant.reserve(bytes) {
                Ok(()) => has.set(has.bytes + bytes),
                Err(LedgerError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        2 => {
            let bytes = rng.below(has.bytes + 1);
            has.set(has.bytes - bytes);
            participant.release(bytes);
        }
        3 => lend(participant, has, rng, nonce)?,
        4 => borrow(participant, has)?,
        _ => _ = participant.clear_settled()?,
    }
    Ok(())
}

fn lend(
    participant: &ParticipantHandle,
    has: &mut HeldBytes,
    rng: &mut Rng,
    nonce: u64,
) -> Result<(), LedgerError> {
    let others =
        participant.survey()?.into_iter().filter(|one| one.is_live && one.peer != participant.peer());
    let others: Vec<Participant> = others.collect();
    if others.is_empty() || has.bytes == 0 {
        return Ok(());
    }
    let to = others[rng.below(others.len() as u64) as usize].peer;
    let bytes = 1 + rng.below(has.bytes);
    has.set(has.bytes - bytes);
    match participant.earmark(&to, bytes, 0, nonce) {
        Ok(()) => {}
        Err(
            LedgerError::PeerDead { .. }
            | LedgerError::TooManyTransfers { .. }
            | LedgerError::InvalidNonce { .. },
        ) => {
            has.set(has.bytes + bytes);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Accepts the earmarks that wait for this process, and cancels one of its own, whose bytes it tries to
/// reserve again.
fn borrow(participant: &ParticipantHandle, has: &mut HeldBytes) -> Result<(), LedgerError> {
    for lender in participant.survey()? {
        let for_us = lender.earmarks.iter().filter(|earmark| earmark.to == participant.instance());
        for earmark in for_us.filter(|earmark| earmark.state == EarmarkState::Waiting) {
            add_on_success(
                has,
                participant.accept(&lender.peer, earmark.nonce, earmark.bytes),
                earmark.bytes,
            )?;
        }
        if lender.peer == participant.peer()
            && let Some(own) = lender.earmarks.iter().find(|one| one.state != EarmarkState::Accepted)
        {
            add_on_success(
                has,
                participant.cancel_earmark(own.nonce).and_then(|bytes| participant.reserve(bytes)),
                own.bytes,
            )?;
        }
    }
    Ok(())
}

fn add_on_success(
    has: &mut HeldBytes,
    result: Result<(), LedgerError>,
    bytes: u64,
) -> Result<(), LedgerError> {
    use LedgerError as E;
    match result {
        Ok(()) => has.set(has.bytes + bytes),
        // Other participants reserved first, or exited.
        Err(
            E::PeerDead { .. } | E::NoEarmark { .. } | E::AlreadyAccepted { .. } | E::TooManyTransfers { .. },
        ) => {}
        Err(E::OutOfMemory { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The parent's part.
struct StressTest {
    // Before `env`, so that they end before their folder is removed.
    processes: Vec<LedgerProcess>,
    env: LedgerEnv,
    held_file: File,
    fault: Option<&'static str>,
    started: u64,
}

impl StressTest {
    fn new(fault: Option<&'static str>) -> StressTest {
        let env = LedgerEnv::new();
        let path = env.folder().join("truth");
        std::fs::write(&path, [0; 8 * PROCESSES]).unwrap();
        let truth = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut anvil = StressTest { env, held_file: truth, processes: vec![], fault, started: 0 };
        for _ in 0..PROCESSES {
            let actor = anvil.start();
            anvil.processes.push(actor);
        }
        anvil
    }

    fn start(&mut self) -> LedgerProcess {
        let mut actor = self.env.spawn_opened(self.fault);
        self.started += 1;
        actor.join(&format!("tenant-{}", self.started), CAPACITY / 2 / PROCESSES as u64);
        actor
    }

    /// All processes work. After one answer, stops all of them at an arbitrary point and compares the sums.
    fn round(&mut self, rng: &mut Rng) -> Result<(), String> {
        for (at, actor) in self.processes.iter_mut().enumerate() {
            actor.send(&format!("hammer {at} {} {OPERATIONS}", rng.below(1 << 30) + 1));
        }
        let first = rng.below(PROCESSES as u64) as usize;
        self.processes[first].answer().ok_or("the first to be waited for died")??;
        self.processes.iter().for_each(LedgerProcess::stop);
        let checked = self.check(false);
        let victim = (first + 1 + rng.below(PROCESSES as u64 - 1) as usize) % PROCESSES;
        self.processes.iter().for_each(LedgerProcess::resume);
        self.processes[victim].kill();
        self.held_file.write_all_at(&[0; 8], 8 * victim as u64).unwrap();
        for at in (0..PROCESSES).filter(|at| *at != first && *at != victim) {
            self.processes[at].answer().ok_or("a process died by itself")??;
        }
        checked?;
        self.processes[victim] = self.start();
        self.check(true)
    }

    /// Compares the sums. When all processes are idle, they are equal except for waiting earmarks.
    fn check(&self, idle: bool) -> Result<(), String> {
        let mut truth = [0; 8 * PROCESSES];
        self.held_file.read_exact_at(&mut truth, 0).unwrap();
        let had = truth.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).sum::<u64>();
        let alive: Vec<u64> = self.processes.iter().map(|actor| actor.peer.instance).collect();
        let (counted, unsettled) = raw::counted(self.env.folder(), &alive);
        if had > counted || counted - unsettled > CAPACITY {
            return Err(format!("{had} bytes had, {counted} counted, {unsettled} perhaps twice"));
        }
        if idle {
            let held: u64 = raw::records(self.env.folder())
                .iter()
                .filter(|record| alive.contains(&record.instance))
                .map(|record| record.held)
                .sum();
            let audit = self.env.open().audit().map_err(|error| error.to_string())?;
            if (held, audit.counted_bytes, unsettled) != (had, counted, 0) {
                return Err(format!("{had} bytes had, {held} held; {counted} counted, {audit:?}"));
            }
        }
        Ok(())
    }
}

/// Runs rounds until one fails or the time is over. Returns the number of rounds.
fn rounds(anvil: &mut StressTest, seed: u64) -> Result<usize, String> {
    let (mut rng, begun) = (Rng::new(seed), Instant::now());
    let mut rounds = 0;
    while rounds < MAX_ROUNDS && begun.elapsed() < MAX_DURATION {
        anvil.round(&mut rng)?;
        rounds += 1;
    }
    Ok(rounds)
}

#[test]
fn kills_neither_lose_nor_double_count_bytes() {
    let seed = super::seed();
    println!("seed {seed}");
    let mut anvil = StressTest::new(None);
    let rounds = rounds(&mut anvil, seed).unwrap_or_else(|error| panic!("{error}; seed {seed}"));
    println!("{rounds} rounds, as many deaths");
    let StressTest { env, processes: mut actors, .. } = anvil;
    actors.iter_mut().for_each(LedgerProcess::kill);
    let heir = env.open().join("heir", CAPACITY, CAPACITY).unwrap();
    heir.reserve(CAPACITY).unwrap();
    assert_eq!(heir.audit().unwrap().counted_bytes, CAPACITY);
}

#[test]
fn unlocked_reserve_fault_is_detected() {
    let seed = super::seed();
    println!("seed {seed}");
    let mut anvil = StressTest::new(Some("unlocked_reserve"));
    let error = rounds(&mut anvil, seed).expect_err("more is reserved than there is");
    println!("as it should: {error}");
}

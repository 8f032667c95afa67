//! Processes take time slices while some are stopped and killed at random moments: no two of them ever hold
//! the slice at the same time.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use sluice_common::random::Rng;
use sluice_memory::gpu_ledger::{
    Epoch, LedgerError, OVERDUE_GRACE, ParticipantHandle, SliceOrder, SliceQueue,
};
use sluice_memory::since_boot;

use super::env::{LedgerEnv, LedgerProcess};

const PROCESSES: usize = 4;
/// Time by which a holder extends its deadline at each step.
const DEADLINE: Duration = Duration::from_millis(100);
/// Long enough for a takeover from a stopped holder on a busy machine.
const STOP_DURATION: Duration = Duration::from_millis(2 * 100 + 2 * OVERDUE_GRACE.as_millis() as u64);
const ROUND: Duration = Duration::from_millis(1200);
const MIN_ROUNDS: usize = 3;
const MAX_ROUNDS: usize = 40;
/// Minimum number of takeovers for the test to be meaningful.
const MIN_TAKEOVERS: u64 = 3;

/// Returns the highest acquired epoch, in a file that all processes map.
fn highest_epoch(folder: &Path) -> &'static AtomicU64 {
    let file = OpenOptions::new().read(true).write(true).open(folder.join("highest")).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping that is never unmapped; its first word is aligned and accessed only atomically.
    unsafe {
        &*rustix::mm::mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0).unwrap().cast()
    }
}

/// The child's part: takes time slices for `ms` milliseconds. Returns how many of them it took over.
pub fn stress(participant: &ParticipantHandle, folder: &Path, ms: u64, seed: u64) -> Result<String, String> {
    let (mut rng, begun, highest) = (Rng::new(seed), Instant::now(), highest_epoch(folder));
    let mut taken_over = 0;
    while begun.elapsed() < Duration::from_millis(ms) {
        let before = highest.load(Ordering::SeqCst);
        let queue = participant.slice_queue();
        let asked = queue.request(0).and_then(|()| queue.acquire_within(SliceOrder::RoundRobin, ROUND / 4));
        let epoch = match asked {
            Ok(Some(epoch)) => epoch,
            // A stopped process may hold the guard.
            Ok(None) | Err(LedgerError::Busy { .. }) => continue,
            Err(error) => return Err(error.to_string()),
        };
        taken_over += u64::from(queue.takeover().is_some());
        if epoch.0 <= before || highest.fetch_max(epoch.0, Ordering::SeqCst) == epoch.0 {
            return Err(format!("epoch {} after {before}, or twice", epoch.0));
        }
        run(&queue, epoch, 1 + rng.below(20), highest)?;
        match queue.release() {
            Ok(()) | Err(LedgerError::SliceTakenOver) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(taken_over.to_string())
}

/// Runs the steps of one time slice. Before each step it checks whether it still holds the slice.
fn run(queue: &SliceQueue<'_>, epoch: Epoch, steps: u64, highest: &AtomicU64) -> Result<(), String> {
    for _ in 0..steps {
        match queue.set_deadline((since_boot() + DEADLINE).as_nanos() as u64) {
            Ok(()) => {}
            Err(LedgerError::SliceTakenOver) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        // Read the others' epoch first: a later slice that was acquired by now has ended this one.
        let others = highest.load(Ordering::SeqCst);
        if queue.held() == Some(epoch) && others > epoch.0 {
            return Err(format!("epoch {} was its own while {others} was another's", epoch.0));
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    Ok(())
}

/// The parent's part.
struct SliceStressTest {
    // Before `env`, so that they end before their folder is removed.
    processes: Vec<LedgerProcess>,
    env: LedgerEnv,
    fault: Option<&'static str>,
    started: usize,
}

impl SliceStressTest {
    fn new(fault: Option<&'static str>) -> SliceStressTest {
        let env = LedgerEnv::new();
        std::fs::write(env.folder().join("highest"), [0; 4096]).unwrap();
        let mut test = SliceStressTest { env, processes: vec![], fault, started: 0 };
        for _ in 0..PROCESSES {
            let actor = test.start();
            test.processes.push(actor);
        }
        test
    }

    fn start(&mut self) -> LedgerProcess {
        let mut actor = self.env.spawn_opened(self.fault);
        self.started += 1;
        actor.join(&format!("tenant-{}", self.started), 0);
        actor
    }

    /// All processes take time slices; two are stopped for a while, and one of these is sometimes killed.
    /// Returns the number of takeovers.
    fn round(&mut self, rng: &mut Rng) -> Result<u64, String> {
        for actor in &mut self.processes {
            actor.send(&format!("turns {} {}", ROUND.as_millis(), rng.below(1 << 30) + 1));
        }
        std::thread::sleep(Duration::from_millis(rng.below(200)));
        let first = rng.below(PROCESSES as u64) as usize;
        let second = (first + 1 + rng.below(PROCESSES as u64 - 1) as usize) % PROCESSES;
        [first, second].iter().for_each(|at| self.processes[*at].stop());
        std::thread::sleep(STOP_DURATION);
        let killed = (rng.below(2) == 0).then_some(second);
        if let Some(killed) = killed {
            self.processes[killed].kill();
        }
        [first, second].iter().filter(|at| Some(**at) != killed).for_each(|at| self.processes[*at].resume());
        let mut taken_over = 0;
        for at in (0..PROCESSES).filter(|at| Some(*at) != killed) {
            let answer = self.processes[at].answer().ok_or("a process died by itself")??;
            taken_over += answer.parse::<u64>().unwrap();
        }
        if let Some(killed) = killed {
            self.processes[killed] = self.start();
        }
        Ok(taken_over)
    }
}

/// Runs rounds until a process reports a violation or `least` takeovers have happened. Returns the number of
/// takeovers.
fn rounds(test: &mut SliceStressTest, seed: u64, least: u64) -> Result<u64, String> {
    let (mut rng, mut taken_over) = (Rng::new(seed), 0);
    for round in 0..MAX_ROUNDS {
        if round >= MIN_ROUNDS && taken_over >= least {
            break;
        }
        taken_over += test.round(&mut rng)?;
        println!("round {round}: {taken_over} takeovers");
    }
    Ok(taken_over)
}

#[test]
fn slice_has_one_holder_under_stops_and_kills() {
    let seed = super::seed();
    println!("seed {seed}");
    let mut test = SliceStressTest::new(None);
    let taken_over = rounds(&mut test, seed, MIN_TAKEOVERS);
    let taken_over = taken_over.unwrap_or_else(|error| panic!("{error}; seed {seed}"));
    println!("{taken_over} takeovers");
    assert!(taken_over >= MIN_TAKEOVERS, "{taken_over} takeovers in {MAX_ROUNDS} rounds; seed {seed}");
}

#[test]
fn ignore_fence_fault_is_detected() {
    let seed = super::seed();
    println!("seed {seed}");
    let mut test = SliceStressTest::new(Some("ignore_fence"));
    let error = rounds(&mut test, seed, u64::MAX).expect_err("two hold the slice");
    assert!(error.contains("was another's"), "{error}");
}

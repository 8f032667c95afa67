//! Measures the costs of the ledger's files: the median time of a reservation, an acceptance, and a handover
//! of the time slice between two processes, with few participants and with all records in use.
//!
//! `cargo run --release -p sluice-memory --example gpu_ledger_speed`

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sluice_common::statistics::percentile;
use sluice_memory::gpu_ledger::{
    GpuLedger, LedgerIdentity, ParticipantHandle, RECORDS, SliceOrder, current_boot_id,
};

const ROUNDS: usize = 2_000;
const CHUNK: u64 = 2 << 20;
const CAPACITY: u64 = 80 << 30;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    if let Some(folder) = std::env::args_os().nth(1) {
        return partner(Path::new(&folder));
    }
    let folder = tempfile::tempdir()?;
    println!("participants operation median_ns");
    for participants in [2, RECORDS as usize] {
        let ledger = open(folder.path())?;
        // The last record belongs to the partner.
        let names = (1..participants).map(|at| format!("tenant-{at}"));
        let handles: Vec<ParticipantHandle> =
            names.map(|name| ledger.join(&name, 0, 0)).collect::<Result<_, _>>()?;
        let borrower = open(folder.path())?.join("borrower", 0, 0)?;
        for participant in &handles {
            participant.reserve(CHUNK)?;
        }
        let print = |operation: &str, median: u64| println!("{participants} {operation} {median}");
        print("reserve and release", reserve(&handles[0])?);
        print("reserve in vain", reserve_refused(&handles[0])?);
        transfer(&handles[0], &borrower, print)?;
        drop(borrower);
        print("hand-over of the time slice", hand_over(folder.path(), &handles[0])?);
    }
    Ok(())
}

fn open(folder: &Path) -> Result<GpuLedger> {
    let (capacity_bytes, chunk_bytes) = (CAPACITY, CHUNK);
    let identity =
        LedgerIdentity { boot_id: current_boot_id()?, claim_id: "speed".into(), capacity_bytes, chunk_bytes };
    Ok(GpuLedger::open(folder, &identity)?)
}

/// Returns the median, nanoseconds.
fn median(mut times: Vec<Duration>) -> u64 {
    percentile(&mut times, 500).expect("there are times").as_nanos() as u64
}

fn reserve(participant: &ParticipantHandle) -> Result<u64> {
    let mut times = vec![];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        participant.reserve(CHUNK)?;
        participant.release(CHUNK);
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

/// Measures a refused reservation, before which the kernel is asked which participants are live.
fn reserve_refused(participant: &ParticipantHandle) -> Result<u64> {
    let mut times = vec![];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        ensure!(participant.reserve(CAPACITY).is_err(), "the GPU is not empty");
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

fn transfer(
    lender: &ParticipantHandle,
    borrower: &ParticipantHandle,
    print: impl Fn(&str, u64),
) -> Result<()> {
    let (mut earmarks, mut accepts, mut clears) = (vec![], vec![], vec![]);
    for nonce in 1..=ROUNDS as u64 {
        lender.reserve(CHUNK)?;
        let begun = Instant::now();
        lender.earmark(&borrower.peer(), CHUNK, 0, nonce)?;
        earmarks.push(begun.elapsed());
        let begun = Instant::now();
        borrower.accept(&lender.peer(), nonce, CHUNK)?;
        accepts.push(begun.elapsed());
        let begun = Instant::now();
        lender.clear_settled()?;
        borrower.clear_settled()?;
        clears.push(begun.elapsed());
        borrower.release(CHUNK);
    }
    print("earmark", median(earmarks));
    print("accept", median(accepts));
    print("clear, both sides", median(clears));
    Ok(())
}

/// Measures the time from a release until this participant has the time slice again, with the partner having
/// it in between: two handovers.
fn hand_over(folder: &Path, participant: &ParticipantHandle) -> Result<u64> {
    let mut child = Command::new(std::env::current_exe()?).arg(folder).spawn()?;
    let result = ping_pong(participant, &mut child);
    let _ = child.kill();
    child.wait()?;
    result
}

fn ping_pong(participant: &ParticipantHandle, partner: &mut Child) -> Result<u64> {
    let (queue, order) = (participant.slice_queue(), SliceOrder::RoundRobin);
    let mut times = vec![];
    queue.request(0)?;
    queue.acquire_within(order, TIMEOUT)?.context("the first slice")?;
    while queue.waiters()? == 0 {
        ensure!(partner.try_wait()?.is_none(), "the partner ended");
        std::thread::yield_now();
    }
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        queue.release()?;
        queue.request(0)?;
        queue.acquire_within(order, TIMEOUT)?.context("the next slice")?;
        times.push(begun.elapsed() / 2);
        // The partner requests the time slice again before this participant releases it.
        while queue.waiters()? == 0 {
            std::hint::spin_loop();
        }
    }
    queue.release()?;
    Ok(median(times))
}

/// Runs the partner, which releases the time slice as soon as it has it.
fn partner(folder: &Path) -> Result<()> {
    let participant = open(folder)?.join("partner", 0, 0)?;
    loop {
        participant.slice_queue().request(0)?;
        if participant.slice_queue().acquire_within(SliceOrder::RoundRobin, TIMEOUT)?.is_none() {
            return Ok(());
        }
        participant.slice_queue().release()?;
    }
}

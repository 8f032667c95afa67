//! Tests of the passes on the control page, with two mappings and two threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_link::control::*;
use sluice_link::region::Region;

static NEVER: AtomicBool = AtomicBool::new(false);

fn pages(layers: u16) -> (ControlPage, ControlPage) {
    let sidecar = ControlPage::create_with_passes(layers).unwrap();
    let worker = ControlPage::open_with_passes(sidecar.fd().try_clone_to_owned().unwrap(), layers).unwrap();
    (sidecar, worker)
}

/// Returns a record whose numbers all follow from the pass.
fn record(pass: u64) -> PassRecord {
    let counts = [pass as u32 ^ 0x5555, !(pass as u32)];
    PassRecord { pass, total_ns: pass * 3, stall_ns: !pass, tokens: counts[0], sequences: counts[1] }
}

fn run(worker: &ControlPage, passes: u64) {
    for _ in 0..passes {
        let pass = worker.begin_pass();
        worker.end_pass(record(pass));
    }
}

#[test]
fn records_arrive_in_order_and_overwritten_ones_are_counted() {
    let (sidecar, worker) = pages(2);
    let (mut cursor, mut records) = (PassCursor::default(), Vec::new());
    assert_eq!((sidecar.read_passes(&mut cursor, &mut records), records.len()), (0, 0), "no pass yet");
    assert_eq!(sidecar.pass_record(0), None, "passes count from 1");
    run(&worker, 3);
    assert_eq!((sidecar.passes_begun(), sidecar.passes_ended()), (3, 3));
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), 0);
    assert_eq!(records, [1, 2, 3].map(record));
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), 0, "each once");
    records.clear();
    run(&worker, PASS_RECORDS + 5);
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), 5);
    assert_eq!(records, (9..=PASS_RECORDS + 8).map(record).collect::<Vec<_>>());
    assert_eq!(sidecar.read_passes(&mut PassCursor::at_end(&sidecar), &mut records), 0);
}

#[test]
fn a_pass_that_never_ended_has_no_record_and_numbers_go_on() {
    let (sidecar, worker) = pages(1);
    assert_eq!(worker.begin_pass(), 1);
    drop(worker);
    let next = ControlPage::open_with_passes(sidecar.fd().try_clone_to_owned().unwrap(), 1).unwrap();
    assert_eq!(next.begin_pass(), 2);
    next.end_pass(record(2));
    let (mut cursor, mut records) = (PassCursor::default(), Vec::new());
    assert_eq!((sidecar.read_passes(&mut cursor, &mut records), records), (1, vec![record(2)]));
}

#[test]
fn a_wait_for_a_pass_ends_with_it() {
    let (sidecar, worker) = pages(1);
    let within = |millis| WaitLimit { abort: &NEVER, limit: Some(Duration::from_millis(millis)) };
    assert_eq!(sidecar.wait_pass_ended(0, within(0)), WaitResult::Reached);
    assert_eq!(sidecar.wait_pass_ended(1, within(15)), WaitResult::TimedOut);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sidecar.wait_pass_ended(2, within(20_000)));
        run(&worker, 2);
        assert_eq!(waiting.join().unwrap(), WaitResult::Reached);
    });
}

/// The words of the ring's entry for pass 1: its sequence number and what follows.
fn entry(page: &ControlPage, layers: u16) -> (Region, usize) {
    let bytes = ControlPage::bytes_of(layers) as usize + 64 * PASS_RECORDS as usize;
    let region = Region::open(page.fd().try_clone_to_owned().unwrap(), bytes).unwrap();
    (region, ControlPage::bytes_of(layers) as usize / 8 + 8)
}

#[test]
fn an_entry_that_is_being_written_is_not_read() {
    let (sidecar, worker) = pages(2);
    run(&worker, 1);
    let (words, at) = entry(&sidecar, 2);
    assert_eq!(sidecar.pass_record(1), Some(record(1)));
    // As between the first and the last store of a writer.
    words.long(at).unwrap().store(1, Ordering::SeqCst);
    words.long(at + 2).unwrap().store(99, Ordering::SeqCst);
    assert_eq!(sidecar.pass_record(1), None);
    // The control: it is the sequence number that hides the torn record.
    words.long(at).unwrap().store(2, Ordering::SeqCst);
    assert_eq!(sidecar.pass_record(1), Some(PassRecord { total_ns: 99, ..record(1) }));
}

#[test]
fn a_reader_during_writes_sees_whole_records_only() {
    const PASSES: u64 = 400_000;
    let (sidecar, worker) = pages(1);
    let writing = std::thread::spawn(move || run(&worker, PASSES));
    let (mut cursor, mut records, mut read, mut lost) = (PassCursor::default(), Vec::new(), 0, 0);
    while read + lost < PASSES {
        lost += sidecar.read_passes(&mut cursor, &mut records);
        read += records.len() as u64;
        for seen in records.drain(..) {
            assert_eq!(seen, record(seen.pass));
        }
    }
    writing.join().unwrap();
    assert_eq!(read + lost, PASSES);
    assert!(read > 0, "the last record at least");
}

#[test]
fn the_page_of_an_engine_that_runs_steps_has_no_passes() {
    let page = ControlPage::create(2).unwrap();
    let opened = ControlPage::open_with_passes(page.fd().try_clone_to_owned().unwrap(), 2);
    assert!(matches!(opened, Err(ControlError::Region(_))), "{opened:?}");
    let (sidecar, _worker) = pages(2);
    assert!(
        ControlPage::open(sidecar.fd().try_clone_to_owned().unwrap(), 2).is_ok(),
        "generations come first"
    );
}

#[test]
fn passes_are_progress() {
    let (sidecar, worker) = pages(2);
    let mut seen = vec![sidecar.progress()];
    let pass = worker.begin_pass();
    seen.push(sidecar.progress());
    worker.end_pass(record(pass));
    seen.push(sidecar.progress());
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn a_hostile_counter_ends_no_reader() {
    let (sidecar, _worker) = pages(1);
    let (words, _) = entry(&sidecar, 1);
    words.long(6).unwrap().store(u64::MAX, Ordering::SeqCst);
    let mut records = Vec::new();
    let mut cursor = PassCursor::default();
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), u64::MAX);
    words.long(6).unwrap().store(3, Ordering::SeqCst);
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), 0, "a counter that falls");
}

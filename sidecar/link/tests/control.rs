//! Tests of the control page, with two threads and two mappings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_link::control::{ControlError, ControlPage, WaitLimit, WaitResult};
use sluice_link::region::Region;
use sluice_link::vocabulary::{Generation, LayerId};

static NEVER: AtomicBool = AtomicBool::new(false);

fn peer(page: &ControlPage, layers: u16) -> ControlPage {
    ControlPage::open(page.fd().try_clone_to_owned().unwrap(), layers).unwrap()
}

fn within(limit: Duration) -> WaitLimit<'static> {
    WaitLimit { abort: &NEVER, limit: Some(limit) }
}

#[test]
fn wait_ready_is_exact_and_wait_done_is_at_least() {
    let sidecar = ControlPage::create(2).unwrap();
    let engine = peer(&sidecar, 2);
    let (layer, short) = (LayerId(1), within(Duration::from_millis(15)));
    sidecar.publish_ready(layer, Generation(7)).unwrap();
    assert_eq!(engine.wait_ready(layer, Generation(7), short).unwrap(), WaitResult::Reached);
    assert_eq!(engine.wait_ready(layer, Generation(6), short).unwrap(), WaitResult::Overtaken, "never again");
    assert_eq!(engine.wait_ready(layer, Generation(8), short).unwrap(), WaitResult::TimedOut);
    assert_eq!(engine.wait_ready(LayerId(0), Generation(7), short).unwrap(), WaitResult::TimedOut);
    engine.publish_done(layer, Generation(7)).unwrap();
    assert_eq!(sidecar.wait_done(layer, Generation(6), short).unwrap(), WaitResult::Reached);
    assert_eq!(sidecar.wait_done(layer, Generation(7), short).unwrap(), WaitResult::Reached);
    assert_eq!(sidecar.wait_done(layer, Generation(8), short).unwrap(), WaitResult::TimedOut);
    assert_eq!((engine.ready(layer).unwrap(), sidecar.done(layer).unwrap()), (Generation(7), Generation(7)));
}

#[test]
fn kv_generations_are_independent_of_weights() {
    let sidecar = ControlPage::create(2).unwrap();
    let engine = peer(&sidecar, 2);
    let (layer, short) = (LayerId(1), within(Duration::from_millis(15)));
    sidecar.publish_ready(layer, Generation(3)).unwrap();
    engine.publish_done(layer, Generation(4)).unwrap();
    sidecar.publish_kv_ready(layer, Generation(7)).unwrap();
    assert_eq!(engine.wait_kv_ready(layer, Generation(7), short).unwrap(), WaitResult::Reached);
    assert_eq!(
        engine.wait_kv_ready(layer, Generation(6), short).unwrap(),
        WaitResult::Overtaken,
        "never again"
    );
    assert_eq!(engine.wait_kv_ready(layer, Generation(8), short).unwrap(), WaitResult::TimedOut);
    assert_eq!(engine.wait_kv_ready(LayerId(0), Generation(7), short).unwrap(), WaitResult::TimedOut);
    engine.publish_kv_done(layer, Generation(7)).unwrap();
    assert_eq!(sidecar.wait_kv_done(layer, Generation(6), short).unwrap(), WaitResult::Reached);
    assert_eq!(sidecar.wait_kv_done(layer, Generation(8), short).unwrap(), WaitResult::TimedOut);
    let words = [engine.ready(layer), engine.kv_ready(layer), sidecar.done(layer), sidecar.kv_done(layer)];
    assert_eq!(words.map(Result::unwrap), [3, 7, 4, 7].map(Generation));
    assert!(page_end(&sidecar).is_err());
}

fn page_end(page: &ControlPage) -> Result<(), ControlError> {
    page.publish_kv_done(LayerId(2), Generation(1))
}

#[test]
fn aborted_wait_returns() {
    let page = ControlPage::create(1).unwrap();
    let abort = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| page.wait_ready(LayerId(0), Generation(1), WaitLimit::unlimited(&abort)).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        abort.store(true, Ordering::Relaxed);
        assert_eq!(waiting.join().unwrap(), WaitResult::Aborted);
    });
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[test]
fn layers_outside_the_page_and_foreign_pages_are_refused() {
    let page = ControlPage::create(3).unwrap();
    assert!(matches!(page.ready(LayerId(3)), Err(ControlError::OutOfRange { layer: 3, layers: 3 })));
    assert!(page.publish_done(LayerId(u16::MAX), Generation(1)).is_err());
    let fd = || page.fd().try_clone_to_owned().unwrap();
    assert!(matches!(ControlPage::open(fd(), 2), Err(ControlError::Layers { got: 3, needed: 2 })));
    assert!(matches!(ControlPage::open(fd(), 4), Err(ControlError::Region(_))));
    let zeros = Region::create("zeros", 4096).unwrap();
    let zeros = zeros.fd().try_clone_to_owned().unwrap();
    assert!(matches!(ControlPage::open(zeros, 3), Err(ControlError::NotAControlPage { .. })));
}

#[test]
fn unsealed_memory_is_refused() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 65_536).unwrap();
    let error = ControlPage::open(fd, 1).unwrap_err();
    assert!(error.to_string().contains("not sealed"), "{error}");
    let page = ControlPage::create(1).unwrap();
    assert!(ftruncate(page.fd(), 0).is_err(), "our own pages cannot be shrunk");
}

/// Two layers share a slot: the filler overwrites it only after `done`, the reader reads it only at `ready`. Only the
/// page guards the slot's plain data, so a lost or early wake-up shows as a wrong value or a hang.
#[test]
fn two_threads_hand_a_slot_back_and_forth_without_loss() {
    const ROUNDS: u64 = 20_000;
    let filler = ControlPage::create(2).unwrap();
    let reader = peer(&filler, 2);
    let slot = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&slot);
    let limit = within(Duration::from_secs(20));
    let filling = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            let (layer, before) = (LayerId((round % 2) as u16), LayerId(((round + 1) % 2) as u16));
            let free = filler.wait_done(before, Generation(round - 1), limit).unwrap();
            assert_eq!(free, WaitResult::Reached, "round {round}");
            shared.store(round, Ordering::Relaxed);
            filler.publish_ready(layer, Generation(round)).unwrap();
        }
    });
    for round in 1..=ROUNDS {
        let layer = LayerId((round % 2) as u16);
        assert_eq!(reader.wait_ready(layer, Generation(round), limit).unwrap(), WaitResult::Reached);
        assert_eq!(slot.load(Ordering::Relaxed), round);
        reader.publish_done(layer, Generation(round)).unwrap();
        if round % 500 == 0 {
            // Long enough for the other side to sleep on its futex.
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    filling.join().unwrap();
}

#[test]
fn progress_and_heartbeats_are_visible_without_layer_count() {
    let page = ControlPage::create(3).unwrap();
    let mut seen = vec![page.progress()];
    page.publish_ready(LayerId(2), Generation(1)).unwrap();
    seen.push(page.progress());
    page.publish_done(LayerId(2), Generation(1)).unwrap();
    seen.push(page.progress());
    page.publish_kv_ready(LayerId(0), Generation(1)).unwrap();
    seen.push(page.progress());
    page.publish_kv_done(LayerId(0), Generation(1)).unwrap();
    seen.push(page.progress());
    page.begin_layer();
    seen.push(page.progress());
    seen.dedup();
    assert_eq!(seen.len(), 6, "{seen:?}");
    let looked = ControlPage::open_any_layers(page.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(looked.heartbeats(), 0);
    page.heartbeat();
    assert_eq!((looked.heartbeats(), page.progress()), (1, seen[5]), "a beat is no progress of the engine");
}

//! Fills one slot with the weights of the layers that share it, one pass after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use sluice_link::control::{WaitLimit, WaitResult};
use sluice_link::vocabulary::{Generation, LayerId};

use crate::state::Sidecar;

/// The thread of a copier.
pub(crate) struct Copier {
    stop: Arc<AtomicBool>,
    copies: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Copier {
    /// Starts to fill the slot of `moving` (the chunks of its first layer) for pass `first_pass` and the following ones.
    pub(crate) fn start(sidecar: &Arc<Sidecar>, moving: Vec<LayerId>, first_pass: u64) -> Copier {
        let (stop, copies) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (sidecar, stop, copies) = (sidecar.clone(), stop.clone(), copies.clone());
            move || fill(&sidecar, &moving, first_pass, &stop, &copies)
        });
        Copier { stop, copies, thread }
    }

    /// Returns the layers copied so far.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Ends the thread. The slot holds any layer afterwards.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the copier does not panic");
    }
}

fn fill(sidecar: &Sidecar, moving: &[LayerId], first_pass: u64, stop: &AtomicBool, copies: &AtomicU64) {
    let control = &sidecar.control;
    let known = "a moving layer is one of the page's";
    let mut before: Option<(LayerId, u64)> = None;
    for pass in first_pass.. {
        for layer in moving {
            if let Some((layer, pass)) = before {
                let limit = WaitLimit::unlimited(stop);
                let done = control.wait_done(layer, Generation(pass), limit).expect(known);
                if done != WaitResult::Reached {
                    return;
                }
            }
            if stop.load(Ordering::SeqCst) {
                return;
            }
            // The copies of a pass are its generation.
            control.publish_lease(*layer, pass, Some(Generation(pass))).expect(known);
            copy(sidecar, moving[0], *layer);
            copies.fetch_add(1, Ordering::Relaxed);
            control.publish_ready(*layer, Generation(pass)).expect(known);
            before = Some((*layer, pass));
        }
    }
}

/// Writes the weights of `layer` into the chunks of `slot`.
fn copy(sidecar: &Sidecar, slot: LayerId, layer: LayerId) {
    std::thread::sleep(sidecar.lock().copy_delay);
    let state = sidecar.lock();
    let chunks = &state.layers[slot.index()];
    state.pool.write_all(chunks, &state.master[layer.index()]).expect("the pool's file is writable");
}

//! An engine computes nothing in another tenant's time slice.

use std::path::Path;

use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::{EngineEvent, EngineLink};
use sluice_link::vocabulary::{Generation, LayerId, StepId};
use sluice_memory::gpu_ledger::{GpuLedger, LedgerIdentity, ParticipantHandle, SliceOrder};

use super::faults::stop_inside;
use super::harness::*;
use crate::specs::llama;

const PROMPT: [u32; 3] = [1, 2, 3];

pub fn join(folder: &Path, name: &str) -> ParticipantHandle {
    let identity = LedgerIdentity {
        boot_id: [7; 16],
        claim_id: "claim-1".to_owned(),
        capacity_bytes: 1000,
        chunk_bytes: 10,
    };
    GpuLedger::open(folder, &identity).unwrap().join(name, 0, 0).unwrap()
}

pub fn take(participant: &ParticipantHandle) -> u64 {
    participant.slice_queue().request(0).unwrap();
    participant
        .slice_queue()
        .acquire_within(SliceOrder::RoundRobin, TEST_TIMEOUT)
        .unwrap()
        .expect("it gets the slice")
        .0
}

/// Takes the time slice from its holder, which has not released it.
pub fn take_over(from: &ParticipantHandle, by: &ParticipantHandle) -> u64 {
    // The deadline expires at once.
    from.slice_queue().set_deadline(1).unwrap();
    take(by)
}

/// Returns the step that the engine ends because its time slice is over.
pub fn ended(link: &mut EngineLink) -> StepId {
    match link.receiver.recv_within(TEST_TIMEOUT).unwrap() {
        EngineEvent::StaleEpoch { id, .. } => id,
        other => panic!("{other:?} in answer to a step whose slice has ended"),
    }
}

#[test]
fn step_begins_no_layer_after_its_slice() {
    let folder = tempfile::tempdir().unwrap();
    let other = join(folder.path(), "other");
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let layers = u64::from(sidecar.setup.spec.layers);
    assert!(layers > 2);
    let participant = sidecar.participant.insert(join(folder.path(), "own"));
    let first = take(participant);
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());

    let mut step = sidecar.step(0, &PROMPT);
    step.epoch = first;
    let before = sidecar.control.progress();
    let expected = sidecar.run(&mut link, &step).unwrap().sampled;
    assert_eq!(sidecar.control.progress() - before, layers, "within its slice it goes through all");

    let mut step = sidecar.step(0, &PROMPT);
    step.epoch = first;
    let before = sidecar.control.progress();
    let step = stop_inside(&mut sidecar, &link, step, Generation(1));
    take_over(sidecar.participant.as_ref().unwrap(), &other);
    sidecar.control.publish_ready(LayerId(1), Generation(1)).unwrap();
    assert_eq!(ended(&mut link), step.id);
    // Layers 0 and 1 each count three: begun, ready, read.
    assert_eq!(sidecar.control.progress() - before, 3 * 2, "the slice ended within layer 1");

    let mut step = sidecar.step(0, &PROMPT);
    step.epoch = first;
    let before = sidecar.control.progress();
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    assert_eq!(ended(&mut link), step.id);
    assert_eq!(sidecar.control.progress(), before, "its slice had ended before it came");

    assert_eq!(sidecar.participant.as_ref().unwrap().slice_queue().held(), None);
    other.slice_queue().release().unwrap();
    let mut step = sidecar.step(0, &PROMPT);
    step.epoch = take(sidecar.participant.as_ref().unwrap());
    assert_eq!(sidecar.run(&mut link, &step).unwrap().sampled, expected, "the next slice is its own");
}

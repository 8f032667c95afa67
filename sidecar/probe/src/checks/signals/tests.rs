use std::time::Duration;

use sluice_memory::cuda;

use super::{SignalPath, conclude};
use crate::Error;
use crate::report::Answer;

const EXIT: &str = "the death of the other process";

fn late() -> Error {
    Error::Timeout { what: "a word".into(), limit: Duration::from_secs(2) }
}

#[test]
fn one_graph_signal_path_suffices_and_others_are_noted() {
    let mut notes = Vec::new();
    let held = [
        ("a stream", Ok(())),
        (SignalPath::Parameters.name(), Err(cuda::Error::Absent("cuGraphAddBatchMemOpNode").into())),
        (SignalPath::Counter.name(), Ok(())),
        (EXIT, Ok(())),
    ];
    assert_eq!(conclude(&held, &mut notes), Answer::Yes);
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with("this CUDA driver lacks cuGraphAddBatchMemOpNode"), "{notes:?}");
}

#[test]
fn no_graph_is_a_no_and_a_stream_that_cannot_be_asked_is_unknown() {
    let mut notes = Vec::new();
    let held = [("a stream", Ok(())), (SignalPath::Counter.name(), Err(late())), (EXIT, Ok(()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::No { .. }));
    let held = [("a stream", Err(late())), (SignalPath::Counter.name(), Ok(())), (EXIT, Ok(()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::No { .. }));
    let held = [
        ("a stream", Err(cuda::Error::Absent("x").into())),
        (SignalPath::Counter.name(), Ok(())),
        (EXIT, Ok(())),
    ];
    assert!(matches!(conclude(&held, &mut notes), Answer::Unknown { .. }));
    let otherwise = || Error::Otherwise("did not wait for the word".into());
    let no = Answer::No { reason: "the device did not wait for the word".into() };
    let held = [("a stream", Err(otherwise())), (SignalPath::Counter.name(), Ok(())), (EXIT, Ok(()))];
    assert_eq!(conclude(&held, &mut notes), no);
    let held = [("a stream", Ok(())), (SignalPath::Counter.name(), Ok(())), (EXIT, Err(otherwise()))];
    assert_eq!(conclude(&held, &mut notes), no);
    let held = [("a stream", Ok(())), (SignalPath::Counter.name(), Ok(())), (EXIT, Err(late()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::Unknown { .. }));
}

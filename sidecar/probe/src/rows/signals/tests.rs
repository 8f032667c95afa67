use std::time::Duration;

use super::{Way, conclude};
use crate::Error;
use crate::report::Answer;

const DEATH: &str = "the death of the other process";

fn late() -> Error {
    Error::Timeout { what: "a word".into(), limit: Duration::from_secs(2) }
}

#[test]
fn one_way_of_graphs_is_enough_and_the_others_are_noted() {
    let mut notes = Vec::new();
    let held = [
        ("a stream", Ok(())),
        (Way::Parameters.name(), Err(Error::Absent("cuGraphAddBatchMemOpNode"))),
        (Way::Counter.name(), Ok(())),
        (DEATH, Ok(())),
    ];
    assert_eq!(conclude(&held, &mut notes), Answer::Yes);
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with("this CUDA driver has no cuGraphAddBatchMemOpNode"), "{notes:?}");
}

#[test]
fn no_graph_is_a_no_and_a_stream_that_cannot_be_asked_is_unknown() {
    let mut notes = Vec::new();
    let held = [("a stream", Ok(())), (Way::Counter.name(), Err(late())), (DEATH, Ok(()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::No { .. }));
    let held = [("a stream", Err(late())), (Way::Counter.name(), Ok(())), (DEATH, Ok(()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::No { .. }));
    let held = [("a stream", Err(Error::Absent("x"))), (Way::Counter.name(), Ok(())), (DEATH, Ok(()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::Unknown { .. }));
    let otherwise = || Error::Otherwise("did not wait for the word".into());
    let no = Answer::No { reason: "the device did not wait for the word".into() };
    let held = [("a stream", Err(otherwise())), (Way::Counter.name(), Ok(())), (DEATH, Ok(()))];
    assert_eq!(conclude(&held, &mut notes), no);
    let held = [("a stream", Ok(())), (Way::Counter.name(), Ok(())), (DEATH, Err(otherwise()))];
    assert_eq!(conclude(&held, &mut notes), no);
    let held = [("a stream", Ok(())), (Way::Counter.name(), Ok(())), (DEATH, Err(late()))];
    assert!(matches!(conclude(&held, &mut notes), Answer::Unknown { .. }));
}

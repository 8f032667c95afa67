//! Tests of all checks in one run.

use sluice_probe::checks;
use sluice_probe::report::{Answer, ProbeReport, SCHEMA};

use super::TestEnv;

/// Reasons of unknown answers that a very busy machine may cause: timeouts.
const TOO_LONG: [&str; 2] = ["the questions before it took more than", "the question took more than"];
/// Checks that are short enough for every machine.
const SHORT: [&str; 4] = ["aliases", "share", "handles", "limits"];

fn report(world: &TestEnv) -> (ProbeReport, i32) {
    let output = world.probe(&["--quick", "--json", "-"]);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code().expect("the probe exits"))
}

#[test]
fn every_check_is_answered_and_nothing_leaks() {
    let world = TestEnv::new();
    let (report, status) = report(&world);
    assert_eq!((report.schema, report.quick), (SCHEMA, true));
    assert_eq!(report.device.name, "Sluice stand-in");
    let asked: Vec<u8> = report.rows.iter().map(|row| row.id).collect();
    assert_eq!(asked, checks::ALL.iter().map(|question| question.id).collect::<Vec<_>>());
    assert_eq!(asked, [1, 2, 3, 4, 5, 6, 7, 8]);
    let mut open = 0;
    for row in &report.rows {
        if let Answer::Unknown { reason } = &row.answer {
            assert!(TOO_LONG.iter().any(|words| reason.starts_with(words)), "{}: {reason}", row.name);
            assert!(!SHORT.contains(&row.name.as_str()), "{}: {reason}", row.name);
            eprintln!("this machine is too busy for {}: {reason}", row.name);
            open += 1;
        } else {
            assert!(!row.figures.is_empty(), "{} has figures", row.name);
        }
    }
    assert_eq!(status, i32::from(open > 0));
    world.assert_nothing_leaked();
}

#[test]
fn device_without_mapping_leaves_dependent_checks_unknown() {
    let world = TestEnv::new()
        .with("SLUICE_STANDIN_ATTRIBUTES", "102=0")
        .with("SLUICE_STANDIN_FAULTS", "cuMemCreate=801,cuMemAddressReserve=801");
    let (report, status) = report(&world);
    assert_eq!(status, 1);
    for row in &report.rows {
        match &row.answer {
            Answer::No { reason } => {
                assert_eq!(row.name, "limits");
                assert!(reason.starts_with("no mapping of handles: reported by the driver"), "{reason}");
            }
            Answer::Unknown { reason } => {
                assert!(reason.contains("CUDA_ERROR_NOT_SUPPORTED (operation not supported)"), "{reason}");
            }
            Answer::Yes => panic!("{} needs memory that is mapped", row.name),
        }
    }
}

//! Tests of check 7. Its answer depends on time, which the stand-in does not model.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn stalls_are_reported_with_step_model_expectation() {
    // Layers of 2 MiB, the minimum: their size follows the free memory of the device.
    let world = TestEnv::new().with("SLUICE_STANDIN_BYTES", "536870912");
    let (row, status) = world.ask("remap");
    assert!(!matches!(row.answer, Answer::Unknown { .. }) && status == 0, "{row:?}");
    world.assert_nothing_leaked();
    let names: Vec<_> = row.figures.iter().map(|figure| figure.name.as_str()).collect();
    for slots in ["slots 1", "slots 2"] {
        let measured = names.iter().filter(|name| name.ends_with(&format!("{slots}: stall"))).count();
        let expected = names.iter().filter(|name| name.ends_with(&format!("{slots}: expected"))).count();
        let closed = names.iter().filter(|name| name.contains(&format!("{slots}: closed form"))).count();
        assert!(measured > 0 && measured == expected && measured == closed, "{names:?}");
        let stretched = format!("{slots}: expected, with compute as while copying");
        let stretched = names.iter().filter(|name| name.ends_with(&stretched)).count();
        assert_eq!(stretched, measured, "{names:?}");
    }
    let regimes = names.iter().filter(|name| name.ends_with(", all resident: token")).count();
    let copying = names.iter().filter(|name| name.ends_with(", all resident, while copying: token")).count();
    assert!(regimes > 0 && copying == regimes, "{names:?}");
    assert!(
        row.notes.iter().any(|note| note.starts_with("Llama-3-8B: layers of 2 MiB in place of ")),
        "{row:?}"
    );
    if let Answer::No { reason } = &row.answer {
        assert!(!reason.contains("tags"), "every layer finds its own bytes: {reason}");
    }
}

#[test]
fn a_fill_that_is_lost_is_found() {
    let world = TestEnv::new()
        .with("SLUICE_STANDIN_BYTES", "536870912")
        .with("SLUICE_STANDIN_FAULTS", "cuMemcpyHtoDAsync_v2=drop");
    let (row, _) = world.ask("remap");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    for name in ["slots 1", "all resident, while copying"] {
        let is_found = |deviation: &str| {
            deviation.contains(&format!("{name}: ")) && deviation.ends_with(" tags did not match the layer")
        };
        assert!(reason.split("; ").any(is_found), "{name}: {reason}");
    }
}

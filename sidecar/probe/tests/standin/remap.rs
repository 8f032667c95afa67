//! Row 7. Its verdict depends on time, which the stand-in says nothing about.

use sluice_probe::report::Answer;

use super::World;

#[test]
fn stalls_are_measured_beside_what_the_step_model_expects() {
    // Small layers: a quarter of what the stand-in's device would take.
    let world = World::new().with("SLUICE_STANDIN_BYTES", "536870912");
    let (row, status) = world.ask("remap");
    assert!(!matches!(row.answer, Answer::Unknown { .. }) && status == 0, "{row:?}");
    world.nothing_is_held();
    let names: Vec<_> = row.figures.iter().map(|figure| figure.name.as_str()).collect();
    for slots in ["slots 1", "slots 2"] {
        let measured = names.iter().filter(|name| name.ends_with(&format!("{slots}: stall"))).count();
        let expected = names.iter().filter(|name| name.ends_with(&format!("{slots}: expected"))).count();
        assert!(measured > 0 && measured == expected, "{names:?}");
    }
    assert!(
        row.notes.iter().any(|note| note.starts_with("Llama-3-8B: layers of 2 MiB in place of ")),
        "{row:?}"
    );
}

//! `sluice run` with a script in place of the sidecar's program.

use crate::support::{TestEnv, finish, text};

#[test]
fn a_hub_that_cannot_be_reached_is_asked_a_few_times_and_named_in_plain_lines() {
    let world = TestEnv::new();
    world.script(
        "sluice-sidecar",
        "echo \"$*\" > asked\n\
         echo '{\"problem\": \"hub:9 cannot be reached: no address\", \"retry_in_ms\": 500}'\n\
         echo '{\"version\": 1, \"refusal\": {\"reason\": \"Unavailable\", \"message\": \"hub:9 cannot be reached: no address\"}}'\n\
         echo 'sluice-sidecar: hub:9 cannot be reached: no address' >&2\nexit 1\n",
    );
    let cache = world.path("cache");
    let arguments = ["run", "org/tiny", "--endpoint", "http://hub:9", "--port", "0", "--cache"];
    let outcome = finish(world.sluice(&[&arguments[..], &[cache.to_str().unwrap()]].concat()));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    let lines: Vec<_> = outcome.stderr.lines().collect();
    let expected = [
        "sluice: hub:9/org/tiny: reading its configuration at http://hub:9",
        "sluice: hub:9/org/tiny: trying again in 500ms: hub:9 cannot be reached: no address",
        "sluice: hub:9/org/tiny: hub:9 cannot be reached: no address; a folder with a model needs no network: sluice run FOLDER",
    ];
    assert_eq!(lines, expected);
    let asked = text(&world.path("asked"));
    assert!(asked.contains("--progress --connect-tries 3 hugging-face --repo org/tiny"), "{asked}");
}

#[test]
fn a_hub_that_answers_with_a_failure_is_named_without_the_hint_for_no_network() {
    let world = TestEnv::new();
    world.script(
        "sluice-sidecar",
        "echo '{\"version\": 1, \"refusal\": {\"reason\": \"Unavailable\", \"message\": \"http://hub:9/org/tiny: 503\"}}'\nexit 1\n",
    );
    let cache = world.path("cache");
    let arguments = ["run", "org/tiny", "--endpoint", "http://hub:9", "--port", "0", "--cache"];
    let outcome = finish(world.sluice(&[&arguments[..], &[cache.to_str().unwrap()]].concat()));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().last(), Some("sluice: hub:9/org/tiny: http://hub:9/org/tiny: 503"));
}

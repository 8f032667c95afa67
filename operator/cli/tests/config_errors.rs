//! Files with several mistakes, as `sluice up` and `sluice plan` reject them. The files and messages
//! are those of the loader's own test.

use std::path::{Path, PathBuf};

use crate::support::{TestEnv, finish, pool, tenant};

/// The folders with files, and `expected.txt` in each.
fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds/types/tests/mistakes");
    let mut cases: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

/// Writes the files of a case into the test environment; returns their names.
fn copy(world: &TestEnv, case: &Path) -> Vec<String> {
    let files = std::fs::read_dir(case).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files
        .filter(|file| file.extension().unwrap() == "yaml")
        .map(|file| {
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            world.write(&name, &std::fs::read_to_string(&file).unwrap());
            name
        })
        .collect();
    names.sort();
    names
}

fn test_env() -> TestEnv {
    let world = TestEnv::new();
    world.script("sluice-engine", "touch started\n");
    world.script("sluice-sidecar", "touch started\n");
    world
}

#[test]
fn up_and_plan_report_every_error_of_every_file() {
    let cases = cases();
    assert!(cases.len() >= 6, "{cases:?}");
    for case in cases {
        let world = test_env();
        let names = copy(&world, &case);
        let expected = std::fs::read_to_string(case.join("expected.txt")).unwrap();
        let wrong: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| expected.contains(&format!("{name}:"))).collect();
        let are = if wrong.len() == 1 { "is" } else { "are" };
        let expected = format!("sluice: {} {are} refused\n{expected}", wrong.join(", "));
        for command in ["up", "plan"] {
            let files = names.iter().flat_map(|name| ["-f", name]);
            let outcome = finish(world.sluice(&[command].into_iter().chain(files).collect::<Vec<_>>()));
            assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{command}");
            assert_eq!(outcome.stderr, expected, "{command} {}", case.display());
        }
        assert!(!world.path("started").exists(), "nothing is started, and no model is read");
    }
}

#[test]
fn unreadable_files_and_unsupported_fields_are_listed_together() {
    let world = test_env();
    world.write("pool.yaml", &pool("96Mi"));
    world.write(
        "tenants.yaml",
        &format!("{}  replicas: 2\n---\n{}  replica: 2\n", tenant("one"), tenant("two")),
    );
    let files = ["up", "-f", "pool.yaml", "-f", "missing.yaml", "-f", "tenants.yaml"];
    let outcome = finish(world.sluice(&files));
    assert_eq!(outcome.code, Some(78));
    assert_eq!(
        outcome.stderr,
        "sluice: missing.yaml, tenants.yaml are refused\n\
         missing.yaml: No such file or directory (os error 2)\n\
         tenants.yaml:7:3: spec.replicas: more than one is not supported for local processes yet\n\
         tenants.yaml:15:3: spec.replica: unknown field; did you mean `replicas`?\n\
         3 errors in 2 files\n"
    );
}

#[test]
fn a_pool_may_be_in_another_file_than_its_tenants() {
    let world = test_env();
    world.write("pool.yaml", &pool("96Mi"));
    world.write("tenant.yaml", &format!("{}  replicas: 2\n", tenant("one")));
    let both = finish(world.sluice(&["up", "-f", "tenant.yaml", "-f", "pool.yaml"]));
    assert!(!both.stderr.contains("no GpuPool"), "{}", both.stderr);
    let without_pool = finish(world.sluice(&["up", "-f", "tenant.yaml"]));
    let missing = "tenant.yaml:5:13: spec.poolRef.name: no GpuPool `local` in namespace `default`\n";
    assert!(without_pool.stderr.contains(missing), "{}", without_pool.stderr);
}

#[test]
fn before_and_after_files_report_errors_together() {
    let world = test_env();
    world.write("after.yaml", &pool("96Mi").replace("gpus", "gpu"));
    world.write("before.yaml", &pool("96Mi").replace("policy", "polizy"));
    let outcome = finish(world.sluice(&["plan", "-f", "after.yaml", "--before", "before.yaml"]));
    assert_eq!(outcome.code, Some(78));
    assert_eq!(
        outcome.stderr,
        "sluice: after.yaml, before.yaml are refused\n\
         after.yaml:8:3: spec.gpu: unknown field; did you mean `gpus`?\n\
         before.yaml:9:3: spec.polizy: unknown field; did you mean `policy`?\n\
         2 errors in 2 files\n"
    );
}

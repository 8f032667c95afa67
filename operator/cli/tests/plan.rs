//! Tests of `sluice plan` as users run it.

use crate::support::{TestEnv, finish};

const REPORT: &str = concat!(
    r#"{"version":1,"geometry":{"global_bytes":1048576,"layer_bytes":1048576,"layers":8,"kv_bytes_per_token":8192,"#,
    r#""max_model_len":256,"activation_bytes":1048576,"step_activation_bytes":1048576,"thread_bytes":0,"staging_bytes":0}}"#
);

const POOL: &str = "apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: local}
spec:
  deviceClassName: host.sluice.dev
  device: {host: {memory: 40Mi, chunkBytes: 64Ki}}
  hostMemoryPerGPU: 1Gi
  gpus:
  - name: chat
";

fn tenant(name: &str, source: &str, more: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: {name}}}\nspec:\n  poolRef: {{name: local}}\n  \
         model: {{source: {source}}}\n{more}"
    )
}

const FILE: &str = "{type: File, file: {path: models/here}}";
const HUB: &str = "{type: HuggingFace, huggingFace: {repo: a/b}}";

/// Creates an environment whose sidecar returns the requested sizes and records the requests.
fn test_env() -> TestEnv {
    let world = TestEnv::new();
    world.script("sluice-sidecar", &format!("echo \"$*\" >> asked\necho '{REPORT}'\n"));
    world
}

#[test]
fn sizes_come_from_the_folders_that_files_or_options_name() {
    let world = test_env();
    world.write("pool.yaml", POOL);
    world.write("tenants.yaml", &format!("{}---\n{}", tenant("chat", FILE, ""), tenant("code", HUB, "")));
    let files = ["plan", "-f", "pool.yaml", "-f", "tenants.yaml"];
    let outcome = finish(world.sluice(&files));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("chat  slot 0  floor 9 MiB  share 40 MiB"), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("code  not placed, because the sizes of its model are not known"),
        "{}",
        outcome.stdout
    );
    let outcome = finish(world.sluice(&[&files[..], &["--model", "code=elsewhere"]].concat()));
    assert!(outcome.stdout.contains("code  slot 0  floor 9 MiB  share 20 MiB"), "{}", outcome.stdout);
    let asked = std::fs::read_to_string(world.path("asked")).unwrap();
    let mut asked: Vec<&str> = asked.lines().collect();
    // All models are inspected at once.
    asked.sort_unstable();
    let here = "inspect --dtype Auto folder models/here";
    assert_eq!(asked, ["inspect --dtype Auto folder elsewhere", here, here]);
}

#[test]
fn a_model_of_a_tenant_that_is_in_no_file_is_refused() {
    let world = test_env();
    world.write(
        "all.yaml",
        &format!("{POOL}---\n{}---\n{}", tenant("chat", HUB, ""), tenant("code", HUB, "")),
    );
    let outcome =
        finish(world.sluice(&["plan", "-f", "all.yaml", "--model", "chat=here", "--model", "cod=there"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    let said = "sluice: --model cod=there: no tenant has the name `cod`; the tenants are: chat, code\n";
    assert_eq!(outcome.stderr, said);
    assert!(!world.path("asked").exists(), "no model is read for nothing");
}

#[test]
fn a_name_of_two_namespaces_needs_its_namespace() {
    let world = test_env();
    let in_b = |text: &str, name: &str| {
        text.replace(&format!("name: {name}"), &format!("name: {name}, namespace: b"))
    };
    let chat = tenant("chat", HUB, "");
    world.write("a.yaml", &format!("{POOL}---\n{chat}"));
    world.write("b.yaml", &POOL.replace("metadata: {", "metadata: {namespace: b, "));
    world.write("chat.yaml", &in_b(&chat, "chat"));
    let plan = |model: &str| {
        let files = ["plan", "-f", "a.yaml", "-f", "b.yaml", "-f", "chat.yaml", "--model", model];
        finish(world.sluice(&files))
    };
    let said =
        "sluice: --model chat=here: several tenants have the name `chat`: name one of b/chat, default/chat\n";
    assert_eq!((plan("chat=here").stderr.as_str(), world.path("asked").exists()), (said, false));
    let outcome = plan("b/chat=here");
    assert_eq!(outcome.stdout.matches("not placed").count(), 1, "{}\n{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.stdout.matches("chat  slot 0  floor").count(), 1, "{}", outcome.stdout);
}

#[test]
fn unplaced_exits_1_and_invalid_config_exits_78() {
    let world = test_env();
    let large = tenant("chat", FILE, "  memory: {guaranteedKv: 60Mi}\n");
    world.write("all.yaml", &format!("{POOL}---\n{large}"));
    let outcome = finish(world.sluice(&["plan", "-f", "all.yaml"]));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("no GPU: "), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("1 of 1 slot would not be served"), "{}", outcome.stderr);
    world.write("wrong.yaml", &POOL.replace("gpus", "gpu"));
    let outcome = finish(world.sluice(&["plan", "-f", "wrong.yaml"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""));
    assert!(outcome.stderr.contains("wrong.yaml:8:3: spec.gpu: unknown field"), "{}", outcome.stderr);
}

#[test]
fn change_is_shown_with_previous_plan() {
    let world = test_env();
    let file =
        |name: &str, more: &str| world.write(name, &format!("{POOL}---\n{}", tenant("chat", FILE, more)));
    file("before.yaml", "");
    file("after.yaml", "  drainSeconds: 40\n");
    let outcome = finish(world.sluice(&["plan", "-f", "after.yaml", "--before", "before.yaml"]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("The change takes chat down"), "{}", outcome.stdout);
    let both = ["plan", "-f", "after.yaml", "--before", "before.yaml", "--cluster"];
    let outcome = finish(world.sluice(&both));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("--before and a cluster cannot be combined"), "{}", outcome.stderr);
}

#[test]
fn the_example_of_two_h200_fits() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/sluice/examples/h200.yaml");
    let outcome = finish(TestEnv::new().sluice(&["plan", "-f", example]));
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.stdout, outcome.stderr);
    for placed in
        ["large  slot 0  the whole GPU", "chat   slot 0  the whole GPU", "code   slot 0  the whole GPU"]
    {
        assert!(outcome.stdout.contains(placed), "{placed}: {}", outcome.stdout);
    }
}

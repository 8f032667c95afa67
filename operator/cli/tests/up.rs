//! `sluice up` with scripts in place of sidecars.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::StatusCode;
use axum::routing::get;
use rustix::process::Signal;

use crate::support::{ProcessOutput, TestEnv, finish, is_alive, serve, signal, text, wait_for};

pub const YAML: &str = "\
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: local}
spec:
  deviceClassName: host.sluice.dev
  device: {host: {memory: 96Mi}}
  hostMemoryPerGPU: 400Mi
  gpus: [{name: one, count: 2}]
  policy: Oneiros
---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: story}
spec:
  poolRef: {name: local}
  model: {source: {type: File, file: {path: model}}}
  drainSeconds: 0
";

const SECOND_TENANT: &str = "\
---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: second}
spec:
  poolRef: {name: local}
  model: {source: {type: File, file: {path: model}}}
";

/// Records its process id and runs.
const RUNNING_SIDECAR: &str = "echo $$ >> starts\nexec sleep 600\n";

fn test_env(sidecar: &str) -> TestEnv {
    let world = TestEnv::new();
    world.write("local.yaml", YAML);
    world.script("sluice-engine", "exit 1\n");
    world.sidecar(sidecar);
    world
}

fn start(world: &TestEnv) -> Child {
    let mut command = world.sluice(&["up", "-f", "local.yaml", "--port", "0"]);
    // This proxy never answers. It must not be used for local sidecars.
    command.env("HTTP_PROXY", "http://127.0.0.1:9").env("http_proxy", "http://127.0.0.1:9");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the process ids of the sidecars so far, once there are `count`.
fn started_pids(world: &TestEnv, count: usize) -> Vec<u32> {
    wait_for("the sidecar starts", || {
        let text = text(&world.path("starts"));
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let pids: Vec<u32> = whole.lines().map(|line| line.parse().unwrap()).collect();
        (pids.len() >= count).then_some(pids)
    })
}

fn end(child: Child) -> ProcessOutput {
    ProcessOutput::from_output(child.wait_with_output().unwrap())
}

fn rejected_output(yaml: &str) -> ProcessOutput {
    let world = test_env("touch started\n");
    world.write("local.yaml", yaml);
    let outcome = finish(world.sluice(&["up", "-f", "local.yaml"]));
    assert!(!world.path("started").exists(), "nothing may be started");
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    outcome
}

#[test]
fn a_missing_file_is_named() {
    let outcome = finish(test_env(RUNNING_SIDECAR).sluice(&["up", "-f", "missing.yaml"]));
    assert_eq!(outcome.code, Some(78));
    assert_eq!(outcome.stderr, "sluice: missing.yaml: No such file or directory (os error 2)\n");
}

#[test]
fn an_unknown_field_is_printed_with_its_line() {
    let stderr = rejected_output(&YAML.replace("  policy:", "  polizy:")).stderr;
    let lines: Vec<_> = stderr.lines().collect();
    let expected = [
        "sluice: local.yaml is refused",
        "local.yaml:9:3: spec.polizy: unknown field; did you mean `policy`?",
        "1 error",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn every_value_out_of_bounds_is_printed_with_its_line() {
    let yaml = YAML.replace("drainSeconds: 0", "drainSeconds: -1\n  slo: {tbtMilliseconds: 0}");
    let stderr = rejected_output(&yaml).stderr;
    let lines: Vec<_> = stderr.lines().skip(1).collect();
    let found = |start: &str| lines.iter().any(|line| line.starts_with(start));
    assert!(found("local.yaml:17:3: spec.drainSeconds: "), "{lines:#?}");
    assert!(found("local.yaml:18:9: spec.slo.tbtMilliseconds: "), "{lines:#?}");
}

#[test]
fn unsupported_field_is_rejected_with_location() {
    let asked = "  replicas: 2\n  engine: {kind: Vllm, image: v}\n  drainS";
    let outcome = rejected_output(&YAML.replace("  drainS", asked));
    assert_eq!(
        outcome.stderr,
        "sluice: local.yaml is refused\n\
         local.yaml:17:3: spec.replicas: more than one is not supported for local processes yet\n\
         local.yaml:18:12: spec.engine.kind: sluice up starts only engines of Sluice; for a running vLLM server, \
         start sluice-sidecar with engine.url in its configuration, or use a cluster\n\
         2 errors\n"
    );
}

#[test]
fn cluster_only_field_is_one_warning() {
    let world = test_env(RUNNING_SIDECAR);
    world.write("local.yaml", &YAML.replace("  drainS", "  podLabels: {a: b}\n  drainS"));
    let up = start(&world);
    started_pids(&world, 1);
    signal(&up, Signal::TERM);
    let outcome = end(up);
    assert_eq!(outcome.code, Some(0));
    let warnings: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(
        warnings,
        ["sluice: warning: local.yaml:17:3: spec.podLabels: has no effect outside a cluster"]
    );
}

#[test]
fn a_sibling_that_is_not_installed_is_named() {
    let world = TestEnv::new();
    world.write("local.yaml", YAML);
    let outcome = finish(world.sluice_without_siblings(&["up", "-f", "local.yaml"]));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.starts_with("sluice: sluice-engine is not in"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(" -p sluice-cli "), "{}", outcome.stderr);
}

/// A sidecar that writes its address, then runs.
fn sidecar_at(probes: std::net::SocketAddr) -> String {
    format!(
        "folder=$(dirname \"$2\")\ntest \"$1\" = --config || exit 78\ncat > \"$folder/sidecar.json\" <<END\n\
         {{\"namespace\": \"default\", \"name\": \"story\", \"pid\": $$, \"serve\": \"127.0.0.1:8123\",\n\
         \"admin\": \"127.0.0.1:1\", \"probes\": \"{probes}\", \"token_file\": \"$folder/token\", \"gpu\": \"g\"}}\n\
         END\n{RUNNING_SIDECAR}"
    )
}

#[test]
fn ready_is_printed_after_probe_and_sigterm_cleans_up() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let ready = || async {
        let early = ASKED.fetch_add(1, Ordering::SeqCst) < 3;
        if early { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    };
    let probes = serve(axum::Router::new().route("/ready", get(ready)));
    let world = test_env(&sidecar_at(probes));
    let mut up = start(&world);
    let mut line = String::new();
    BufReader::new(up.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready default/story http://127.0.0.1:8123\n");
    assert_eq!(ASKED.load(Ordering::SeqCst), 4, "not before the probe said so, and not again");
    let sidecar = started_pids(&world, 1)[0];
    signal(&up, Signal::TERM);
    assert_eq!(end(up).code, Some(0));
    assert!(!is_alive(sidecar));
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn sidecar_receives_tenant_and_runtime_dir() {
    let received = "cp \"$2\" received.tmp && mv received.tmp received.json";
    let line = "echo \"$SLUICE_LOG_NAME: a line, level ${SLUICE_LOG-unset}, $3\" >&2";
    let world = test_env(&format!("{line}\n{received}\n{RUNNING_SIDECAR}"));
    let up = start(&world);
    started_pids(&world, 1);
    let received = text(&world.path("received.json"));
    let config: sluice_wire::config::SidecarConfig = serde_json::from_str(&received).unwrap();
    assert_eq!((config.namespace.as_str(), config.name.as_str()), ("default", "story"));
    assert_eq!(config.runtime_dir, world.path("run/default.story"));
    assert_eq!(config.model_path, world.path("model").canonicalize().unwrap_or(world.path("model")));
    assert_eq!(config.engine.spawn, Some(world.path("bin/sluice-engine")));
    assert_eq!((config.policy.as_str(), config.gpu.memory_bytes), ("Oneiros", 96 << 20));
    signal(&up, Signal::INT);
    let outcome = end(up);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("interrupted"), "{}", outcome.stderr);
    let line = "default/story: a line, level unset, --refusal-in-file\n";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn closed_terminal_leaves_no_processes() {
    let world = test_env(RUNNING_SIDECAR);
    world.write("local.yaml", YAML);
    let up = start(&world);
    started_pids(&world, 1);
    signal(&up, Signal::HUP);
    let outcome = end(up);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("hung up"), "{}", outcome.stderr);
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn exited_sidecar_is_restarted() {
    let world = test_env("echo $$ >> starts\ntest $(wc -l < starts) -ge 3 && exec sleep 600\nkill -9 $$\n");
    let up = start(&world);
    let pids = started_pids(&world, 3);
    signal(&up, Signal::TERM);
    let outcome = end(up);
    assert_eq!(outcome.code, Some(0));
    let restarts: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("restarting in")).collect();
    assert_eq!(restarts.len(), 2, "{}", outcome.stderr);
    assert!(restarts[0].contains("default/story") && restarts[0].contains("signal: 9"), "{restarts:?}");
    assert!(
        restarts[0].ends_with("in 50ms") && restarts[1].ends_with("in 100ms"),
        "it backs off: {restarts:?}"
    );
    assert!(!is_alive(pids[2]));
}

#[test]
fn a_sidecar_that_cannot_serve_ends_all() {
    let world = test_env(&format!(
        "case \"$2\" in *default.second*) echo 'second: bad model' >&2; until test -s starts; do sleep 0.05; done; exit 78;; esac\n{RUNNING_SIDECAR}"
    ));
    world.write("local.yaml", &format!("{YAML}{SECOND_TENANT}"));
    let outcome = end(start(&world));
    assert_eq!(outcome.code, Some(78));
    assert!(outcome.stderr.contains("second: bad model\n"), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("sluice: default/second: the sidecar cannot serve it"),
        "{}",
        outcome.stderr
    );
    assert!(!is_alive(started_pids(&world, 1)[0]), "the other one is ended");
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

/// A sidecar that rejects its configuration and writes the reason.
fn rejecting_env(field: &str) -> TestEnv {
    test_env(&format!(
        "echo '{{\"fields\": [\"{field}\"], \"problem\": \"no good\"}}' > \"$(dirname \"$2\")/refusal.json\"\nexit 78\n"
    ))
}

#[test]
fn rejection_names_file_line_and_field() {
    let outcome = end(start(&rejecting_env("gpu.memory_bytes")));
    assert_eq!(outcome.code, Some(78));
    assert_eq!(
        outcome.stderr,
        "sluice: default/story: cannot be served\n\
         local.yaml:6: GpuPool/local spec.device.host.memory: no good\n"
    );
}

/// A sidecar that cannot inspect a model, for this reason.
fn uninspectable_env(reason: &str) -> TestEnv {
    let world = test_env("");
    let refusal = format!("{{\"reason\": \"{reason}\", \"message\": \"model/config.json: no such file\"}}");
    let report = format!("{{\"version\": 1, \"refusal\": {refusal}}}");
    world.script("sluice-sidecar", &format!("test \"$1\" = inspect || touch started\necho '{report}'\n"));
    world
}

#[test]
fn a_model_that_cannot_be_read_is_refused_by_its_line_before_anything_starts() {
    for (reason, code, expected) in [
        (
            "Unreadable",
            78,
            "sluice: default/story: cannot be served\n\
             local.yaml:16: ModelTenant/story spec.model.source.file.path: model/config.json: no such file\n",
        ),
        ("Unavailable", 1, "sluice: default/story: model/config.json: no such file\n"),
    ] {
        let world = uninspectable_env(reason);
        let outcome = end(start(&world));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(code), expected));
        assert!(!world.path("started").exists(), "{reason}: nothing is started");
        assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
    }
}

#[test]
fn a_taken_port_comes_with_the_option_that_chooses_another() {
    let outcome = end(start(&rejecting_env("listen.serve")));
    assert_eq!(outcome.code, Some(78));
    let expected = "sluice: default/story: no good; choose another port with --port (0 = a free one)";
    assert!(outcome.stderr.starts_with(expected), "{}", outcome.stderr);
}

#[test]
fn a_sidecar_that_does_not_listen_to_sigterm_is_killed() {
    let world = test_env("trap '' TERM\necho $$ >> starts\nwhile :; do sleep 0.2; done\n");
    let up = start(&world);
    let sidecar = started_pids(&world, 1)[0];
    signal(&up, Signal::TERM);
    let outcome = end(up);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("did not end within"), "{}", outcome.stderr);
    assert!(!is_alive(sidecar));
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn no_sidecar_outlives_a_killed_parent_and_the_tenant_can_be_started_again() {
    let world = test_env(RUNNING_SIDECAR);
    let mut up = start(&world);
    let sidecar = started_pids(&world, 1)[0];
    assert!(is_alive(sidecar));
    signal(&up, Signal::KILL);
    // Not `end`: a sidecar that still ran would hold the other end of its pipes.
    up.wait().unwrap();
    wait_for("the sidecar ends with its parent", || (!is_alive(sidecar)).then_some(()));
    let again = start(&world);
    started_pids(&world, 2);
    signal(&again, Signal::TERM);
    assert_eq!(end(again).code, Some(0));
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn duplicate_tenant_is_rejected_and_first_continues() {
    let world = test_env(RUNNING_SIDECAR);
    let first = start(&world);
    let sidecar = started_pids(&world, 1)[0];
    let second = end(start(&world));
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.starts_with("sluice: default/story is running already"), "{}", second.stderr);
    assert!(is_alive(sidecar) && world.runtime_dir_entries().len() == 1);
    assert!(started_pids(&world, 1).len() == 1, "no second sidecar");
    signal(&first, Signal::TERM);
    assert_eq!(end(first).code, Some(0));
}

#[test]
fn a_second_signal_ends_at_once_and_leaves_nothing() {
    let world = test_env(
        "trap '' TERM\nsleep 600 & echo $! >> starts\necho $$ >> starts\nwhile :; do sleep 0.2; done\n",
    );
    world.write("local.yaml", &YAML.replace("drainSeconds: 0", "drainSeconds: 3600"));
    let mut up = start(&world);
    let pids = started_pids(&world, 2);
    signal(&up, Signal::INT);
    let mut stderr = BufReader::new(up.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "sluice: interrupted: waiting until open streams end; a second signal ends them\n");
    assert!(up.try_wait().unwrap().is_none() && pids.iter().all(|pid| is_alive(*pid)), "streams may finish");
    let begun = std::time::Instant::now();
    signal(&up, Signal::INT);
    assert_eq!(end(up).code, Some(1), "streams were cut");
    assert!(begun.elapsed() < crate::support::TEST_TIMEOUT, "it took {:?}", begun.elapsed());
    for pid in pids {
        wait_for("the sidecar and what it started end", || (!is_alive(pid)).then_some(()));
    }
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn failed_restart_is_retried_until_it_succeeds() {
    let world = test_env(
        "echo $$ >> starts\ntest $(wc -l < starts) -ge 2 && exec sleep 600\nmv \"$0\" \"$0.aside\"\nkill -9 $$\n",
    );
    let mut up = start(&world);
    let mut stderr = BufReader::new(up.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("could not be started") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "it went on: {said}");
    }
    let binary = world.path("bin/sluice-sidecar");
    std::fs::rename(world.path("bin/sluice-sidecar.aside"), &binary).unwrap();
    let pids = started_pids(&world, 2);
    assert!(is_alive(pids[1]), "{said}");
    signal(&up, Signal::TERM);
    assert_eq!(end(up).code, Some(0));
    assert!(said.contains("default/story") && said.contains(binary.to_str().unwrap()), "{said}");
}

#[test]
fn unread_output_does_not_block() {
    let probes = serve(axum::Router::new().route("/ready", get(|| async { StatusCode::OK })));
    let world = test_env(&sidecar_at(probes).replace("exec sleep 600", "sleep 0.5\nkill -9 $$"));
    let mut up = start(&world);
    drop((up.stdout.take(), up.stderr.take()));
    // Ready, killed and started again, each with a line that is not read.
    started_pids(&world, 3);
    assert!(up.try_wait().unwrap().is_none(), "it goes on");
    signal(&up, Signal::TERM);
    assert_eq!(up.wait().unwrap().code(), Some(0));
    assert_eq!(world.runtime_dir_entries(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn files_without_tenants_are_a_config_error() {
    let (pool, _) = YAML.split_once("---").unwrap();
    assert_eq!(rejected_output(pool).stderr, "sluice: nothing to run: the files hold no ModelTenant\n");
    let suspended = YAML.replace("drainSeconds: 0", "suspend: true");
    let message = "sluice: nothing to run: the one ModelTenant is suspended or has no replicas\n";
    assert_eq!(rejected_output(&suspended).stderr, message);
}

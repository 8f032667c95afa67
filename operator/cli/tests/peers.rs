//! `sluice up` with several tenants on one GPU.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::directive::Directive;

use crate::support::{ProcessOutput, TestEnv, pool, serve, signal, tenant, text, wait_for};

const TENANTS: [&str; 3] = ["chat", "code", "mail"];

/// Three tenants on the one GPU.
fn yaml() -> String {
    let tenant = |name: &str| format!("---\n{}  drainSeconds: 0\n", tenant(name));
    format!("{}{}", pool("24Mi"), TENANTS.map(tenant).concat())
}

/// A sidecar that reports the address that the test has written for this instance of its tenant.
const LISTENING_SIDECAR: &str =
    "folder=$(dirname \"$2\"); name=${folder##*.}; touch lives.$name; life=$(wc -l < lives.$name)
cp \"$2\" received.tmp.$name; mv received.tmp.$name received.$name
echo secret-of-$name > \"$folder/token\"
echo $$ >> lives.$name
cp record.$name.$life \"$folder/tmp\" && mv \"$folder/tmp\" \"$folder/sidecar.json\"
exec sleep 600
";

/// Answer of a tenant's admin port to its n-th directive, from 0, of this epoch.
type AdminScript = fn(usize, u64) -> (StatusCode, Value);

/// Admin ports of this process, and the directives that they received.
#[derive(Clone, Default)]
struct FakeAdmins(Arc<Mutex<BTreeMap<String, Vec<Directive>>>>);

impl FakeAdmins {
    /// Starts an admin port for the sidecar of `name` in its instance `life`.
    fn listen(&self, world: &TestEnv, name: &'static str, life: usize, answer: AdminScript) -> SocketAddr {
        let fakes = self.clone();
        let put = move |headers: HeaderMap, Json(directive): Json<Directive>| async move {
            assert_eq!(headers["authorization"], format!("Bearer secret-of-{name}"));
            let mut all = fakes.0.lock().unwrap();
            let own = all.entry(name.to_owned()).or_default();
            let epoch = directive.fence().epoch;
            own.push(directive);
            let (status, body) = answer(own.len() - 1, epoch);
            (status, Json(body))
        };
        let routes = axum::Router::new().route("/v1/directive", axum::routing::put(put));
        let address = serve(routes.route("/ready", get(|| async { StatusCode::OK })));
        let record = SidecarRecord {
            namespace: "default".into(),
            name: name.into(),
            pid: 1,
            serve: address,
            admin: address,
            probes: address,
            token_file: world.path(&format!("run/default.{name}/token")),
            gpu: "local-one-0".into(),
        };
        world.write(&format!("record.{name}.{life}"), &serde_json::to_string(&record).unwrap());
        address
    }

    /// Addresses of the first instance of every sidecar.
    fn listen_all(&self, world: &TestEnv) -> [SocketAddr; 3] {
        TENANTS.map(|name| self.listen(world, name, 0, accept))
    }

    /// Waits for the directive number `index` of `name`.
    fn directive(&self, name: &str, index: usize) -> Directive {
        wait_for("a directive comes", || self.0.lock().unwrap().get(name)?.get(index).cloned())
    }

    fn count(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).map_or(0, Vec::len)
    }
}

fn accept(_: usize, _: u64) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"current": {"epoch": 0, "sequence": 0}}))
}

fn test_env() -> TestEnv {
    let world = TestEnv::new();
    world.write("local.yaml", &yaml());
    world.script("sluice-engine", "exit 1\n");
    world.sidecar(LISTENING_SIDECAR);
    world
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn up(world: &TestEnv) -> Child {
    start(world.sluice(&["up", "-f", "local.yaml", "--port", "0"]))
}

/// Ends it in order; returns its output since then.
fn finish_up(up: Child, world: &TestEnv) -> ProcessOutput {
    signal(&up, Signal::TERM);
    let outcome = ProcessOutput::from_output(up.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(world.runtime_dir_entries(), [] as [PathBuf; 0]);
    outcome
}

fn config(world: &TestEnv, name: &str) -> SidecarConfig {
    serde_json::from_str(&text(&world.path(&format!("received.{name}")))).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn tenants_share_gpu_dir_and_get_peers_after_each_restart() {
    let (world, fakes) = (test_env(), FakeAdmins::default());
    let admins = fakes.listen_all(&world);
    let back = fakes.listen(&world, "code", 1, accept);
    let up = up(&world);
    let first = TENANTS.map(|name| fakes.directive(name, 0));
    for (index, directive) in first.iter().enumerate() {
        let expected: Vec<_> = (0..3).filter(|i| *i != index).map(|i| (TENANTS[i], admins[i])).collect();
        let peers: Vec<_> = directive.peers.iter().map(|n| (n.name.as_str(), n.admin)).collect();
        assert_eq!((directive.sequence, peers), (1, expected));
        assert_eq!(directive.epoch, first[0].epoch);
        let own = config(&world, TENANTS[index]).gpu_ledger.unwrap();
        // A third of 24 MiB: the models are equal.
        assert_eq!((own.share_bytes, own.folder), (8 << 20, world.path("run/gpu.default.local-one-0")));
        assert_eq!((own.claim.len(), own.sharing), (32, directive.sharing));
    }
    let token_file = config(&world, "chat").listen.peer_token_file.unwrap();
    assert_eq!(config(&world, "mail").listen.peer_token_file.as_ref(), Some(&token_file));
    let tokens = text(&token_file);
    let tokens: BTreeMap<_, _> = tokens.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert!(tokens.keys().all(|t| t.len() == 64 && t.bytes().all(|b| b.is_ascii_hexdigit())), "{tokens:?}");
    let bound: Vec<_> = tokens.values().copied().collect();
    let own = TENANTS.map(|name| format!("default/{name}"));
    assert!(bound.len() == 3 && own.iter().all(|own| bound.contains(&own.as_str())), "one each: {tokens:?}");
    assert_eq!((mode(&token_file), mode(token_file.parent().unwrap())), (0o600, 0o700));
    let pid = text(&world.path("lives.code")).trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    for name in ["chat", "mail"] {
        let again = fakes.directive(name, 1);
        assert_eq!((again.epoch, again.sequence), (first[0].epoch, 2));
        assert_eq!(again.peers.iter().find(|n| n.name == "code").unwrap().admin, back);
    }
    assert_eq!(fakes.directive("code", 1).sequence, 2);
    finish_up(up, &world);
}

#[test]
fn new_run_has_new_claim_new_token_and_higher_epoch() {
    let world = test_env();
    let run = || {
        for name in TENANTS {
            world.write(&format!("lives.{name}"), "");
        }
        let fakes = FakeAdmins::default();
        fakes.listen_all(&world);
        let up = up(&world);
        let epoch = TENANTS.map(|name| fakes.directive(name, 0).epoch)[0];
        let config = config(&world, "chat");
        let token = text(&config.listen.peer_token_file.unwrap());
        finish_up(up, &world);
        (epoch, config.gpu_ledger.unwrap().claim, token)
    };
    let (first, second) = (run(), run());
    assert!(second.0 > first.0, "{first:?} {second:?}");
    assert!(second.1 != first.1 && second.2 != first.2, "{first:?} {second:?}");
}

#[test]
fn failed_directive_is_retried_and_rejected_one_is_not() {
    let (world, fakes) = (test_env(), FakeAdmins::default());
    let fails_twice: AdminScript = |attempt, epoch| match attempt {
        0 | 1 => (StatusCode::SERVICE_UNAVAILABLE, json!({"error": {"message": "not now"}})),
        _ => accept(attempt, epoch),
    };
    let refuses: AdminScript = |_, _| {
        let error = json!({"message": "`policy`: unknown here", "param": "policy"});
        (StatusCode::UNPROCESSABLE_ENTITY, json!({ "error": error }))
    };
    fakes.listen(&world, "chat", 0, fails_twice);
    fakes.listen(&world, "code", 0, refuses);
    fakes.listen(&world, "mail", 0, accept);
    let up = up(&world);
    assert_eq!(fakes.directive("chat", 2).sequence, 1, "the same one again");
    fakes.directive("code", 0);
    fakes.directive("mail", 0);
    let said = finish_up(up, &world).stderr;
    let of = |name: &str| said.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
    let known = "could not be sent its new share of the GPU and keeps its current share";
    let failed = |wait| format!("sluice: default/chat {known}: not now; trying again in {wait}ms");
    assert_eq!(of("default/chat"), [failed(50), failed(100)], "{said}");
    assert_eq!((of("default/code").len(), of("default/mail").len()), (1, 0), "{said}");
    let refused = of("default/code")[0];
    assert!(refused.starts_with("sluice: error: default/code: directive ("), "{refused}");
    assert!(refused.ends_with(", 1) is refused: `policy`: unknown here"), "{refused}");
    assert_eq!((fakes.count("code"), fakes.count("mail")), (1, 1));
}

/// A rejection because a directive of this epoch, with sequence 50, is in force.
fn conflict_response(epoch: u64) -> (StatusCode, Value) {
    let error = json!({"message": "not newer than the one in force"});
    (StatusCode::CONFLICT, json!({"error": error, "current": {"epoch": epoch, "sequence": 50}}))
}

#[test]
fn manual_directive_is_superseded_unless_epoch_is_newer() {
    let (world, fakes) = (test_env(), FakeAdmins::default());
    fakes.listen(&world, "chat", 0, |attempt, epoch| match attempt {
        0 => conflict_response(epoch),
        _ => accept(attempt, epoch),
    });
    fakes.listen(&world, "code", 0, |_, epoch| conflict_response(epoch + 1));
    fakes.listen(&world, "mail", 0, accept);
    let up = up(&world);
    assert_eq!(fakes.directive("chat", 1).sequence, 51);
    assert_eq!(fakes.directive("mail", 1).sequence, 51, "all have the same one");
    fakes.directive("code", 1);
    let said = finish_up(up, &world).stderr;
    assert_eq!(said.matches("is from another sender and is replaced").count(), 1, "{said}");
    assert_eq!(said.matches("is refused: not newer").count(), 2, "{said}");
    assert_eq!((fakes.count("chat"), fakes.count("mail")), (2, 2));
}

#[test]
fn gpu_of_another_run_is_rejected_and_first_run_continues() {
    let (world, fakes) = (test_env(), FakeAdmins::default());
    fakes.listen_all(&world);
    let first = up(&world);
    fakes.directive("mail", 0);
    world.write("other.yaml", &yaml().replace("metadata: {name: c", "metadata: {name: other-c"));
    let second = start(world.sluice(&["up", "-f", "other.yaml", "--port", "0"]));
    let outcome = ProcessOutput::from_output(second.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(1));
    let expected = "sluice: GPU default/local-one-0 already belongs to another run";
    assert!(outcome.stderr.starts_with(expected), "{}", outcome.stderr);
    assert!(world.path("run/gpu.default.local-one-0/peer_tokens").exists());
    finish_up(first, &world);
}

/// Returns the folder of the product's binaries. Without it, prints the skipped test.
fn binaries(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SLUICE_BIN_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder.filter(|folder| folder.join("sluice-sidecar").is_file());
    if folder.is_none() {
        // Not `eprintln!`, because the test harness would capture it.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED {test}: set SLUICE_BIN_DIR to the folder of built binaries").unwrap();
    }
    folder.map(|folder| std::path::absolute(folder).unwrap())
}

/// Returns status and answer of a real sidecar's admin port to `GET path`.
fn ask(record: &SidecarRecord, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(record.admin).unwrap();
    let token = text(&record.token_file);
    let head =
        format!("GET {path} HTTP/1.0\r\nhost: sidecar\r\nauthorization: Bearer {}\r\n\r\n", token.trim());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn three_sidecar_processes_share_one_gpu_with_directives() {
    let Some(binaries) = binaries("three real tenants on one GPU") else { return };
    let world = TestEnv::new();
    world.write("local.yaml", &yaml());
    let options = "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 512";
    let mut generate = Command::new(binaries.join("sluice-model-gen"));
    let generated = generate.arg("--out").arg(world.path("model")).args(options.split(' ')).output().unwrap();
    assert!(generated.status.success(), "{generated:?}");
    let mut command = world.sluice(&["up", "-f", "local.yaml", "--port", "0", "--threads", "1"]);
    command.env("SLUICE_BIN_DIR", &binaries);
    let mut up = start(command);
    let mut ready: Vec<String> =
        BufReader::new(up.stdout.as_mut().unwrap()).lines().take(3).map(Result::unwrap).collect();
    ready.sort();
    for (index, name) in TENANTS.into_iter().enumerate() {
        assert!(ready[index].starts_with(&format!("ready default/{name} http://")), "{ready:?}");
        let record = text(&world.path(&format!("run/default.{name}/sidecar.json")));
        let record: SidecarRecord = serde_json::from_str(&record).unwrap();
        let directive = wait_for("a directive is in force", || match ask(&record, "/v1/directive") {
            (200, body) => Some(Directive::from_json(body.as_bytes()).unwrap()),
            (status, _) => {
                assert_eq!(status, 404);
                None
            }
        });
        let others: Vec<_> = directive.peers.iter().map(|n| n.name.as_str()).collect();
        let expected: Vec<_> = TENANTS.into_iter().filter(|other| *other != name).collect();
        assert_eq!(others, expected);
    }
    let said = finish_up(up, &world).stderr;
    assert!(!said.contains("could not be sent its new share") && !said.contains("refused"), "{said}");
}

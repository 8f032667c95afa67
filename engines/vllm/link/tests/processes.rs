//! Two processes: the link of a process that ends with its sidecar, and the scripted sidecar.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use sluice_link::control::{WaitLimit, WaitResult};
use sluice_vllm_link::sluice_exit_with_sidecar;

use crate::c_link::{CLink, checked};
use crate::host_sidecar::{HostSidecar, LIMIT, SCHEDULER, WORKER};

const SOCKET: &str = "SLUICE_TEST_SOCKET";
const EXIT_STATUS: i32 = 77;

/// Runs an ignored test of this program in a process of its own.
pub fn case(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// Returns the socket that the parent named.
pub fn socket() -> PathBuf {
    PathBuf::from(std::env::var_os(SOCKET).expect("a parent test starts this"))
}

pub fn with_socket(mut command: Command, path: &Path) -> Command {
    command.env(SOCKET, path);
    command
}

#[test]
fn a_process_ends_with_its_sidecar_while_it_waits_in_a_pass() {
    let sidecar = HostSidecar::new();
    let mut command = with_socket(case("processes::waits_for_ever"), &sidecar.path);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let link = sidecar.attach();
    assert_eq!(sidecar.control.wait_pass_ended(1, within_limit()), WaitResult::Reached);
    assert!(process.try_wait().unwrap().is_none(), "it waits in a pass");
    drop(link);
    assert_eq!(process.wait().unwrap().code(), Some(EXIT_STATUS));
}

fn within_limit() -> WaitLimit<'static> {
    static NEVER: AtomicBool = AtomicBool::new(false);
    WaitLimit { abort: &NEVER, limit: Some(LIMIT) }
}

#[test]
#[ignore = "a process of another test"]
fn waits_for_ever() {
    let worker = CLink::worker(&socket(), WORKER).unwrap();
    // SAFETY: the link exists.
    checked(unsafe { sluice_exit_with_sidecar(worker.0, EXIT_STATUS) }).unwrap();
    let pass = worker.begin_pass().unwrap();
    worker.end_pass(pass).unwrap();
    // The parent cuts the link once a pass has ended. No call of this library returns before.
    loop {
        std::thread::park();
    }
}

/// The example. `cargo test` builds it with all tests of this package, and not with some of them.
struct Scripted {
    _folder: tempfile::TempDir,
    path: PathBuf,
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Scripted {
    /// Starts it if it is built.
    fn start() -> Option<Scripted> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock");
        let test = std::env::current_exe().unwrap();
        let program = test.parent().and_then(Path::parent).unwrap().join("examples/scripted_sidecar");
        if !program.exists() {
            println!("skipped: {} is not built (cargo build --examples)", program.display());
            return None;
        }
        let mut command = Command::new(program);
        command.arg(&path).args(["--layer-chunks", "2x4", "--kv-chunks", "16", "--extents", "3"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Some(Scripted { _folder: folder, path, process, input, output })
    }

    fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Returns the next line that has `key` with this value.
    fn line(&mut self, key: &str, value: &str) -> Value {
        loop {
            let line = self.output.next().expect("it runs").unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            if line[key] == value {
                return line;
            }
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Carries out orders until `count` of them are done.
fn carry_out(worker: &CLink, count: usize) -> Vec<Value> {
    (0..count)
        .map(|_| {
            let message = worker.next();
            let id = message["id"].as_u64().unwrap_or_default();
            match message["type"].as_str().unwrap() {
                "remap" | "zero" => worker.apply(id).unwrap(),
                "moving" => worker.send(&json!({"type": "applied", "id": id}).to_string()).unwrap(),
                _ => {}
            }
            message
        })
        .collect()
}

/// Starts a worker: every byte of a layer is its number, counted from 1, and three extents have memory.
fn load(worker: &CLink) {
    worker.reserve().unwrap();
    carry_out(worker, 1);
    for layer in 0..4 {
        let (address, bytes) = worker.layer_range(layer).unwrap();
        // SAFETY: the layer's chunks were mapped above.
        unsafe { (address as *mut u8).write_bytes(layer as u8 + 1, bytes as usize) };
    }
    worker.send(r#"{"type": "loaded", "layer_bytes": [10, 10, 10, 10]}"#).unwrap();
    assert_eq!(carry_out(worker, 1), [json!({"type": "captured"})]);
    let layout = json!({
        "type": "kv_layout", "layers": 2, "blocks": 8, "block_bytes": 65_536, "layer_stride_bytes": 8 * 65_536,
        "block_stride_bytes": 65_536, "block_tokens": 16,
    });
    worker.send(&layout.to_string()).unwrap();
    carry_out(worker, 3);
}

/// Reads all layers in a pass and waits for those that move. Returns whether each had its own bytes.
fn pass(worker: &CLink, moving: &[u32], waits: bool) -> bool {
    let pass = worker.begin_pass().unwrap();
    let mut is_right = true;
    for layer in 0..4 {
        let is_moving = moving.contains(&layer);
        if is_moving && waits {
            worker.wait_ready(layer, pass, 10_000).unwrap();
        }
        let (address, bytes) = worker.layer_range(layer).unwrap();
        // SAFETY: the layer's chunks are mapped, and the sidecar writes them only before `ready` and after `done`; the
        // control without waits reads bytes that may change, one at a time.
        let read = |at: u64| unsafe { std::ptr::read_volatile((address + at) as *const u8) };
        is_right &= (0..bytes).step_by(97).all(|at| u32::from(read(at)) == layer + 1);
        if is_moving {
            worker.publish_done(layer, pass).unwrap();
        }
    }
    worker.end_pass(pass).unwrap();
    is_right
}

#[test]
fn the_scripted_sidecar_moves_layers_and_extents() {
    let Some(mut sidecar) = Scripted::start() else { return };
    let worker = CLink::worker(&sidecar.path, WORKER).unwrap();
    load(&worker);
    let scheduler = CLink::scheduler(&sidecar.path, SCHEDULER).unwrap();
    assert_eq!(scheduler.setup()["granted"], json!([0, 1, 2]));

    sidecar.send("poison on");
    sidecar.send("hold");
    let id = scheduler.next()["id"].clone();
    let held = json!({"type": "held", "id": id, "idle": [1], "wanted_blocks": 0, "waiting": 0, "running": 0});
    scheduler.send(&held.to_string()).unwrap();
    assert_eq!(sidecar.line("command", "hold")["result"]["idle"], json!([1]));
    sidecar.send("grow 2");
    carry_out(&worker, 2);
    assert_eq!(sidecar.line("command", "grow 2")["result"], json!([3, 4]));
    sidecar.send("withdraw 1");
    carry_out(&worker, 1);
    assert_eq!(sidecar.line("command", "withdraw 1")["result"], json!([1]));
    sidecar.send("remap 1 2 3");
    carry_out(&worker, 2);
    assert_eq!(sidecar.line("command", "remap 1 2 3")["result"]["first_pass"], 1);
    sidecar.send("resume");
    let resume = scheduler.next();
    assert_eq!((&resume["granted"], &resume["withdrawn"]), (&json!([3, 4]), &json!([1])));
    assert!((0..50).all(|_| pass(&worker, &[1, 2, 3], true)), "every layer has its weights in every pass");

    sidecar.send("copy_delay_us 2000");
    assert_eq!(sidecar.line("command", "copy_delay_us 2000")["ok"], true);
    let dropped = (0..5).any(|_| !pass(&worker, &[1, 2, 3], false));
    assert!(dropped, "the control: without waits a layer has the weights of another");
    sidecar.send("verify");
    assert_eq!(sidecar.line("command", "verify")["result"]["differing"], json!([]));
    sidecar.send("exit");
    assert_eq!(worker.receive(-1).unwrap_err().0, sluice_vllm_link::SLUICE_CLOSED);
    assert!(sidecar.process.wait().unwrap().success());
}

#[test]
fn a_worker_that_is_killed_leaves_its_chunks_to_the_next_one() {
    let Some(mut sidecar) = Scripted::start() else { return };
    let mut free = Vec::new();
    for _ in 0..3 {
        let mut command = with_socket(case("processes::loads_and_waits"), &sidecar.path);
        let mut worker = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sidecar.line("event", "kv");
        // Without a scheduler that is to be held: no pass runs.
        sidecar.send("remap 0 2 3");
        assert_eq!(sidecar.line("command", "remap 0 2 3")["ok"], true);
        worker.kill().unwrap();
        worker.wait().unwrap();
        assert_eq!(sidecar.line("event", "worker_gone")["exited"], true);
        sidecar.send("status");
        free.push(sidecar.line("command", "status")["result"]["free_chunks"].clone());
    }
    assert_eq!(free, vec![json!(16_384 - 4 * 2); 3], "KV and slots are free, each layer has its chunks");
}

#[test]
#[ignore = "a process of another test"]
fn loads_and_waits() {
    let worker = CLink::worker(&socket(), WORKER).unwrap();
    load(&worker);
    // The parent kills this process.
    loop {
        carry_out(&worker, 1);
    }
}

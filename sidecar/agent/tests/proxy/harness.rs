//! A real sidecar in front of an engine in a process of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_wire::config::SidecarRecord;
use tempfile::TempDir;

use super::engine;
use crate::gateway::client::{Answer, Client};

/// Longest wait: ten times the slowest step on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const COMPLETIONS: &str = "/v1/completions";

/// Waits until `done`.
pub async fn wait_until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done().await {
        assert!(Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A sidecar and its engine.
pub struct Harness {
    pub serve: SocketAddr,
    pub admin: SocketAddr,
    pub probes: SocketAddr,
    pub engine: EngineProcess,
    token: String,
    sidecar: Child,
    folder: TempDir,
}

/// The engine's process and its files.
pub struct EngineProcess {
    pub address: SocketAddr,
    process: Arc<Mutex<Option<Child>>>,
    folder: std::path::PathBuf,
    sleeps: bool,
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address")
}

impl EngineProcess {
    pub fn start(&self) {
        let own = std::env::current_exe().expect("this test");
        let mut command = Command::new(own);
        command.args(["--exact", "proxy::engine::process", "--ignored", "--nocapture"]);
        command.env(engine::ADDRESS, self.address.to_string()).env(engine::FOLDER, &self.folder);
        if self.sleeps {
            command.env(engine::SLEEPS, "1");
        }
        let child = command.stdout(Stdio::null()).spawn().expect("the engine starts");
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// Waits until the process has exited by itself.
    pub async fn wait_exit(&self) {
        let mut process =
            self.process.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it runs");
        wait_until("the engine dies", async || process.try_wait().expect("its end").is_some()).await;
    }

    /// Returns the engine's log.
    pub fn log_lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("diary")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn count(&self, beginning: &str) -> usize {
        self.log_lines().iter().filter(|line| line.starts_with(beginning)).count()
    }

    pub async fn wait_for_log(&self, beginning: &str, times: usize) {
        wait_until(&format!("{times} x `{beginning}`"), async || self.count(beginning) >= times).await;
    }

    /// Releases held responses.
    pub fn release(&self) {
        std::fs::write(self.folder.join("release"), "").expect("a file");
    }
}

impl Harness {
    /// Starts a sidecar with `more` in its configuration and an engine with sleep mode, and waits until both respond.
    pub async fn start(more: Value) -> Harness {
        let world = Harness::without_engine(more, true);
        world.engine.start();
        world.wait_ready().await;
        world
    }

    pub fn without_engine(more: Value, sleeps: bool) -> Harness {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_port();
        let engine =
            EngineProcess { address, process: Arc::default(), folder: folder.path().to_owned(), sleeps };
        let sidecar = sidecar(folder.path(), &config(folder.path(), address, more));
        let record = record(folder.path());
        let token = std::fs::read_to_string(&record.token_file).expect("a token").trim().to_owned();
        let SidecarRecord { serve, admin, probes, .. } = record;
        Harness { serve, admin, probes, engine, token, sidecar, folder }
    }

    pub async fn wait_ready(&self) {
        wait_until("ready", async || self.probe("/ready").await == 200).await;
    }

    pub async fn probe(&self, path: &str) -> u16 {
        let mut client = Client::connect(self.probes).await;
        client.send("GET", path, &[], b"").await;
        client.answer().await.head.status
    }

    pub async fn get(&self, path: &str) -> Answer {
        let mut client = Client::connect(self.serve).await;
        client.send("GET", path, &[], b"").await;
        client.answer().await
    }

    /// Sends a body; the caller reads the response.
    pub async fn start_post(&self, body: &Value) -> Client {
        let mut client = Client::connect(self.serve).await;
        client.post(COMPLETIONS, body).await;
        client
    }

    pub async fn post(&self, body: &Value) -> Answer {
        self.start_post(body).await.answer().await
    }

    /// Returns the engine's own response.
    pub async fn post_to_engine(&self, path: &str, body: &Value) -> Answer {
        let mut client = Client::connect(self.engine.address).await;
        client.post(path, body).await;
        client.answer().await
    }

    pub async fn admin(&self, method: &str, path: &str, body: &Value) -> Answer {
        let mut client = Client::connect(self.admin).await;
        let bearer = format!("Bearer {}", self.token);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        client.send(method, path, &headers, body.to_string().as_bytes()).await;
        client.answer().await
    }

    pub async fn state(&self) -> Value {
        self.admin("GET", "/v1/state", &Value::Null).await.json()
    }

    /// Returns tokens and missed tokens of an objective, parsed from the exposition.
    pub async fn objective(&self, objective: &str) -> Option<(u32, u32)> {
        let text = self.get("/metrics").await.body;
        let value = |name: &str| {
            let start = format!("{name}{{model_name=\"m\",objective=\"{objective}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
        };
        Some((value("sluice_slo_tokens_total")?, value("sluice_slo_missed_tokens_total")?))
    }

    pub async fn wait_for_phase(&self, phase: &str) {
        wait_until(phase, async || self.state().await["phase"] == phase).await;
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.sidecar);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    }

    pub async fn wait_exit(&mut self) -> ExitStatus {
        wait_until("the sidecar ends", async || self.sidecar.try_wait().expect("its end").is_some()).await;
        self.sidecar.wait().expect("it has ended")
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // The sidecar may have exited already.
        let _ = self.sidecar.kill();
        let _ = self.sidecar.wait();
        self.engine.kill();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("the sidecar said:\n{log}\nthe engine noted:\n{}", self.engine.log_lines().join("\n"));
        }
    }
}

/// A configuration with `more` merged into its top level.
pub fn config(folder: &Path, engine: SocketAddr, more: Value) -> Value {
    let mut config = json!({
        "namespace": "default", "name": "tenant", "served_names": ["m"], "model_path": "",
        "gpu": {"name": "gpu", "memory_bytes": 0, "chunk_bytes": 64 << 10},
        "policy": "Unified", "memory": {}, "pacing": "Immediate",
        "listen": {"serve": "127.0.0.1:0", "admin": "127.0.0.1:0", "probes": "127.0.0.1:0", "drain_hook": true},
        "runtime_dir": folder.join("run"),
        "engine": {"kind": "Vllm", "url": format!("http://{engine}")},
        "drain_seconds": 30,
    });
    let fields = more.as_object().cloned().unwrap_or_default();
    config.as_object_mut().expect("an object").extend(fields);
    config
}

/// Starts `sluice-sidecar`.
pub fn sidecar(folder: &Path, config: &Value) -> Child {
    let file = folder.join("config.json");
    std::fs::write(&file, config.to_string()).expect("a configuration");
    let log = std::fs::File::create(folder.join("log")).expect("a log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
    command.arg("--config").arg(file).args(["--log", "debug"]);
    command.stderr(log).spawn().expect("the sidecar starts")
}

fn record(folder: &Path) -> SidecarRecord {
    let (file, end) = (folder.join("run/sidecar.json"), Instant::now() + TIMEOUT);
    loop {
        if let Ok(text) = std::fs::read(&file) {
            return serde_json::from_slice(&text).expect("a record");
        }
        let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(Instant::now() < end, "the sidecar does not listen: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Runs processes of the product in a folder of their own, with scripts in place of their siblings.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Timeout of all waits.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// YAML of a pool with one GPU of host memory.
pub fn pool(memory: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: local}}\nspec:\n  \
         deviceClassName: host.sluice.dev\n  device: {{host: {{memory: {memory}}}}}\n  hostMemoryPerGPU: 1Gi\n  \
         gpus: [{{name: one}}]\n  policy: Oneiros\n"
    )
}

/// YAML of a tenant of that pool; lines of its spec may follow.
pub fn tenant(name: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: {name}}}\nspec:\n  \
         poolRef: {{name: local}}\n  model: {{source: {{type: File, file: {{path: model}}}}}}\n"
    )
}

/// `sluice` with its environment: it neither reads nor changes anything outside the folder.
pub struct TestEnv {
    dir: TempDir,
}

impl TestEnv {
    pub fn new() -> TestEnv {
        let world = TestEnv { dir: tempfile::tempdir().unwrap() };
        for folder in ["run", "bin"] {
            std::fs::create_dir(world.path(folder)).unwrap();
        }
        world
    }

    /// Creates an environment with a kubeconfig of an API server without TLS, whose context is in the namespace `team`.
    pub fn with_cluster(server: SocketAddr) -> TestEnv {
        let world = TestEnv::new();
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\nclusters:\n- name: c\n  cluster: {{server: 'http://{server}'}}\n\
             users:\n- name: u\n  user: {{}}\ncontexts:\n- name: here\n  context: {{cluster: c, user: u, namespace: team}}\n"
        );
        world.write("kubeconfig", &config);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Creates a sibling binary. Another process writes it: if a parallel test forks this process, the copy of an open
    /// file would make the script fail to run ("text file busy").
    pub fn script(&self, name: &str, body: &str) {
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(self.path("bin").join(name))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{body}").as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
    }

    /// Creates a sidecar's program of these lines, which inspects every model as one of 192 KiB of weights.
    pub fn sidecar(&self, body: &str) {
        let report = r#"{"version":1,"geometry":{"global_bytes":65536,"layer_bytes":65536,"layers":2,
            "kv_bytes_per_token":512,"max_model_len":64,"activation_bytes":0,"step_activation_bytes":0,
            "thread_bytes":0,"staging_bytes":0}}"#;
        let report = report.replace('\n', "");
        let inspects = format!("if [ \"$1\" = inspect ]; then echo '{report}'; exit 0; fi\n");
        self.script("sluice-sidecar", &(inspects + body));
    }

    pub fn sluice(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_sluice"), args)
    }

    /// Returns `sluice` in a folder without siblings, with an empty PATH. Another process copies it, as in
    /// [`TestEnv::script`].
    pub fn sluice_without_siblings(&self, args: &[&str]) -> Command {
        let copy = self.path("sluice");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sluice")).arg(&copy).status().unwrap();
        assert!(copied.success());
        let mut command = self.command(copy.to_str().unwrap(), args);
        command.env("PATH", "");
        command
    }

    pub fn command(&self, binary: &str, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("SLUICE_RUNTIME_DIR", self.path("run"))
            .env("SLUICE_BIN_DIR", self.path("bin"))
            .env_remove("OPENAI_API_KEY")
            .env_remove("RUST_LOG")
            .env_remove("SLUICE_LOG");
        command
    }

    /// Names of the entries of the runtime folder.
    pub fn runtime_dir_entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Runs the command to its end.
pub fn finish(mut command: Command) -> ProcessOutput {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ProcessOutput::from_output(child.wait_with_output().unwrap())
}

/// The result of a process.
#[derive(Debug)]
pub struct ProcessOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ProcessOutput {
    pub fn from_output(output: Output) -> ProcessOutput {
        ProcessOutput {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Waits until `get` returns a value.
pub fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = get() {
            return value;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the process runs. A zombie does not count.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Serves `router` on a free port until this process exits.
pub fn serve(router: axum::Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    address
}

pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

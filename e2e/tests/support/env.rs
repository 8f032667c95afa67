//! A folder for the tenants of one test, and `sluice up` in it. The tests change nothing outside the folder, and at
//! the end it is empty.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use sluice_e2e::files;
use tempfile::TempDir;

use super::tenant::Tenant;
use super::wait::eventually;
use super::yaml::Yaml;
use super::{model, processes};

/// The folder.
#[derive(Debug)]
pub struct TestEnv {
    dir: TempDir,
    /// Environment variables of its programs.
    variables: Vec<(&'static str, OsString)>,
}

impl TestEnv {
    /// An empty one.
    pub fn new() -> TestEnv {
        let dir = tempfile::Builder::new().prefix("sluice-e2e-").tempdir().unwrap();
        let world = TestEnv { dir, variables: Vec::new() };
        for folder in ["run", "tmp"] {
            std::fs::create_dir(world.path(folder)).unwrap();
        }
        world
    }

    /// Sets an environment variable of its programs.
    pub fn set(&mut self, variable: &'static str, value: impl Into<OsString>) {
        self.variables.push((variable, value.into()));
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A generated model.
    pub fn model(&self, name: &str, options: &str) -> PathBuf {
        let folder = self.path(name);
        model::generate(&folder, options);
        folder
    }

    /// Runs `sluice up` over `yaml` with more arguments.
    pub fn up(&self, yaml: &Yaml, arguments: &[&str]) -> Up<'_> {
        self.up_text(&yaml.text(), arguments)
    }

    /// Runs `sluice up` over a text that need not be YAML.
    pub fn up_text(&self, yaml: &str, arguments: &[&str]) -> Up<'_> {
        self.up_of(&model::bin_folder(), yaml, arguments)
    }

    /// Same as [`TestEnv::up_text`], with the sidecar and the engine in `binaries`.
    pub fn up_of(&self, binaries: &Path, yaml: &str, arguments: &[&str]) -> Up<'_> {
        self.write("up.yaml", yaml);
        let mut command = self.sluice(binaries);
        command.args(["up", "-f", "up.yaml", "--port", "0", "--threads", "1"]).args(arguments);
        self.record(&mut command);
        Up { child: command.env("SLUICE_LOG", "info").spawn().unwrap(), world: self }
    }

    /// `sluice` in this world, without arguments and without input; its siblings are in `binaries`.
    pub fn sluice(&self, binaries: &Path) -> Command {
        self.program(&model::binary("sluice"), binaries)
    }

    /// Same as [`TestEnv::sluice`], for another program.
    pub fn program(&self, program: &Path, binaries: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", files::FEW])
            .arg(program)
            .current_dir(self.dir.path())
            .env("SLUICE_RUNTIME_DIR", self.path("run"))
            .env("SLUICE_BIN_DIR", binaries)
            .env("TMPDIR", self.path("tmp"))
            .envs(self.variables.iter().cloned())
            .env_remove("RUST_LOG")
            .env_remove("SLUICE_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Redirects the output of `command` to [`TestEnv::stdout`] and [`TestEnv::stderr`].
    pub fn record(&self, command: &mut Command) {
        let file = |name| std::fs::File::create(self.path(name)).unwrap();
        command.stdout(file("stdout")).stderr(file("stderr"));
    }

    /// Returns a folder of binaries whose sidecar has additional options: those of the example `faulty-sidecar`.
    pub fn special_binaries(&self, options: &str) -> PathBuf {
        let sidecar = model::binary("examples/faulty-sidecar");
        self.binaries_with(&format!("exec '{}' {options} \"$@\"", sidecar.display()))
    }

    /// Returns a folder of binaries with a sidecar whose log is read for one byte and then by no process.
    pub fn unread_binaries(&self) -> PathBuf {
        let sidecar = model::binary("sluice-sidecar");
        // Writes fail once `head` has ended.
        let lines = format!(
            "pipe=\"$(mktemp -u)\"; mkfifo \"$pipe\"\nhead -c 1 \"$pipe\" >&2 &\nexec 2> \"$pipe\"; rm \"$pipe\"\nexec '{}' \"$@\"",
            sidecar.display()
        );
        self.binaries_with(&lines)
    }

    /// A folder of binaries whose sidecar is a script of these lines.
    fn binaries_with(&self, lines: &str) -> PathBuf {
        let folder = self.path("bin");
        std::fs::create_dir(&folder).unwrap();
        symlink(model::binary("sluice-engine"), folder.join("sluice-engine")).unwrap();
        let script = format!("#!/bin/sh\n{lines}\n");
        let path = folder.join("sluice-sidecar");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    /// Returns the stdout of `sluice up` and its child processes so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.path("stdout")).unwrap()
    }

    /// Returns their stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path("stderr")).unwrap()).into_owned()
    }

    /// Returns all running processes that this environment has started.
    pub fn processes(&self) -> Vec<u32> {
        processes::of_world(&self.path("run"))
    }

    /// Waits until no process remains; then no socket and no file may remain.
    pub async fn assert_no_leftovers(&self) {
        eventually("all processes end", async || self.processes().is_empty().then_some(())).await;
        assert_eq!(names(&self.path("run")), [""; 0], "in the runtime folder");
        assert_eq!(names(&self.path("tmp")), [""; 0], "in the temporary folder");
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let mark = self.dir.path().to_str().unwrap();
        assert!(!sockets.contains(mark), "a socket is left");
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        // A failed test leaves its tenants running; no other test ends them.
        self.processes().into_iter().for_each(processes::kill);
        if std::thread::panicking() {
            // A test that started nothing here has no such file.
            let stderr = std::fs::read(self.path("stderr")).unwrap_or_default();
            let stderr = String::from_utf8_lossy(&stderr);
            let lines: Vec<_> = stderr.lines().collect();
            let last = lines.len().saturating_sub(40);
            eprintln!("--- last words of `sluice`:\n{}\n---", lines[last..].join("\n"));
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// `sluice up` under way.
#[derive(Debug)]
pub struct Up<'a> {
    child: Child,
    world: &'a TestEnv,
}

impl Up<'_> {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        processes::signal(self.child.id(), signal);
    }

    /// Waits for the `count`-th line `ready default/NAME URL` and gives the tenant as of then.
    pub async fn ready_again(&mut self, name: &str, count: usize) -> Tenant {
        let start = format!("ready default/{name} http://");
        let address = eventually("the ready line", async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("`sluice up` ended ({status}) before {name} was ready");
            }
            let stdout = self.world.stdout();
            let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
            whole.lines().filter_map(|line| line.strip_prefix(&start)).nth(count - 1).map(str::to_owned)
        });
        let address = address.await;
        Tenant::new(&address, &self.world.path("run").join(format!("default.{name}")))
    }

    /// Waits until the tenant serves.
    pub async fn ready(&mut self, name: &str) -> Tenant {
        self.ready_again(name, 1).await
    }

    /// Waits for the end.
    pub async fn ended(mut self) -> Outcome {
        let status: ExitStatus =
            eventually("`sluice up` ends", async || self.child.try_wait().unwrap()).await;
        Outcome { code: status.code(), stdout: self.world.stdout(), stderr: self.world.stderr() }
    }

    /// Sends SIGTERM; it must exit with status 0 and leave nothing.
    pub async fn end_cleanly(self) {
        self.signal(Signal::TERM);
        self.ended_cleanly().await;
    }

    /// Waits for the end after a signal; the status must be 0 and nothing may remain.
    pub async fn ended_cleanly(self) {
        let world = self.world;
        let outcome = self.ended().await;
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        world.assert_no_leftovers().await;
    }
}

/// How `sluice up` ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status; `None` after a signal.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr and that of its child processes.
    pub stderr: String,
}

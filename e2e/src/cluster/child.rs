//! A component as a child process: it logs to a file and is killed when the tests exit.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::process_spawner::ProcessSpawner;

/// A running component.
pub struct Component {
    name: String,
    child: Child,
    log: PathBuf,
    spawn_spec: SpawnSpec,
}

/// Copy of a command: a started command cannot be cloned.
struct SpawnSpec {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, Option<OsString>)>,
}

impl SpawnSpec {
    fn of(command: &Command) -> SpawnSpec {
        let owned = |(name, value): (&OsStr, Option<&OsStr>)| (name.to_owned(), value.map(OsStr::to_owned));
        SpawnSpec {
            program: command.get_program().to_owned(),
            arguments: command.get_args().map(OsStr::to_owned).collect(),
            environment: command.get_envs().map(owned).collect(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.envs(self.environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
        command
    }
}

impl Component {
    /// Starts `command` and appends its output to `NAME.log` in `folder`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(spawner: &ProcessSpawner, name: &str, command: Command, folder: &Path) -> Component {
        let log = folder.join(format!("{name}.log"));
        let again = SpawnSpec::of(&command);
        let child = spawn(spawner, name, command, &log);
        Component { name: name.to_owned(), child, log, spawn_spec: again }
    }

    /// Kills the process and starts it again with the same arguments.
    pub fn restart(&mut self, spawner: &ProcessSpawner) {
        self.kill();
        self.child = spawn(spawner, &self.name, self.spawn_spec.command(), &self.log);
    }

    /// Checks that the process runs.
    ///
    /// # Panics
    /// If it has exited, with the end of its log.
    pub fn assert_alive(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("{} ended with {status}\n{}", self.name, self.tail());
        }
    }

    /// Whether the process has exited.
    pub fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the last lines of the log.
    pub fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Process id, in the PID namespace of this process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number");
        // The child is not reaped yet, so its pid is not reused. It may have exited.
        let _ = kill_process(pid, signal);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(spawner: &ProcessSpawner, name: &str, mut command: Command, log: &Path) -> Child {
    let file = || File::options().create(true).append(true).open(log);
    let out = file().unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let err = file().unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    spawner.spawn(command).unwrap_or_else(|e| panic!("{name} does not start: {e}"))
}

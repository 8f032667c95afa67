//! A component as a child process: its log goes to a file, and it dies with us.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Signal, set_parent_process_death_signal};

/// A running component.
pub struct Component {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Component {
    /// Starts `command`; what it prints goes to `NAME.log` in `folder`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Component {
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let err = out.try_clone().unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = keeper(command).unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Component { name: name.to_owned(), child, log }
    }

    /// Looks whether it lives.
    ///
    /// # Panics
    /// If it has ended, with the end of its log.
    pub fn assert_alive(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("{} ended with {status}\n{}", self.name, self.tail());
        }
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Kills it.
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

/// Starts a process from a thread that never ends: the kernel sends the parent-death signal when the *thread* ends that
/// started the child, and threads of tests do.
fn keeper(mut command: Command) -> std::io::Result<Child> {
    type Order = (Command, mpsc::Sender<std::io::Result<Child>>);
    static KEEPER: std::sync::OnceLock<mpsc::Sender<Order>> = std::sync::OnceLock::new();
    let orders = KEEPER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    // A group of its own: Ctrl-C reaches the tests, and they end their components.
    command.process_group(0);
    // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let (sender, answer) = mpsc::channel();
    orders.send((command, sender)).expect("the keeper thread lives as long as the process");
    answer.recv().expect("the keeper thread answers every order")
}

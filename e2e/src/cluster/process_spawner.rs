//! Threads that start processes and never end.
//!
//! The kernel sends the parent-death signal when the *thread* that started the child ends, and threads of tests end
//! early. A spawner thread can also be in private namespaces, which its children inherit.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};
use std::thread;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// A thread that starts processes. The kernel kills them when this process exits.
pub struct ProcessSpawner(mpsc::Sender<SpawnRequest>);

impl ProcessSpawner {
    /// Returns a spawner in the namespaces of this process.
    pub fn plain() -> &'static ProcessSpawner {
        static PLAIN: OnceLock<ProcessSpawner> = OnceLock::new();
        PLAIN.get_or_init(|| ProcessSpawner::start(|| Ok(())).expect("nothing can fail"))
    }

    /// Returns a spawner in private namespaces: mounts, processes, network, IPC, host name. The first process that
    /// it starts is their process 1, and all others end with it.
    ///
    /// # Errors
    /// Errors of the kernel, in particular without root.
    pub fn isolated() -> io::Result<ProcessSpawner> {
        let all = UnshareFlags::NEWNS
            | UnshareFlags::NEWPID
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        // SAFETY: no flag shares or unshares file descriptors.
        ProcessSpawner::start(move || Ok(unsafe { unshare_unsafe(all) }?))
    }

    fn start(enter: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<ProcessSpawner> {
        let (sender, orders) = mpsc::channel::<SpawnRequest>();
        let (entered, outcome) = mpsc::channel();
        thread::spawn(move || {
            let result = enter();
            let failed = result.is_err();
            let _ = entered.send(result);
            if failed {
                return;
            }
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        outcome.recv().expect("the thread says how it went")?;
        Ok(ProcessSpawner(sender))
    }

    /// Starts a process.
    ///
    /// # Errors
    /// If it does not start.
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        // A process group of its own: Ctrl-C reaches only the tests, and they end their components.
        command.process_group(0);
        // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let (sender, answer) = mpsc::channel();
        self.0.send((command, sender)).expect("the thread lives as long as its sender");
        answer.recv().expect("the thread answers every order")
    }
}

//! Child processes that end with this process, signal handling, and a temporary folder.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Between two looks at a child and at the signals.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// For a child that was asked to end; draining takes a few seconds.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A signal asked us to end. As an exit status this is 128 and the signal's number, as shells have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// SIGINT, SIGTERM or SIGHUP.
    signal: i32,
}

impl Interrupted {
    /// The status to end with, for an error that has one of these among its causes.
    pub fn status_of(error: &anyhow::Error) -> Option<u8> {
        let interrupted = error.chain().find_map(|cause| cause.downcast_ref::<Interrupted>())?;
        u8::try_from(status(interrupted.signal)).ok()
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

const fn status(signal: i32) -> i32 {
    128 + signal
}

/// Which signal has come, if any has.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    received_at: Arc<AtomicBool>,
    /// Its number; 0 before it came.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Handles SIGINT, SIGTERM and SIGHUP (a closed terminal). [`Stop::check`] reports the first one; a second one
    /// ends the process at once.
    pub fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).context("signals")?;
            // Handlers run in this order: the signal is stored before the flag is set.
            flag::register_conditional_shutdown(signal, status(signal), Arc::clone(&stop.received_at))
                .context("signals")?;
            flag::register_usize(signal, Arc::clone(&stop.signal), number).context("signals")?;
            flag::register(signal, Arc::clone(&stop.received_at)).context("signals")?;
        }
        Ok(stop)
    }

    /// As after SIGTERM, for tests.
    #[cfg(test)]
    pub fn received_signal() -> Stop {
        let stop = Stop::default();
        stop.signal.store(15, Ordering::Relaxed);
        stop.received_at.store(true, Ordering::Relaxed);
        stop
    }

    /// Whether one has come.
    pub fn requested(&self) -> bool {
        self.received_at.load(Ordering::Acquire)
    }

    /// An error if one has come, so that everything on the way out is cleaned up.
    pub fn check(&self) -> Result<(), Interrupted> {
        if !self.requested() {
            return Ok(());
        }
        let signal = i32::try_from(self.signal.load(Ordering::Acquire));
        Err(Interrupted { signal: signal.expect("numbers of signals are small") })
    }
}

/// A child at the head of a process group of its own. Dropping it ends what still runs of the group.
///
/// Its own group, so that Ctrl-C reaches us alone and children end in our order.
pub struct Group(Child);

impl Group {
    /// Starts it.
    pub fn spawn(command: &mut Command) -> Result<Group> {
        let child = command.process_group(0).stdin(Stdio::null()).spawn();
        child.map(Group).with_context(|| command.get_program().display().to_string())
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            // A group that has ended already needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Waits for its end, or for a signal to us, which is an error.
    pub fn wait(&mut self, stop: &Stop) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            stop.check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        self.signal(Signal::TERM);
        let asked = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if asked.elapsed() > END_LIMIT {
                eprintln!("sluice-benches: process {} does not end: killing its process group", self.0.id());
                self.signal(Signal::KILL);
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Ended or killed: nothing else can be done in a drop.
        let _ = self.0.wait();
    }
}

/// Runs a command to its end. Returns its status and what it printed on stdout.
pub fn capture(command: &mut Command, stop: &Stop) -> Result<(ExitStatus, String)> {
    let mut group = Group::spawn(command.stdout(Stdio::piped()))?;
    let mut stdout = group.child().stdout.take().context("a pipe")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let status = group.wait(stop)?;
    let Ok(text) = reader.join() else { bail!("the reader of a pipe panicked") };
    Ok((status, text.context("output that is not UTF-8")?))
}

/// A folder for what a measurement writes, removed with this value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it in the folder for temporary files: paths of sockets must be short.
    pub fn new() -> Result<Scratch> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("sluice-bench-{process}-{number}"));
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Scratch(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("sluice-benches: could not remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_command_prints_comes_back_with_its_status() {
        let (status, text) = capture(&mut shell("echo a; exit 3"), &Stop::default()).unwrap();
        assert_eq!((status.code(), text.as_str()), (Some(3), "a\n"));
    }

    #[test]
    fn an_interrupted_wait_ends_the_child_and_its_children() {
        let mut group = Group::spawn(shell("sleep 600 & echo $!; wait").stdout(Stdio::piped())).unwrap();
        let mut line = Vec::new();
        let stdout = group.child().stdout.as_mut().unwrap();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        let grandchild = String::from_utf8(line).unwrap();
        assert!(Path::new("/proc").join(grandchild).exists());
        let error = group.wait(&Stop::received_signal()).context("a child").unwrap_err();
        assert_eq!(
            (format!("{error:#}").as_str(), Interrupted::status_of(&error)),
            ("a child: interrupted", Some(143))
        );
        let mut stdout = group.child().stdout.take().unwrap();
        drop(group);
        // The pipe ends when the last process that holds it does.
        assert_eq!(stdout.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn other_errors_name_no_signal() {
        assert_eq!(Interrupted::status_of(&anyhow::anyhow!("interrupted")), None);
    }

    /// Waits for a signal, prints a line, and with `LINGER` set exits slowly; as `main` would end it.
    #[test]
    #[ignore = "the process that the next test signals"]
    fn a_process_that_waits_for_a_signal() {
        let stop = Stop::on_signals().unwrap();
        eprintln!("waiting");
        let error = loop {
            match stop.check() {
                Ok(()) => std::thread::sleep(POLL_INTERVAL),
                Err(interrupted) => break anyhow::Error::from(interrupted),
            }
        };
        if std::env::var_os(LINGER).is_some() {
            eprintln!("lingering");
            loop {
                std::thread::park();
            }
        }
        std::process::exit(Interrupted::status_of(&error).unwrap().into());
    }

    const LINGER: &str = "SLUICE_TEST_LINGER";

    /// Starts that process and sends each of `signals` after it has printed the word of the pair; returns its exit
    /// status.
    fn signalled(signals: &[(&str, Signal)]) -> Option<i32> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "child_process::tests::a_process_that_waits_for_a_signal",
            "--ignored",
            "--nocapture",
        ]);
        if signals.len() > 1 {
            command.env(LINGER, "1");
        }
        let mut group = Group::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped())).unwrap();
        let mut lines =
            BufReader::new(group.child().stderr.take().unwrap()).lines().map(|line| line.unwrap());
        for (word, signal) in signals {
            assert!(lines.any(|line| line.ends_with(word)), "it never said `{word}`");
            group.signal(*signal);
        }
        group.wait(&Stop::default()).unwrap().code()
    }

    #[test]
    fn an_interrupted_run_ends_with_128_and_the_signal() {
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            assert_eq!(signalled(&[("waiting", signal)]), Some(status), "{signal:?}");
        }
    }

    #[test]
    fn a_second_signal_ends_at_once_with_its_own_status() {
        assert_eq!(signalled(&[("waiting", Signal::INT), ("lingering", Signal::TERM)]), Some(143));
    }

    #[test]
    fn the_folder_goes_with_its_value() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        std::fs::write(path.join("file"), "text").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}

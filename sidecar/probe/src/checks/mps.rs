//! NVIDIA's MPS daemon, started only for the probe in its own folders and stopped afterwards.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, kill_process_group, set_parent_process_death_signal, test_kill_process_group,
};

use crate::Error;
use crate::child_process::Environment;

const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Time limit for each of start, reply and exit.
const LIMIT: Duration = Duration::from_secs(5);

/// File with the daemon's process id, in its folder.
const DAEMON: &str = "daemon";

/// Removes what the exited process `asking` may have left of its daemon: the server, which gets no signal when its
/// parent exits, and the folder.
pub fn clean_up(asking: u32) {
    let folder = folder_of(asking);
    let daemon = fs::read_to_string(folder.join(DAEMON)).ok().and_then(|pid| pid.parse().ok());
    if let Some(group) = daemon.and_then(Pid::from_raw) {
        // The kernel has signalled the daemon to end with its parent, and it may also stop its server.
        let start = Instant::now();
        while test_kill_process_group(group).is_ok() && start.elapsed() < LIMIT / 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Fails only if the group has no process left.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // Fails only if the folder does not exist.
    let _ = fs::remove_dir_all(&folder);
}

fn folder_of(asking: u32) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-gpu-probe-mps-{asking}"))
}

/// Runs `work` while a daemon runs. `work` gets the environment variables of the daemon's clients.
///
/// # Errors
/// The daemon does not start, `work` fails, or the daemon has to be killed.
pub fn with_daemon(work: impl FnOnce(Environment<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let mut mps = Mps::start()?;
    let inside = variables(&mps.folder);
    work(&inside.each_ref().map(|(name, value)| (*name, value.as_str())))?;
    mps.quit()
}

/// The daemon; stopped on drop.
#[derive(Debug)]
struct Mps {
    daemon: Child,
    folder: PathBuf,
}

/// Returns a note if another MPS daemon runs on this machine at the default path.
pub fn running_daemon() -> Option<String> {
    let place = Path::new("/tmp/nvidia-mps/control");
    let note = "already exists: the machine runs an MPS daemon, which the probe does not use";
    place.exists().then(|| format!("{} {note}", place.display()))
}

impl Mps {
    /// Starts the daemon and waits until it replies.
    fn start() -> Result<Mps, Error> {
        let folder = folder_of(std::process::id());
        for name in ["pipe", "log"] {
            fs::create_dir_all(folder.join(name))
                .map_err(|error| mps_error(format!("has no folder: {error}")))?;
        }
        let mut command = Command::new(PROGRAM);
        command.arg("-f").envs(variables(&folder)).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|devices| is_numeric_list(&devices)) {
            // The daemon renumbers its devices; clients have the variable too and would choose among the new numbers.
            command.env_remove("CUDA_VISIBLE_DEVICES");
        }
        // SAFETY: between fork and exec, the closure makes one system call and allocates no memory.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        let daemon = command.spawn().map_err(|error| {
            let _ = fs::remove_dir_all(&folder);
            match error.kind() {
                io::ErrorKind::NotFound => mps_error("is not installed".into()),
                _ => mps_error(format!("did not start: {error}")),
            }
        })?;
        let mut mps = Mps { daemon, folder };
        let pid = mps.daemon.id().to_string();
        fs::write(mps.folder.join(DAEMON), pid)
            .map_err(|error| mps_error(format!("has no folder: {error}")))?;
        mps.wait_for_start()?;
        Ok(mps)
    }

    fn wait_for_start(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while let Err(error) = self.send_command("get_server_list") {
            if let Ok(Some(status)) = self.daemon.try_wait() {
                return Err(mps_error(format!("ended with {status}")));
            }
            if start.elapsed() > LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Sends the daemon a command through another process of the same program.
    fn send_command(&self, words: &str) -> Result<(), Error> {
        let mut command = Command::new(PROGRAM);
        command.envs(variables(&self.folder)).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| mps_error(format!("did not start: {error}")))?;
        if let Some(mut stdin) = child.stdin.take() {
            // If that process has exited, its status shows it.
            let _ = writeln!(stdin, "{words}");
        }
        match wait_within(&mut child, LIMIT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(mps_error(format!("answered {words} with {status}"))),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(mps_error(format!("did not answer {words} within {LIMIT:?}")))
            }
        }
    }

    /// Stops the daemon and its server, first with `quit`. Fails if the daemon had to be killed.
    fn quit(&mut self) -> Result<(), Error> {
        if matches!(self.daemon.try_wait(), Ok(Some(_))) {
            return Ok(());
        }
        let sent = self.send_command("quit");
        if sent.is_ok() && wait_within(&mut self.daemon, LIMIT).is_some() {
            return Ok(());
        }
        if let Ok(group) = i32::try_from(self.daemon.id()) {
            // Fails only if the group has no process left.
            let _ = Pid::from_raw(group).map(|group| kill_process_group(group, Signal::KILL));
        }
        let _ = self.daemon.wait();
        sent.and(Err(mps_error(format!("did not end within {LIMIT:?} and was killed"))))
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let _ = self.quit();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether devices are chosen by index, which changes with the list, and not by UUID.
fn is_numeric_list(devices: &str) -> bool {
    devices.split(',').all(|device| device.trim().parse::<u32>().is_ok())
}

/// Returns the environment variables of the daemon and of its clients.
fn variables(folder: &Path) -> [(&'static str, String); 2] {
    let path = |name| folder.join(name).display().to_string();
    [("CUDA_MPS_PIPE_DIRECTORY", path("pipe")), ("CUDA_MPS_LOG_DIRECTORY", path("log"))]
}

/// Waits at most `limit` for a process to exit.
fn wait_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn mps_error(what: String) -> Error {
    Error::Peer { role: PROGRAM.into(), what }
}

#[cfg(test)]
mod tests {
    use super::is_numeric_list;

    #[test]
    fn devices_are_numbers_or_uuids() {
        assert!(is_numeric_list("3") && is_numeric_list("0, 2"));
        assert!(!is_numeric_list("GPU-8932f937") && !is_numeric_list("MIG-1/2/3") && !is_numeric_list(""));
    }
}

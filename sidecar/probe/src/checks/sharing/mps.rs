//! NVIDIA's MPS daemon, started for the probe alone in folders of its own and ended after it.

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

const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Longest that it may take to start, to answer, and to end.
const LIMIT: Duration = Duration::from_secs(5);

/// The file with the daemon's process id, in its folder.
const DAEMON: &str = "daemon";

/// Ends what a process `asking`, which has ended, may have left of its daemon: the server, which does not get the signal of its
/// parent's death, and the folder.
pub fn clean_up(asking: u32) {
    let folder = folder_of(asking);
    let daemon = fs::read_to_string(folder.join(DAEMON)).ok().and_then(|pid| pid.parse().ok());
    if let Some(group) = daemon.and_then(Pid::from_raw) {
        // The daemon itself was told to end when its parent did, and may take its server along.
        let start = Instant::now();
        while test_kill_process_group(group).is_ok() && start.elapsed() < LIMIT / 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Fails only when all of the group are gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // Fails only when there is no such folder.
    let _ = fs::remove_dir_all(&folder);
}

fn folder_of(asking: u32) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-gpu-probe-mps-{asking}"))
}

/// The daemon. Dropping it ends it.
#[derive(Debug)]
pub struct Mps {
    daemon: Child,
    folder: PathBuf,
}

/// What is to be known of a daemon that runs on this machine anyway, where it is by default.
pub fn running_daemon() -> Option<String> {
    let place = Path::new("/tmp/nvidia-mps/control");
    let note = "exists: an MPS daemon of this machine, which no process of the probe uses";
    place.exists().then(|| format!("{} {note}", place.display()))
}

impl Mps {
    /// Starts it and waits until it answers.
    pub fn start() -> Result<Mps, Error> {
        let folder = folder_of(std::process::id());
        for name in ["pipe", "log"] {
            fs::create_dir_all(folder.join(name))
                .map_err(|error| mps_error(format!("has no folder: {error}")))?;
        }
        let mut command = Command::new(PROGRAM);
        command.arg("-f").envs(variables(&folder)).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|devices| is_numeric_list(&devices)) {
            // A daemon numbers its devices anew; clients have the variable as well and would choose among the new numbers.
            command.env_remove("CUDA_VISIBLE_DEVICES");
        }
        // SAFETY: between fork and exec, one system call and no memory is taken.
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

    /// What processes need to be its clients.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        variables(&self.folder)
    }

    /// Ends it.
    ///
    /// # Errors
    /// It had to be killed.
    pub fn stop(mut self) -> Result<(), Error> {
        self.quit()
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

    /// Gives the daemon a command, through another process of the same program.
    fn send_command(&self, words: &str) -> Result<(), Error> {
        let mut command = Command::new(PROGRAM);
        command.envs(variables(&self.folder)).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| mps_error(format!("did not start: {error}")))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has ended already says so by its status.
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

    /// Ends the daemon and its server, kindly first.
    fn quit(&mut self) -> Result<(), Error> {
        if matches!(self.daemon.try_wait(), Ok(Some(_))) {
            return Ok(());
        }
        let told = self.send_command("quit");
        if told.is_ok() && wait_within(&mut self.daemon, LIMIT).is_some() {
            return Ok(());
        }
        if let Ok(group) = i32::try_from(self.daemon.id()) {
            // Fails only when all of the group are gone.
            let _ = Pid::from_raw(group).map(|group| kill_process_group(group, Signal::KILL));
        }
        let _ = self.daemon.wait();
        told.and(Err(mps_error(format!("did not end within {LIMIT:?} and was killed"))))
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let _ = self.quit();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether devices are chosen by their places in a list, which change with it, and not by their UUIDs.
fn is_numeric_list(devices: &str) -> bool {
    devices.split(',').all(|device| device.trim().parse::<u32>().is_ok())
}

fn variables(folder: &Path) -> [(&'static str, String); 2] {
    let path = |name| folder.join(name).display().to_string();
    [("CUDA_MPS_PIPE_DIRECTORY", path("pipe")), ("CUDA_MPS_LOG_DIRECTORY", path("log"))]
}

/// Waits for a process to end, at most `limit`.
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

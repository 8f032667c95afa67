//! Child processes of the probe: it starts itself with the hidden subcommand `child ROLE`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::bench::ProbeOptions;
use crate::channel::Channel;

/// Default time limit for the other process's next message.
pub const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// Environment variables for [`ChildProcess::start_with`].
pub type Environment<'a> = &'a [(&'a str, &'a str)];

/// A process that this one started; killed and reaped on drop.
#[derive(Debug)]
pub struct ChildProcess {
    role: String,
    child: Child,
    channel: Channel,
}

impl ChildProcess {
    /// Starts this program as `role`.
    pub fn start(setup: ProbeOptions, role: &str) -> Result<ChildProcess, Error> {
        ChildProcess::start_with(setup, role, &[])
    }

    /// Like [`ChildProcess::start`], with these environment variables, which override those of every child process.
    pub fn start_with(
        setup: ProbeOptions,
        role: &str,
        environment: Environment<'_>,
    ) -> Result<ChildProcess, Error> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = command(setup, role, environment);
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| process_error(role, format!("did not start: {error}")))?;
        Ok(ChildProcess { role: role.into(), child, channel })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message to the process.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.channel.send(message, fds)
    }

    /// Receives the next message within [`REPLY_LIMIT`].
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), Error> {
        self.recv_within(REPLY_LIMIT)
    }

    /// Receives the next message within `limit`. Kills the process if there is none.
    pub fn recv_within<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<(T, Vec<OwnedFd>), Error> {
        match self.channel.recv::<Result<T, String>>(limit) {
            Ok(Some((Ok(message), fds))) => Ok((message, fds)),
            Ok(Some((Err(words), _))) => Err(process_error(&self.role, format!("failed: {words}"))),
            Ok(None) => Err(self.exit_error()),
            Err(Error::Timeout { limit, .. }) => {
                self.kill();
                Err(process_error(&self.role, format!("did not report for {limit:?} and was killed")))
            }
            Err(error) => Err(error),
        }
    }

    /// Kills the process (SIGKILL) and waits for its exit.
    pub fn kill(&mut self) {
        // Both fail only if the process has been reaped, or if the driver holds it in the kernel.
        let _ = self.child.kill();
        let _ = self.reap();
    }

    /// Waits at most [`REPLY_LIMIT`] for the exit: a driver call may hold even a killed process in the kernel.
    fn reap(&mut self) -> Result<ExitStatus, Error> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if start.elapsed() < REPLY_LIMIT => std::thread::yield_now(),
                Ok(None) => {
                    return Err(process_error(&self.role, format!("did not end within {REPLY_LIMIT:?}")));
                }
                Err(error) => {
                    return Err(process_error(&self.role, format!("cannot be waited for: {error}")));
                }
            }
        }
    }

    /// Closes the sending direction and waits at most [`REPLY_LIMIT`] each for the other end to close and for the
    /// process to exit by itself.
    pub fn stop(mut self) -> Result<(), Error> {
        self.channel.close();
        match self.channel.recv::<serde_json::Value>(REPLY_LIMIT)? {
            None => Ok(()),
            Some((message, _)) => {
                Err(process_error(&self.role, format!("reported {message} when it was stopped")))
            }
        }?;
        self.reap().map(drop)
    }

    /// Returns how the process exited. It has closed its end, so it is exiting.
    fn exit_error(&mut self) -> Error {
        match self.reap() {
            Ok(status) => process_error(&self.role, format!("ended with {status}")),
            Err(error) => error,
        }
    }
}

/// Returns the command of this program as `role`. The caller's variables override the defaults.
fn command(setup: ProbeOptions, role: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["child", role, "--device", &setup.ordinal.to_string()]);
    command.args(setup.quick.then_some("--quick"));
    // Otherwise a kernel's first launch loads its code, for which the driver may wait for all streams, even for one
    // that waits for a word that is written only after the launch.
    command.env("CUDA_MODULE_LOADING", "EAGER");
    // A folder without a daemon: an MPS daemon of this machine would otherwise serve the checks without MPS too.
    command.env("CUDA_MPS_PIPE_DIRECTORY", std::env::temp_dir().join("sluice-gpu-probe-without-mps"));
    command.envs(environment.iter().copied());
    command
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn process_error(role: &str, what: String) -> Error {
    Error::Peer { role: role.into(), what }
}

/// The child's end of the channel.
#[derive(Debug)]
pub struct ParentPipe {
    channel: Channel,
}

impl ParentPipe {
    /// Takes the socket that is this process's standard input. The kernel kills the process when its parent exits.
    pub fn open() -> Result<ParentPipe, Error> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .map_err(Error::kernel("prctl"))?;
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| process_error("parent", format!("left no socket: {error}")))?;
        Ok(ParentPipe { channel: Channel::from_socket(socket) })
    }

    /// Sends a message to the parent.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.channel.send(&Ok::<_, String>(message), fds)
    }

    /// Reports to the parent why this process exits.
    pub fn fail(&self, error: &Error) {
        // Fails only if the parent has exited, and then the kernel kills this process.
        let _ = self.channel.send(&Err::<(), _>(error.to_string()), &[]);
    }

    /// Receives the next message within [`REPLY_LIMIT`].
    pub fn recv<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), Error> {
        self.recv_or_exit()?.ok_or_else(|| process_error("parent", "ended".into()))
    }

    /// Like [`ParentPipe::recv`]; `None` if the parent has closed the channel.
    pub fn recv_or_exit<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        self.channel.recv(REPLY_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_variables_override_defaults() {
        let value = |environment: &[(&str, &str)]| {
            let command = command(ProbeOptions { ordinal: 0, quick: true }, "context", environment);
            let mut all = command.get_envs();
            let found = all.find(|(name, _)| *name == "CUDA_MODULE_LOADING").and_then(|(_, value)| value);
            found.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(value(&[]).as_deref(), Some("EAGER"));
        assert_eq!(value(&[("CUDA_MODULE_LOADING", "LAZY")]).as_deref(), Some("LAZY"));
    }
}

//! [`Sidecar`]: a process of `sluice-sidecar`, which starts its engine.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use sluice_wire::State;
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::directive::Directive;
use sluice_wire::programs;

use super::error::ServedError;
use super::http::Request;

/// Between two looks at a sidecar.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// For a sidecar to listen, and to end.
const SOON: Duration = Duration::from_secs(20);
/// For a tenant to serve, with its model loaded.
const LOADING: Duration = Duration::from_secs(90);

/// A sidecar that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Sidecar {
    process: SidecarProcess,
    record: SidecarRecord,
    token: String,
}

/// A sidecar's process with its log.
#[derive(Debug)]
struct SidecarProcess {
    tenant: String,
    child: Child,
    log: PathBuf,
}

impl Sidecar {
    /// Starts a sidecar with its files in `folder`, which is made, and waits until it listens.
    pub(super) fn start(folder: &Path, config: &SidecarConfig) -> Result<Sidecar, ServedError> {
        fs::create_dir_all(folder).map_err(ServedError::file(folder))?;
        let file = folder.join("config.json");
        let text = serde_json::to_string(config).expect("a configuration has only strings for keys");
        fs::write(&file, text).map_err(ServedError::file(&file))?;
        let mut process = SidecarProcess::start(&config.name, &file, folder.join("log"))?;
        let file = config.runtime_dir.join(SidecarRecord::FILE);
        let (record, token) = process.wait("listen", SOON, || {
            let record: SidecarRecord = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            let token = fs::read_to_string(&record.token_file).ok()?;
            Some((record, token))
        })?;
        Ok(Sidecar { process, record, token })
    }

    /// Waits until the tenant serves.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), ServedError> {
        let (probes, ready) = (self.record.probes, Request::get("/ready", None));
        self.process.wait("serve", LOADING, || ready.text(probes).ok()).map(drop)
    }

    /// Waits until the state is as wanted.
    pub(super) fn wait_for<T>(
        &mut self,
        what: &'static str,
        wanted: impl Fn(&State) -> Option<T>,
    ) -> Result<T, ServedError> {
        let (admin, token) = (self.record.admin, self.token.clone());
        self.process.wait(what, SOON, || wanted(&state(admin, &token).ok()?))
    }

    /// Address of the API for clients.
    pub fn address(&self) -> SocketAddr {
        self.record.serve
    }

    /// Address of the admin API.
    pub(super) fn admin(&self) -> SocketAddr {
        self.record.admin
    }

    /// Returns the tenant's state.
    pub fn state(&self) -> Result<State, ServedError> {
        state(self.record.admin, &self.token)
    }

    /// Sends a directive.
    pub(super) fn direct(&self, directive: &Directive) -> Result<(), ServedError> {
        let body = serde_json::to_string(directive).expect("a directive has only strings for keys");
        let request = Request { method: Method::PUT, path: "/v1/directive", token: Some(&self.token), body };
        request.text(self.record.admin).map(drop)
    }
}

fn state(admin: SocketAddr, token: &str) -> Result<State, ServedError> {
    let request = Request::get("/v1/state", Some(token));
    let text = request.text(admin)?;
    State::from_json(text.as_bytes()).map_err(|error| request.refused(error.to_string()))
}

impl SidecarProcess {
    fn start(tenant: &str, config: &Path, log: PathBuf) -> Result<SidecarProcess, ServedError> {
        let program = binary("sluice-sidecar")?;
        let mut command = Command::new(&program);
        command
            .arg("--config")
            .arg(config)
            .args(["--log", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(File::create(&log).map_err(ServedError::file(&log))?);
        // SAFETY: between fork and exec only this system call is made, which is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let child = command.spawn().map_err(ServedError::file(&program))?;
        Ok(SidecarProcess { tenant: tenant.into(), child, log })
    }

    /// Looks until there is something.
    fn wait<T>(
        &mut self,
        what: &'static str,
        limit: Duration,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, ServedError> {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let (status, log) = (status.to_string(), self.last_lines());
                return Err(ServedError::Ended { tenant: self.tenant.clone(), status, log });
            }
            if start.elapsed() > limit {
                let (seconds, log) = (limit.as_secs(), self.last_lines());
                return Err(ServedError::Late { tenant: self.tenant.clone(), what, seconds, log });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn last_lines(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        let start = Instant::now();
        if let Some(id) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended already.
            let _ = kill_process(id, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > SOON {
                eprintln!("  the sidecar of {} does not end and is killed", self.tenant);
                let _ = self.child.kill();
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        // Ended or killed: nothing else can be done here.
        let _ = self.child.wait();
    }
}

/// Returns the path of a binary of the product.
pub(super) fn binary(name: &'static str) -> Result<PathBuf, ServedError> {
    programs::find(name).ok_or(ServedError::NoBinary(name))
}

//! Supervises one tenant's sidecar process: starts, watches, restarts with back-off and stops it.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::config_rejection::ConfigRejection;
use sluice_wire::cuda_devices::{QUEUES, SIDECAR_LOADING};
use sluice_wire::restart::BackOff;
use sluice_wire::sidecar_hangs::SidecarHangs;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::config_error::FieldLocator;
use super::directive_pusher::RecordSender;
use super::output::eprint_note;
use super::process_command::{ProcessCommand, wait_for_command};
use super::ready::{ReadyEvent, ReadySink};
use crate::runtime_dir::{self, LockedDir};
use crate::{EX_CONFIG, Misconfigured, child};

/// Time after the drain before a sidecar that does not end is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Interval of reading a sidecar that starts.
const STARTUP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval and timeout of liveness probes, as in the kubelet.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(5);
/// Number of failed probes in a row that count as a hang.
const LIVENESS_FAILURE_THRESHOLD: u32 = 6;

/// A tenant to supervise.
#[derive(Debug)]
pub struct TenantProcess {
    /// The sidecar's binary.
    pub sidecar: PathBuf,
    /// Its configuration.
    pub config: SidecarConfig,
    /// Its folder.
    pub folder: LockedDir,
    /// Origin of its configuration.
    pub locator: Option<FieldLocator>,
    /// Reports its address to its peers; `None` = it has none.
    pub record_sender: Option<RecordSender>,
    /// Receiver of its readiness.
    pub ready_sink: ReadySink,
    /// Its log has only warnings and errors, see [`crate::child::set_warn_log_level`].
    pub is_quiet: bool,
}

impl TenantProcess {
    fn title(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Runs the sidecar until it is stopped.
    ///
    /// # Errors
    /// A sidecar that cannot be started the first time, or whose exit status rules out another start.
    pub async fn supervise(self, mut orders: watch::Receiver<ProcessCommand>) -> anyhow::Result<()> {
        let file = self.folder.path().join("config.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&self.config)?)
            .with_context(|| file.display().to_string())?;
        let mut back_off = BackOff::default();
        let mut next = Some(self.spawn(&file)?);
        loop {
            let started = Instant::now();
            let ended = match &mut next {
                // After a success, the failure may be transient: too many processes, or a binary that is being
                // replaced.
                None => "the sidecar could not be started".to_owned(),
                Some(child) => tokio::select! {
                    () = wait_for_command(&mut orders, ProcessCommand::Drain) => return self.stop(child, &mut orders).await,
                    status = self.wait_for_exit(child) => self.exit_message(status?)?,
                },
            };
            let wait = back_off.next_delay(started.elapsed());
            eprint_note(format_args!("{}: {ended}; restarting in {wait:?}", self.title()));
            tokio::select! {
                () = wait_for_command(&mut orders, ProcessCommand::Drain) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
            next =
                self.spawn(&file).inspect_err(|e| eprint_note(format_args!("{}: {e:#}", self.title()))).ok();
        }
    }

    /// Describes how the sidecar ended.
    ///
    /// # Errors
    /// The sidecar reported that a restart cannot succeed: a wrong model folder, a rejected configuration, a taken
    /// port.
    fn exit_message(&self, status: ExitStatus) -> anyhow::Result<String> {
        if status.code() == Some(EX_CONFIG.into()) {
            return Err(Misconfigured(format!("{}: {}", self.title(), self.rejection_message())).into());
        }
        Ok(format!("the sidecar ended ({status})"))
    }

    /// Describes why the sidecar cannot serve, in terms of the YAML if the sidecar has written its rejection.
    fn rejection_message(&self) -> String {
        let left = std::fs::read(self.folder.path().join(ConfigRejection::FILE)).ok();
        let left = left.and_then(|json| serde_json::from_slice(&json).ok());
        match self.locator.as_ref().zip(left) {
            Some((blame, refusal)) => blame.describe(&refusal),
            None => "the sidecar cannot serve it; its last log lines are above".to_owned(),
        }
    }

    fn spawn(&self, file: &std::path::Path) -> anyhow::Result<Child> {
        for stale in [SidecarRecord::FILE, ConfigRejection::FILE] {
            let _ = std::fs::remove_file(self.folder.path().join(stale));
        }
        let mut command = Command::new(&self.sidecar);
        command.arg("--config").arg(file).arg("--refusal-in-file");
        // Its engine inherits the name, which identifies the lines of all that write to this terminal.
        command.env("SLUICE_LOG_NAME", self.title());
        if self.config.gpu.cuda.is_some() {
            // Its engine inherits them too; the worker of a native engine sets how it loads kernels itself.
            let unset =
                [SIDECAR_LOADING, QUEUES].into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
            command.envs(unset);
        }
        if self.is_quiet {
            child::set_warn_log_level(&mut command);
        }
        child::kill_on_parent_exit(&mut command);
        command.spawn().with_context(|| self.sidecar.display().to_string())
    }

    /// Waits for the exit, announces when the tenant serves, and kills a sidecar that hangs. Its engine's
    /// supervisor does so sooner, unless that also hangs; the kernel kills the engine with the sidecar.
    async fn wait_for_exit(&self, child: &mut Child) -> anyhow::Result<ExitStatus> {
        // Sidecars are local, so a proxy from the environment must not be used.
        let http = reqwest::Client::builder().no_proxy().build()?;
        let announce = async {
            let record = self.wait_until_ready(&http).await;
            self.ready_sink.send(ReadyEvent { title: self.title(), serve_addr: record.serve });
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            status = child.wait() => return Ok(status?),
            never = announce => match never {},
            () = self.wait_for_hang(&http) => {
                let title = self.title();
                let silent = LIVENESS_INTERVAL * LIVENESS_FAILURE_THRESHOLD;
                eprint_note(format_args!("{title}: the sidecar has not answered for {silent:?}; killing it"));
                if let Err(error) = SidecarHangs::record(self.folder.path(), silent) {
                    eprint_note(format_args!("{title}: could not count the hang of its sidecar: {error}"));
                }
            }
        }
        child.start_kill()?;
        Ok(child.wait().await?)
    }

    /// Waits until the sidecar's liveness probe has failed for a while.
    async fn wait_for_hang(&self, http: &reqwest::Client) {
        let record = self.wait_until_listening().await;
        let mut failures = 0;
        let mut looks = tokio::time::interval(LIVENESS_INTERVAL);
        // `up` itself may have been stopped, which must not lead to several probes at once.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while failures < LIVENESS_FAILURE_THRESHOLD {
            looks.tick().await;
            let answer =
                http.get(format!("http://{}/live", record.probes)).timeout(LIVENESS_INTERVAL).send().await;
            let lives = answer.is_ok_and(|answer| answer.status().is_success());
            failures = if lives { 0 } else { failures + 1 };
        }
    }

    /// Waits until the sidecar's readiness probe succeeds.
    async fn wait_until_ready(&self, http: &reqwest::Client) -> SidecarRecord {
        let record = self.wait_until_listening().await;
        if let Some(announcer) = &self.record_sender {
            announcer.send(&record);
        }
        loop {
            let answer = http.get(format!("http://{}/ready", record.probes)).send().await;
            if answer.is_ok_and(|a| a.status().is_success()) {
                return record;
            }
            tokio::time::sleep(STARTUP_POLL_INTERVAL).await;
        }
    }

    /// Waits until the sidecar has written its address.
    async fn wait_until_listening(&self) -> SidecarRecord {
        loop {
            tokio::time::sleep(STARTUP_POLL_INTERVAL).await;
            // An unreadable record is read again.
            if let Ok(Some(record)) = runtime_dir::read_record(self.folder.path()) {
                return record;
            }
        }
    }

    async fn stop(
        &self,
        child: &mut Child,
        orders: &mut watch::Receiver<ProcessCommand>,
    ) -> anyhow::Result<()> {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).ok();
        }
        let limit = Duration::from_secs(u64::from(self.config.drain_seconds)) + STOP_GRACE;
        tokio::select! {
            _ = child.wait() => return Ok(()),
            () = wait_for_command(orders, ProcessCommand::End) => {}
            () = tokio::time::sleep(limit) => {
                let title = self.title();
                eprint_note(format_args!("{title}: the sidecar did not end within {limit:?}; killing it"));
            }
        }
        // Its process group: all of its child processes without their own group end with it. Not reaped yet, so the
        // pid is not reused.
        if let Some(pid) = pid {
            kill_process_group(pid, Signal::KILL).ok();
        }
        child.wait().await?;
        Ok(())
    }
}

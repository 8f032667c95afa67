//! One tenant's sidecar process: started, watched, restarted with back-off, stopped.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::config_rejection::ConfigRejection;
use sluice_wire::restart::BackOff;
use sluice_wire::sidecar_hangs::SidecarHangs;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::config_error::FieldLocator;
use super::directive_pusher::RecordSender;
use super::output::eprint_note;
use super::ready::{ReadyEvent, ReadySink};
use crate::runtime_dir::{self, LockedDir};
use crate::{EX_CONFIG, Misconfigured, child};

/// Beyond the drain, before a sidecar that does not end is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Between two looks at a sidecar that starts.
const STARTUP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Between two looks whether a sidecar lives, and how long each waits: as the kubelet does it.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(5);
/// So many looks in a row without an answer are a hang.
const LIVENESS_FAILURE_THRESHOLD: u32 = 6;

/// What all tenants are told, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessCommand {
    /// Serve, and come back after a death.
    Serve,
    /// Let open streams finish, then end.
    Drain,
    /// End at once.
    End,
}

/// A tenant to keep.
#[derive(Debug)]
pub struct TenantProcess {
    /// The sidecar's binary.
    pub sidecar: PathBuf,
    /// What it is told.
    pub config: SidecarConfig,
    /// Its folder.
    pub folder: LockedDir,
    /// Where its configuration comes from.
    pub locator: Option<FieldLocator>,
    /// Who tells its neighbours where it listens; `None` = it has none.
    pub record_sender: Option<RecordSender>,
    /// Who learns when it serves.
    pub ready_sink: ReadySink,
    /// Its log has warnings and worse only, as [`crate::child::set_warn_log_level`] says.
    pub is_quiet: bool,
}

impl TenantProcess {
    fn title(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Runs the sidecar until told to stop.
    ///
    /// # Errors
    /// A sidecar that cannot be started the first time, or says that trying again will not help.
    pub async fn supervise(self, mut orders: watch::Receiver<ProcessCommand>) -> anyhow::Result<()> {
        let file = self.folder.path().join("config.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&self.config)?)
            .with_context(|| file.display().to_string())?;
        let mut back_off = BackOff::default();
        let mut next = Some(self.spawn(&file)?);
        loop {
            let started = Instant::now();
            let ended = match &mut next {
                // What worked before may work again: too many processes, a binary that is being replaced.
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

    /// Says how the sidecar ended.
    ///
    /// # Errors
    /// It said that another start will not help: a wrong model folder, a refused configuration, a taken port.
    fn exit_message(&self, status: ExitStatus) -> anyhow::Result<String> {
        if status.code() == Some(EX_CONFIG.into()) {
            return Err(Misconfigured(format!("{}: {}", self.title(), self.rejection_message())).into());
        }
        Ok(format!("the sidecar ended ({status})"))
    }

    /// Why the sidecar cannot serve it, in terms of the YAML if it has left word.
    fn rejection_message(&self) -> String {
        let left = std::fs::read(self.folder.path().join(ConfigRejection::FILE)).ok();
        let left = left.and_then(|json| serde_json::from_slice(&json).ok());
        match self.locator.as_ref().zip(left) {
            Some((blame, refusal)) => blame.describe(&refusal),
            None => "the sidecar cannot serve it; its last words are above".to_owned(),
        }
    }

    fn spawn(&self, file: &std::path::Path) -> anyhow::Result<Child> {
        for stale in [SidecarRecord::FILE, ConfigRejection::FILE] {
            let _ = std::fs::remove_file(self.folder.path().join(stale));
        }
        let mut command = Command::new(&self.sidecar);
        command.arg("--config").arg(file).arg("--refusal-in-file");
        // Its engine inherits it: the lines of all that write to this terminal say whose they are.
        command.env("SLUICE_LOG_NAME", self.title());
        if self.is_quiet {
            child::set_warn_log_level(&mut command);
        }
        child::kill_on_parent_exit(&mut command);
        command.spawn().with_context(|| self.sidecar.display().to_string())
    }

    /// Waits for the end; announces on stdout when the tenant serves, and ends a sidecar that hangs. Its engine's
    /// supervisor does so sooner, unless that hangs as well; the kernel ends the engine with the sidecar.
    async fn wait_for_exit(&self, child: &mut Child) -> anyhow::Result<ExitStatus> {
        // Sidecars are local: a proxy of the environment has no business between.
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
                eprint_note(format_args!("{title}: the sidecar has answered nothing for {silent:?}; killing it"));
                if let Err(error) = SidecarHangs::record(self.folder.path(), silent) {
                    eprint_note(format_args!("{title}: the hang of its sidecar is not counted: {error}"));
                }
            }
        }
        child.start_kill()?;
        Ok(child.wait().await?)
    }

    /// Waits until the sidecar's probe has not said for a while that it lives.
    async fn wait_for_hang(&self, http: &reqwest::Client) {
        let record = self.wait_until_listening().await;
        let mut failures = 0;
        let mut looks = tokio::time::interval(LIVENESS_INTERVAL);
        // `up` itself may have been stopped: that is no reason to look several times at once.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while failures < LIVENESS_FAILURE_THRESHOLD {
            looks.tick().await;
            let answer =
                http.get(format!("http://{}/live", record.probes)).timeout(LIVENESS_INTERVAL).send().await;
            let lives = answer.is_ok_and(|answer| answer.status().is_success());
            failures = if lives { 0 } else { failures + 1 };
        }
    }

    /// Waits until the sidecar's probe says that it serves.
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

    /// Waits until the sidecar has written where it listens.
    async fn wait_until_listening(&self) -> SidecarRecord {
        loop {
            tokio::time::sleep(STARTUP_POLL_INTERVAL).await;
            // What cannot be read now is read again.
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
        // Its group: whatever it started and did not put in a group of its own goes with it. Not reaped yet, so the
        // number is still its own.
        if let Some(pid) = pid {
            kill_process_group(pid, Signal::KILL).ok();
        }
        child.wait().await?;
        Ok(())
    }
}

/// Waits until told `order`, or one that comes after it.
pub async fn wait_for_command(orders: &mut watch::Receiver<ProcessCommand>, order: ProcessCommand) {
    // A sender that is gone means the same.
    let _ = orders.wait_for(|now| *now >= order).await;
}

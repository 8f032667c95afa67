//! One tenant's sidecar process: started, watched, restarted with back-off, stopped.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::refusal::Refusal;
use sluice_wire::restart::BackOff;
use sluice_wire::sidecar_hangs::SidecarHangs;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::blame::Blame;
use super::herald::Announcer;
use super::ready::{Ready, ReadySink};
use super::speak::note;
use crate::runtime::{self, ClaimedFolder};
use crate::{EX_CONFIG, Misconfigured, child};

/// Beyond the drain, before a sidecar that does not end is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Between two looks at a sidecar that starts.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Between two looks whether a sidecar lives, and how long each waits: as the kubelet does it.
const LIVE_EVERY: Duration = Duration::from_secs(5);
/// So many looks in a row without an answer are a hang.
const LIVE_LOOKS: u32 = 6;

/// What all tenants are told, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Serve, and come back after a death.
    Serve,
    /// Let open streams finish, then end.
    Drain,
    /// End at once.
    End,
}

/// A tenant to keep.
#[derive(Debug)]
pub struct Tenant {
    /// The sidecar's binary.
    pub sidecar: PathBuf,
    /// What it is told.
    pub config: SidecarConfig,
    /// Its folder.
    pub folder: ClaimedFolder,
    /// Where its configuration comes from.
    pub blame: Option<Blame>,
    /// Who tells its neighbours where it listens; `None` = it has none.
    pub announcer: Option<Announcer>,
    /// Who learns when it serves.
    pub ready_sink: ReadySink,
    /// Its log has warnings and worse only, as [`child::quieten`] says.
    pub quiet: bool,
}

impl Tenant {
    fn title(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Runs the sidecar until told to stop.
    ///
    /// # Errors
    /// A sidecar that cannot be started the first time, or says that trying again will not help.
    pub async fn keep(self, mut orders: watch::Receiver<Order>) -> anyhow::Result<()> {
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
                    () = told(&mut orders, Order::Drain) => return self.stop(child, &mut orders).await,
                    status = self.watch(child) => self.ended(status?)?,
                },
            };
            let wait = back_off.after(started.elapsed());
            note(format_args!("{}: {ended}; restarting in {wait:?}", self.title()));
            tokio::select! {
                () = told(&mut orders, Order::Drain) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
            next = self.spawn(&file).inspect_err(|e| note(format_args!("{}: {e:#}", self.title()))).ok();
        }
    }

    /// Says how the sidecar ended.
    ///
    /// # Errors
    /// It said that another start will not help: a wrong model folder, a refused configuration, a taken port.
    fn ended(&self, status: ExitStatus) -> anyhow::Result<String> {
        if status.code() == Some(EX_CONFIG.into()) {
            return Err(Misconfigured(format!("{}: {}", self.title(), self.refusal())).into());
        }
        Ok(format!("the sidecar ended ({status})"))
    }

    /// Why the sidecar cannot serve it, in terms of the YAML if it has left word.
    fn refusal(&self) -> String {
        let left = std::fs::read(self.folder.path().join(Refusal::FILE)).ok();
        let left = left.and_then(|json| serde_json::from_slice(&json).ok());
        match self.blame.as_ref().zip(left) {
            Some((blame, refusal)) => blame.words(&refusal),
            None => "the sidecar cannot serve it; its last words are above".to_owned(),
        }
    }

    fn spawn(&self, file: &std::path::Path) -> anyhow::Result<Child> {
        for stale in [SidecarRecord::FILE, Refusal::FILE] {
            let _ = std::fs::remove_file(self.folder.path().join(stale));
        }
        let mut command = Command::new(&self.sidecar);
        command.arg("--config").arg(file).arg("--refusal-in-file");
        // Its engine inherits it: the lines of all that write to this terminal say whose they are.
        command.env("SLUICE_LOG_NAME", self.title());
        if self.quiet {
            child::quieten(&mut command);
        }
        child::end_with_parent(&mut command);
        command.spawn().with_context(|| self.sidecar.display().to_string())
    }

    /// Waits for the end; announces on stdout when the tenant serves, and ends a sidecar that hangs. Its engine's supervisor
    /// does so sooner, unless that hangs as well; the kernel ends the engine with the sidecar.
    async fn watch(&self, child: &mut Child) -> anyhow::Result<ExitStatus> {
        // Sidecars are local: a proxy of the environment has no business between.
        let http = reqwest::Client::builder().no_proxy().build()?;
        let announce = async {
            let record = self.ready(&http).await;
            self.ready_sink.send(Ready { title: self.title(), serve: record.serve });
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            status = child.wait() => return Ok(status?),
            never = announce => match never {},
            () = self.hangs(&http) => {
                let title = self.title();
                let silent = LIVE_EVERY * LIVE_LOOKS;
                note(format_args!("{title}: the sidecar has answered nothing for {silent:?}; killing it"));
                if let Err(error) = SidecarHangs::record(self.folder.path(), silent) {
                    note(format_args!("{title}: the hang of its sidecar is not counted: {error}"));
                }
            }
        }
        child.start_kill()?;
        Ok(child.wait().await?)
    }

    /// Waits until the sidecar's probe has not said for a while that it lives.
    async fn hangs(&self, http: &reqwest::Client) {
        let record = self.listening().await;
        let mut failures = 0;
        let mut looks = tokio::time::interval(LIVE_EVERY);
        // `up` itself may have been stopped: that is no reason to look several times at once.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while failures < LIVE_LOOKS {
            looks.tick().await;
            let answer = http.get(format!("http://{}/live", record.probes)).timeout(LIVE_EVERY).send().await;
            let lives = answer.is_ok_and(|answer| answer.status().is_success());
            failures = if lives { 0 } else { failures + 1 };
        }
    }

    /// Waits until the sidecar's probe says that it serves.
    async fn ready(&self, http: &reqwest::Client) -> SidecarRecord {
        let record = self.listening().await;
        if let Some(announcer) = &self.announcer {
            announcer.tell(&record);
        }
        loop {
            let answer = http.get(format!("http://{}/ready", record.probes)).send().await;
            if answer.is_ok_and(|a| a.status().is_success()) {
                return record;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the sidecar has written where it listens.
    async fn listening(&self) -> SidecarRecord {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // What cannot be read now is read again.
            if let Ok(Some(record)) = runtime::record(self.folder.path()) {
                return record;
            }
        }
    }

    async fn stop(&self, child: &mut Child, orders: &mut watch::Receiver<Order>) -> anyhow::Result<()> {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).ok();
        }
        let limit = Duration::from_secs(u64::from(self.config.drain_seconds)) + STOP_GRACE;
        tokio::select! {
            _ = child.wait() => return Ok(()),
            () = told(orders, Order::End) => {}
            () = tokio::time::sleep(limit) => {
                let title = self.title();
                note(format_args!("{title}: the sidecar did not end within {limit:?}; killing it"));
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
pub async fn told(orders: &mut watch::Receiver<Order>, order: Order) {
    // A sender that is gone means the same.
    let _ = orders.wait_for(|now| *now >= order).await;
}

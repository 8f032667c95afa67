//! One tenant's sidecar process: started, watched, restarted with back-off, stopped.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use sluice_wire::restart::BackOff;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::runtime::TenantFolder;
use crate::{EX_CONFIG, Misconfigured};

/// Beyond the drain, before a sidecar that does not end is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A tenant to keep.
#[derive(Debug)]
pub struct Tenant {
    sidecar: PathBuf,
    config: SidecarConfig,
    folder: TenantFolder,
}

impl Tenant {
    /// A tenant that has not been started.
    pub fn new(sidecar: PathBuf, config: SidecarConfig, folder: TenantFolder) -> Self {
        Tenant { sidecar, config, folder }
    }

    fn title(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Runs the sidecar until told to stop.
    ///
    /// # Errors
    /// A sidecar that cannot be started at all, or says that trying again will not help.
    pub async fn keep(self, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        let file = self.folder.path().join("config.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&self.config)?)
            .with_context(|| file.display().to_string())?;
        let mut back_off = BackOff::default();
        loop {
            let started = Instant::now();
            let mut child = self.spawn(&file)?;
            let wait = tokio::select! {
                () = stopped(&mut stop) => return self.stop(child).await,
                status = self.watch(&mut child) => {
                    let status = status?;
                    // A wrong model folder, a refused configuration, a taken port.
                    if status.code() == Some(EX_CONFIG.into()) {
                        let title = self.title();
                        let problem = format!("{title}: the sidecar cannot serve it; its last words are above");
                        return Err(Misconfigured(problem).into());
                    }
                    let wait = back_off.after(started.elapsed());
                    eprintln!("sluice: {}: the sidecar ended ({status}); restarting in {wait:?}", self.title());
                    wait
                }
            };
            tokio::select! {
                () = stopped(&mut stop) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn spawn(&self, file: &std::path::Path) -> anyhow::Result<Child> {
        let _ = std::fs::remove_file(self.folder.path().join("sidecar.json"));
        let mut command = Command::new(&self.sidecar);
        // Its own process group: a Ctrl-C in the terminal reaches this process alone, which then drains in order.
        command.arg("--config").arg(file).process_group(0).kill_on_drop(true);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only async-signal-safe system calls are made.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                // A parent that ended before the signal was set would never send it.
                let orphan = rustix::process::getppid() != Some(parent);
                if orphan { Err(std::io::ErrorKind::NotFound.into()) } else { Ok(()) }
            });
        }
        command.spawn().with_context(|| self.sidecar.display().to_string())
    }

    /// Waits for the end; announces on stdout when the tenant serves.
    async fn watch(&self, child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
        tokio::select! {
            status = child.wait() => Ok(status?),
            record = self.ready() => {
                println!("ready {} http://{}", self.title(), record.serve);
                Ok(child.wait().await?)
            }
        }
    }

    /// Waits until the sidecar's probe says that it serves.
    async fn ready(&self) -> SidecarRecord {
        let path = self.folder.path().join("sidecar.json");
        let http = reqwest::Client::new();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let record = std::fs::read(&path)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<SidecarRecord>(&bytes).ok());
            let Some(record) = record else { continue };
            let answer = http.get(format!("http://{}/ready", record.probes)).send().await;
            if answer.is_ok_and(|a| a.status().is_success()) {
                return record;
            }
        }
    }

    async fn stop(&self, mut child: Child) -> anyhow::Result<()> {
        if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            kill_process(pid, Signal::TERM).ok();
        }
        let limit = Duration::from_secs(u64::from(self.config.drain_seconds)) + STOP_GRACE;
        if tokio::time::timeout(limit, child.wait()).await.is_err() {
            eprintln!("sluice: {}: the sidecar did not end within {limit:?}; killing it", self.title());
            child.kill().await?;
        }
        Ok(())
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}

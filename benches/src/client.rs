//! `sluice bench` as the clients of tenants.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::child_process::{Stop, capture};
use crate::tenant::BenchEnv;

/// Between two looks at the tenants.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at the clients: what a burst waits for its predecessor.
const TICK: Duration = Duration::from_millis(10);

/// One run of it, not begun.
pub struct Client {
    command: Command,
    outputs: PathBuf,
}

/// A client's measurements, and the response it got.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// Of `sluice bench --json`.
    pub figures: Value,
    /// Every request's text.
    pub outputs: Vec<u8>,
}

impl Client {
    /// Of the tenant at `url`, with more options; texts go to the file `outputs`.
    pub fn new(world: &BenchEnv, url: &str, outputs: PathBuf, options: &[String]) -> Client {
        let mut command = world.command("sluice");
        command.args(["bench", "--json", "--url", url]).args(options);
        command.arg("--outputs").arg(&outputs).stderr(Stdio::null());
        Client { command, outputs }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It failed, or a request did.
    pub fn run(mut self, stop: &Stop) -> Result<ClientReport> {
        let (status, text) = capture(&mut self.command, stop)?;
        ensure!(status.success(), "a burst failed: sluice bench ended with {status}");
        let figures: Value = serde_json::from_str(&text).context("the report of sluice bench")?;
        ensure!(figures["failed"].as_u64() == Some(0), "requests failed: {figures}");
        let outputs = std::fs::read(&self.outputs).with_context(|| self.outputs.display().to_string())?;
        Ok(ClientReport { figures, outputs })
    }
}

/// Runs all at the same time, and calls the background function repeatedly until the last has ended.
///
/// # Errors
/// Of the first that failed.
pub fn run_all(
    clients: Vec<Client>,
    stop: &Stop,
    meanwhile: &mut impl FnMut() -> Result<()>,
) -> Result<Vec<ClientReport>> {
    std::thread::scope(|scope| {
        let start = |client: Client| scope.spawn(move || client.run(stop));
        let running: Vec<_> = clients.into_iter().map(start).collect();
        while !running.iter().all(|client| client.is_finished()) {
            meanwhile()?;
        }
        let join = |client: std::thread::ScopedJoinHandle<'_, _>| {
            client.join().unwrap_or_else(|_| bail!("the thread that ran sluice bench panicked"))
        };
        running.into_iter().map(join).collect()
    })
}

/// Returns the work during a load: `look` at intervals, with little work in between. A failed poll is skipped,
/// since a busy machine answers late; a tenant that has exited fails the clients.
pub fn looking(stop: &Stop, mut look: impl FnMut() -> Result<()>) -> impl FnMut() -> Result<()> {
    let mut looked: Option<Instant> = None;
    move || {
        if looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL) {
            if look().is_err() {
                stop.check()?;
            }
            looked = Some(Instant::now());
        }
        std::thread::sleep(TICK);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_poll_is_skipped_and_signal_stops_polling() {
        let (stop, mut looks) = (Stop::default(), 0);
        let mut failing = looking(&stop, || {
            looks += 1;
            bail!("no server answers")
        });
        failing().unwrap();
        failing().unwrap();
        drop(failing);
        assert_eq!(looks, 1, "the next one comes later");
        let stopped = Stop::received_signal();
        let mut interrupted = looking(&stopped, || bail!("interrupted"));
        assert!(interrupted().is_err());
    }
}

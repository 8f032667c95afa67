//! `sluice up` with the tenants of one file, until it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::bench_env::BenchEnv;
use super::http;
use crate::child_process::{Group, Stop, capture};

/// For all tenants to serve, loading included.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Tenants that serve until this is dropped.
pub struct Up<'a> {
    world: &'a BenchEnv,
    runtime: PathBuf,
    group: Option<Group>,
    startup_output: StartupOutput,
    files: PathBuf,
}

impl Up<'_> {
    /// Starts the tenants of `yaml`, which are `tenants`, and waits until all serve: on `port` and the next ones, 0
    /// = on free ones. `name` distinguishes it from others of this environment that run at the same time.
    pub fn start<'a>(
        world: &'a BenchEnv,
        name: &str,
        yaml: &str,
        tenants: &[&str],
        port: u16,
        options: &[String],
    ) -> Result<Up<'a>> {
        let files = world.scratch.path().join(name);
        std::fs::create_dir(&files).with_context(|| files.display().to_string())?;
        let (file, runtime) = (files.join("tenants.yaml"), files.join("run"));
        std::fs::write(&file, yaml).with_context(|| file.display().to_string())?;
        let mut command = world.command("sluice");
        command.env("SLUICE_RUNTIME_DIR", &runtime).arg("up").arg("-f").arg(&file);
        command.args(["--port", &port.to_string()]).args(options);
        let words = files.join("up.log");
        let log = std::fs::File::create(&words).with_context(|| words.display().to_string())?;
        let mut group = Group::spawn(command.stdout(Stdio::piped()).stderr(log))?;
        let lines = lines(group.child().stdout.take().context("a pipe")?);
        let said = ready(&lines, tenants, &world.stop).inspect_err(|_| {
            // What it said is of interest now, and of none otherwise.
            eprint!("{}", std::fs::read_to_string(&words).unwrap_or_default());
        });
        // Dropped on failure: it ends and cleans up.
        let said = said.with_context(|| format!("the tenants of `{name}`"))?;
        Ok(Up { world, runtime, group: Some(group), startup_output: said, files })
    }

    /// Where a tenant serves.
    pub fn url(&self, tenant: usize) -> String {
        format!("http://{}", self.startup_output.addresses[tenant])
    }

    /// Where the live page is, if there is one.
    pub fn page(&self) -> Option<SocketAddr> {
        self.startup_output.page
    }

    /// The runtime folder, for other commands of `sluice`.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Folder that is removed with it.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Returns the output of `sluice top --once --json`, in the order of the tenants' names.
    pub fn states(&self) -> Result<Vec<Value>> {
        let mut top = self.world.command("sluice");
        top.env("SLUICE_RUNTIME_DIR", &self.runtime).args(["top", "--once", "--json"]);
        let (status, text) = capture(&mut top, &self.world.stop)?;
        ensure!(status.success(), "sluice top failed");
        serde_json::from_str(&text).context("sluice top")
    }

    /// A tenant's metrics, as text.
    pub fn metrics(&self, tenant: usize) -> Result<String> {
        http::get(self.startup_output.addresses[tenant], "/metrics")
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        drop(self.group.take());
        if let Err(error) = std::fs::remove_dir_all(&self.files) {
            eprintln!("sluice-benches: could not remove {}: {error}", self.files.display());
        }
    }
}

/// Every line that comes, until the pipe ends.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // A dropped receiver does not end the reading: a full pipe would stop the writer.
        BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    receiver
}

/// What its lines say.
struct StartupOutput {
    /// Of `ready NAMESPACE/NAME URL`, in the order of the tenants.
    addresses: Vec<SocketAddr>,
    /// Of `page URL`.
    page: Option<SocketAddr>,
}

/// Reads until all of `tenants` are ready.
fn ready(lines: &Receiver<String>, tenants: &[&str], stop: &Stop) -> Result<StartupOutput> {
    let (begun, mut page) = (Instant::now(), None);
    let mut found = vec![None; tenants.len()];
    while found.contains(&None) {
        stop.check()?;
        ensure!(begun.elapsed() < START_LIMIT, "not all tenants serve after {} s", START_LIMIT.as_secs());
        let line = match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("does not serve; the log of the sidecar is above"),
        };
        if let Some(url) = line.strip_prefix("page http://") {
            page = Some(url.trim_end_matches('/').parse().with_context(|| line.clone())?);
            continue;
        }
        let (name, address) = address(&line).with_context(|| format!("an unexpected line: {line}"))?;
        let tenant = tenants.iter().position(|tenant| *tenant == name);
        found[tenant.with_context(|| format!("an unexpected tenant: {line}"))?] = Some(address);
    }
    Ok(StartupOutput { addresses: found.into_iter().flatten().collect(), page })
}

/// Name and address.
fn address(line: &str) -> Option<(&str, SocketAddr)> {
    let (title, url) = line.strip_prefix("ready ")?.split_once(' ')?;
    let (_, name) = title.split_once('/')?;
    Some((name, url.strip_prefix("http://")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_line_has_name_and_address() {
        let expected = Some(("bench", SocketAddr::from(([127, 0, 0, 1], 4711))));
        assert_eq!(address("ready default/bench http://127.0.0.1:4711"), expected);
        assert_eq!(address("sluice: terminated"), None);
    }

    #[test]
    fn addresses_come_in_the_order_of_the_tenants() {
        let said = &b"page http://[::1]:3/\nready n/b http://[::1]:2\nready n/a http://[::1]:1\n"[..];
        let found = ready(&lines(said), &["a", "b"], &Stop::default()).unwrap();
        assert_eq!(found.addresses.iter().map(SocketAddr::port).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found.page.map(|page| page.port()), Some(3));
        assert!(ready(&lines(said), &["a", "c"], &Stop::default()).is_err());
    }

    #[test]
    fn tenants_that_exit_silently_are_an_error() {
        let error = ready(&lines(&b""[..]), &["a"], &Stop::default()).err().expect("an error").to_string();
        assert!(error.starts_with("does not serve; "), "{error}");
    }
}

//! A tenant served by the product's own binaries.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::{Group, Scratch, Stop, capture, cargo};
use crate::workspace::Workspace;

/// For a tenant to serve, loading included.
const START_LIMIT: Duration = Duration::from_secs(120);
/// For an answer that needs no computation.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The release binaries, a model, and a folder for what runs write.
pub struct World {
    bins: PathBuf,
    scratch: Scratch,
    model: PathBuf,
    /// Whether we were told to end.
    pub stop: Stop,
}

/// Builds the binaries.
pub fn build(workspace: &Workspace, stop: &Stop) -> Result<()> {
    // The quick start's command: with other packages, features may differ, and all is compiled again.
    cargo(&workspace.root, &["build", "--release", "--locked", "--bins"], stop)
}

impl World {
    /// With the model in `folder`, or one that `sluice-model-gen` makes with the options `shape`.
    pub fn new(workspace: &Workspace, stop: &Stop, folder: Option<&Path>, shape: &[&str]) -> Result<World> {
        World::with_binaries(workspace.target.join("release").as_std_path(), stop, folder, shape)
    }

    /// The same with the binaries in another folder.
    pub fn with_binaries(bins: &Path, stop: &Stop, folder: Option<&Path>, shape: &[&str]) -> Result<World> {
        let (bins, scratch) = (std::path::absolute(bins)?, Scratch::new()?);
        let model = folder.map_or_else(|| Ok(scratch.path().join("model")), std::path::absolute)?;
        let world = World { bins, scratch, model, stop: stop.clone() };
        if folder.is_none() {
            let mut make = world.command("sluice-model-gen");
            make.arg("--out").arg(world.model()).args(shape);
            let (status, _) = capture(&mut make, stop)?;
            ensure!(status.success(), "sluice-model-gen made no model");
        }
        Ok(world)
    }

    /// The model's folder.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// One of the product's binaries.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bins.join(name));
        command.env("SLUICE_LOG", "warn").env("SLUICE_BIN_DIR", &self.bins);
        command
    }
}

/// The device a tenant runs on.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Unit in which memory changes hands, bytes.
    pub chunk_bytes: u64,
    /// Bytes per second from host to device; none = as fast as memory.
    pub link_bytes_per_s: Option<u64>,
}

/// A tenant to start.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// `Recompute`, `Oneiros` or `Ellm`.
    pub policy: &'a str,
    /// What it runs on.
    pub device: Device,
    /// Longest context, tokens.
    pub context: u32,
    /// Whether tokens are paced to the objective; else they leave as they come.
    pub paced: bool,
    /// The engine's threads; none = all cores.
    pub threads: Option<usize>,
}

impl Setup<'_> {
    /// The pool and the tenant, which is named `bench`.
    fn yaml(&self, model: &Path) -> String {
        let Setup { policy, device, context, paced, .. } = *self;
        let link = device.link_bytes_per_s.map(|bytes| format!(", linkBytesPerSecond: \"{bytes}\""));
        let pacing = if paced { "" } else { "  pacing: {mode: Immediate}\n" };
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: bench}}\nspec:\n  \
             deviceClassName: host.sluice.dev\n  \
             device: {{host: {{memory: \"{}\", chunkBytes: \"{}\"{}}}}}\n  \
             gpus: [{{name: gpu}}]\n  hostMemoryPerGPU: 16Gi\n  policy: {policy}\n---\n\
             apiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: bench}}\nspec:\n  \
             poolRef: {{name: bench}}\n  drainSeconds: 1\n{pacing}  \
             model: {{source: {{type: File, file: {{path: {:?}}}}}, maxModelLen: {context}}}\n",
            device.memory_bytes,
            device.chunk_bytes,
            link.unwrap_or_default(),
            model.display().to_string()
        )
    }
}

/// A tenant that serves until this is dropped.
pub struct Tenant<'a> {
    world: &'a World,
    runtime: PathBuf,
    up: Option<Group>,
    address: SocketAddr,
    files: PathBuf,
}

impl Tenant<'_> {
    /// Starts a tenant and waits until it serves on a free port. `name` tells it from others of this world that run at
    /// the same time.
    pub fn start<'a>(world: &'a World, name: &str, setup: &Setup<'_>) -> Result<Tenant<'a>> {
        Tenant::start_at(world, name, setup, 0)
    }

    /// The same on a port; 0 = a free one.
    pub fn start_at<'a>(world: &'a World, name: &str, setup: &Setup<'_>, port: u16) -> Result<Tenant<'a>> {
        let files = world.scratch.path().join(name);
        std::fs::create_dir(&files).with_context(|| files.display().to_string())?;
        let (file, runtime) = (files.join("tenant.yaml"), files.join("run"));
        std::fs::write(&file, setup.yaml(world.model())).with_context(|| file.display().to_string())?;
        let mut command = world.command("sluice");
        command.env("SLUICE_RUNTIME_DIR", &runtime).arg("up").arg("-f").arg(&file);
        command.args(["--port", &port.to_string()]);
        if let Some(threads) = setup.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let words = files.join("up.log");
        let log = std::fs::File::create(&words).with_context(|| words.display().to_string())?;
        let mut up = Group::spawn(command.stdout(Stdio::piped()).stderr(log))?;
        let lines = lines(up.child().stdout.take().context("a pipe")?);
        let address = ready(&lines, &world.stop).inspect_err(|_| {
            // What it said is of interest now, and of none otherwise.
            eprint!("{}", std::fs::read_to_string(&words).unwrap_or_default());
        });
        // Dropped on failure: it ends and cleans up.
        let address = address.with_context(|| format!("the tenant `{name}`"))?;
        Ok(Tenant { world, runtime, up: Some(up), address, files })
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its runtime folder, for other commands of `sluice`.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// A folder that goes with it.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Process id of the sidecar.
    pub fn pid(&self) -> Result<u32> {
        let folder = self.runtime.join("default.bench/sidecar.json");
        let record = std::fs::read(&folder).with_context(|| folder.display().to_string())?;
        let record: Value = serde_json::from_slice(&record)?;
        record["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).context("a record without a pid")
    }

    /// Processor time that the threads of its sidecar have used so far, nanoseconds.
    pub fn processor_ns(&self) -> Result<u64> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()?));
        let mut total_ns = 0;
        for task in std::fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
            // A thread that has just ended takes its share with it; those of a sidecar that serves stay.
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
            total_ns += running_ns(&text).with_context(|| format!("schedstat of a thread: {text}"))?;
        }
        Ok(total_ns)
    }

    /// What `sluice top --once --json` tells of it.
    pub fn state(&self) -> Result<Value> {
        let mut top = self.world.command("sluice");
        top.env("SLUICE_RUNTIME_DIR", &self.runtime).args(["top", "--once", "--json"]);
        let (status, text) = capture(&mut top, &self.world.stop)?;
        ensure!(status.success(), "sluice top failed");
        let states: Value = serde_json::from_str(&text).context("sluice top")?;
        states.get(0).cloned().context("sluice top shows no tenant")
    }

    /// Its metrics, as text.
    pub fn metrics(&self) -> Result<String> {
        let mut socket = TcpStream::connect_timeout(&self.address, ANSWER_LIMIT).context("/metrics")?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).context("/metrics")?;
        ensure!(
            answer.starts_with("HTTP/1.1 200 "),
            "/metrics: {}",
            answer.lines().next().unwrap_or_default()
        );
        Ok(answer)
    }
}

impl Drop for Tenant<'_> {
    fn drop(&mut self) {
        drop(self.up.take());
        if let Err(error) = std::fs::remove_dir_all(&self.files) {
            eprintln!("xtask: {} stays behind: {error}", self.files.display());
        }
    }
}

/// Every line that comes, until the pipe ends.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // A receiver that has gone does not end the reading: a full pipe would stop the writer.
        BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    receiver
}

/// The address in the line `ready NAMESPACE/NAME URL`.
fn ready(lines: &Receiver<String>, stop: &Stop) -> Result<SocketAddr> {
    let begun = Instant::now();
    loop {
        stop.check()?;
        ensure!(begun.elapsed() < START_LIMIT, "does not serve after {} s", START_LIMIT.as_secs());
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => return address(&line).with_context(|| format!("an unexpected line: {line}")),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("does not serve; the sidecar's words are above"),
        }
    }
}

fn address(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("ready ")?.split(' ').nth(1)?.strip_prefix("http://")?.parse().ok()
}

/// Time on a processor, of a thread's `schedstat`: the first of three numbers.
fn running_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Value of the metric `name`, which has one line, in a text of OpenMetrics.
pub fn metric(text: &str, name: &str) -> Result<f64> {
    let value = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next())?
    });
    value.with_context(|| format!("no metric {name}"))?.parse().with_context(|| format!("metric {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_tells_the_address() {
        let expected = Some(SocketAddr::from(([127, 0, 0, 1], 4711)));
        assert_eq!(address("ready default/bench http://127.0.0.1:4711"), expected);
        assert_eq!(address("sluice: terminated"), None);
    }

    #[test]
    fn a_tenant_that_ends_without_a_word_is_an_error_at_once() {
        let error = ready(&lines(&b""[..]), &Stop::default()).unwrap_err().to_string();
        assert!(error.starts_with("does not serve; "), "{error}");
        assert!(ready(&lines(&b"ready a/b http://[::1]:1\n"[..]), &Stop::default()).is_ok());
    }

    #[test]
    fn a_threads_time_on_a_processor_is_the_first_number() {
        assert_eq!(running_ns("1234567 89 12\n"), Some(1_234_567));
        assert_eq!(running_ns(""), None);
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE a histogram\na_sum_of{m=\"x\"} 1\na_sum{m=\"x y\"} 0.5725\na_count 159\n# EOF\n";
        assert_eq!(metric(text, "a_sum").unwrap(), 0.5725);
        assert_eq!(metric(text, "a_count").unwrap(), 159.0);
        assert_eq!(metric(text, "a").unwrap_err().to_string(), "no metric a");
    }

    #[test]
    fn the_tenant_is_one_that_the_product_takes() {
        for (link_bytes_per_s, paced) in [(None, true), (Some(5), false)] {
            let device = Device { memory_bytes: 1 << 28, chunk_bytes: 1 << 16, link_bytes_per_s };
            let yaml =
                Setup { policy: "Oneiros", device, context: 512, paced, threads: None }.yaml(Path::new("/m"));
            let loaded = sluice_types::load::load_valid_str(&yaml, "bench.yaml");
            assert_eq!(loaded.unwrap_or_else(|errors| panic!("{errors:?}")).len(), 2);
        }
    }
}

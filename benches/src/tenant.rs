//! Tenants served by the product's own binaries.

mod bench_env;
mod http;
mod up;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

pub use bench_env::{BenchEnv, build};
pub use http::post;
pub use up::Up;

/// The device a tenant runs on.
#[derive(Clone, Copy, Debug)]
pub struct TenantDevice {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Unit in which memory changes hands, bytes.
    pub chunk_bytes: u64,
    /// Bytes per second from host to device; none = as fast as memory.
    pub link_bytes_per_s: Option<u64>,
}

impl TenantDevice {
    /// The field `device` of a `GpuPool` that is made of host memory, without an end of line.
    pub fn yaml(&self) -> String {
        let TenantDevice { memory_bytes, chunk_bytes, link_bytes_per_s } = self;
        let link = link_bytes_per_s.map(|bytes| format!(", linkBytesPerSecond: \"{bytes}\""));
        let link = link.unwrap_or_default();
        format!("device: {{host: {{memory: \"{memory_bytes}\", chunkBytes: \"{chunk_bytes}\"{link}}}}}")
    }
}

/// A tenant to start.
#[derive(Clone, Copy, Debug)]
pub struct TenantOptions<'a> {
    /// `Recompute`, `Oneiros` or `Ellm`.
    pub policy: &'a str,
    /// What it runs on.
    pub device: TenantDevice,
    /// Longest context, tokens.
    pub context: u32,
    /// Whether tokens are paced to the objective; else they leave as they come.
    pub paced: bool,
    /// The engine's threads; none = all cores.
    pub threads: Option<usize>,
    /// Whether the live page shows it.
    pub page: bool,
}

impl TenantOptions<'_> {
    /// The pool and the tenant, which is named `bench`.
    fn yaml(&self, model: &Path) -> String {
        let TenantOptions { policy, device, context, paced, .. } = *self;
        let pacing = if paced { "" } else { "  pacing: {mode: Immediate}\n" };
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: bench}}\nspec:\n  \
             deviceClassName: host.sluice.dev\n  {}\n  \
             gpus: [{{name: gpu}}]\n  hostMemoryPerGPU: 16Gi\n  policy: {policy}\n---\n\
             apiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: bench}}\nspec:\n  \
             poolRef: {{name: bench}}\n  drainSeconds: 1\n{pacing}  \
             model: {{source: {{type: File, file: {{path: {:?}}}}}, maxModelLen: {context}}}\n",
            device.yaml(),
            model.display().to_string()
        )
    }
}

/// A tenant that serves until this is dropped.
pub struct Tenant<'a>(Up<'a>);

impl Tenant<'_> {
    /// Starts a tenant and waits until it serves on a free port. `name` distinguishes it from others of this
    /// environment that run at the same time.
    pub fn start<'a>(world: &'a BenchEnv, name: &str, setup: &TenantOptions<'_>) -> Result<Tenant<'a>> {
        let threads = setup.threads.map(|threads| ["--threads".to_owned(), threads.to_string()]);
        let page = setup.page.then(|| ["--page".to_owned(), "0".to_owned()]);
        let options: Vec<String> = threads.into_iter().chain(page).flatten().collect();
        Ok(Tenant(Up::start(world, name, &setup.yaml(world.model()), &["bench"], 0, &options)?))
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        self.0.url(0)
    }

    /// Where the live page is, if there is one.
    pub fn page(&self) -> Option<SocketAddr> {
        self.0.page()
    }

    /// Folder that is removed with it.
    pub fn files(&self) -> &Path {
        self.0.files()
    }

    /// What the sidecar wrote of itself.
    pub fn record(&self) -> Result<Value> {
        let file = self.0.runtime().join("default.bench/sidecar.json");
        let record = std::fs::read(&file).with_context(|| file.display().to_string())?;
        serde_json::from_slice(&record).with_context(|| file.display().to_string())
    }

    /// Process id of the sidecar.
    pub fn pid(&self) -> Result<u32> {
        let record = self.record()?;
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

    /// Returns the output of `sluice top --once --json` for it.
    pub fn state(&self) -> Result<Value> {
        self.0.states()?.into_iter().next().context("sluice top shows no tenant")
    }

    /// Its metrics, as text.
    pub fn metrics(&self) -> Result<String> {
        self.0.metrics(0)
    }
}

/// Time on a processor, of a thread's `schedstat`: the first of three numbers.
fn running_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_time_on_a_processor_is_the_first_number() {
        assert_eq!(running_ns("1234567 89 12\n"), Some(1_234_567));
        assert_eq!(running_ns(""), None);
    }

    #[test]
    fn the_tenant_is_one_that_the_product_takes() {
        for (link_bytes_per_s, paced) in [(None, true), (Some(5), false)] {
            let device = TenantDevice { memory_bytes: 1 << 28, chunk_bytes: 1 << 16, link_bytes_per_s };
            let setup =
                TenantOptions { policy: "Oneiros", device, context: 512, paced, threads: None, page: false };
            let yaml = setup.yaml(Path::new("/m"));
            let loaded = sluice_types::load::load_valid_str(&yaml, "bench.yaml");
            assert_eq!(loaded.unwrap_or_else(|errors| panic!("{errors:?}")).len(), 2);
        }
    }
}

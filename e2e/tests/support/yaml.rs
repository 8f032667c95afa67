//! The YAML of a test: one pool with as many GPUs as tenants.

use std::fmt::Write;
use std::path::Path;

/// Text for `sluice up -f`.
#[derive(Clone, Debug)]
pub struct Yaml {
    /// Device memory of each GPU.
    pub memory: &'static str,
    /// Bandwidth of the link.
    pub link: Option<&'static str>,
    /// Policy.
    pub policy: &'static str,
    /// GPUs.
    pub gpus: u32,
    tenants: String,
}

impl Yaml {
    /// A pool with one GPU of `memory`.
    pub fn pool(memory: &'static str) -> Yaml {
        Yaml { memory, link: None, policy: "Oneiros", gpus: 1, tenants: String::new() }
    }

    /// Adds a tenant. `model` goes on after the source in `spec.model`, `spec` in `spec`, both in flow style, such as
    /// `", maxModelLen: 64"` and `"drainSeconds: 1, limits: {maxStreams: 2}"`.
    pub fn tenant(mut self, name: &str, folder: &Path, model: &str, spec: &str) -> Yaml {
        let comma = if spec.is_empty() { "" } else { ", " };
        write!(
            self.tenants,
            "---\napiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: {name}}}\n\
             spec: {{poolRef: {{name: box}}, model: {{source: {{type: File, file: {{path: {}}}}}{model}}}{comma}{spec}}}\n",
            folder.display()
        )
        .unwrap();
        self
    }

    /// The text.
    pub fn text(&self) -> String {
        let Yaml { memory, policy, gpus, tenants, .. } = self;
        let link = self.link.map(|link| format!(", linkBytesPerSecond: {link}")).unwrap_or_default();
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: box}}\nspec:\n  \
             deviceClassName: host.sluice.dev\n  device: {{host: {{memory: {memory}{link}}}}}\n  \
             gpus: [{{name: one, count: {gpus}}}]\n  hostMemoryPerGPU: 1Gi\n  policy: {policy}\n{tenants}"
        )
    }
}

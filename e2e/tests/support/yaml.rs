//! The YAML of a test: one pool with as many GPUs as tenants.

use std::fmt::Write;
use std::path::Path;

/// Text for `sluice up -f`.
#[derive(Clone, Debug)]
pub struct Yaml {
    /// Device memory of each GPU made of host memory; `None` = CUDA devices, as [`super::gpu`] makes them.
    pub memory: Option<&'static str>,
    /// Bandwidth of the link.
    pub link: Option<&'static str>,
    /// Policy.
    pub policy: &'static str,
    /// GPUs.
    pub gpus: u32,
    /// Size of a chunk.
    pub chunk: Option<&'static str>,
    /// How a GPU is shared, in flow style.
    pub sharing: Option<&'static str>,
    /// `spec.remap`, in flow style.
    pub remap: Option<&'static str>,
    tenants: String,
}

impl Yaml {
    /// A pool with one GPU of `memory`.
    pub fn pool(memory: &'static str) -> Yaml {
        Yaml {
            memory: Some(memory),
            link: None,
            policy: "Oneiros",
            gpus: 1,
            chunk: None,
            sharing: None,
            remap: None,
            tenants: String::new(),
        }
    }

    /// A pool with one CUDA device.
    pub fn cuda_pool() -> Yaml {
        Yaml { memory: None, ..Yaml::pool("") }
    }

    /// Adds a tenant. `model` follows the source in `spec.model`, `spec` is appended to `spec`, both in flow style,
    /// such as `", maxModelLen: 64"` and `"drainSeconds: 1, limits: {maxStreams: 2}"`.
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
        let Yaml { policy, gpus, tenants, .. } = self;
        let more =
            |key, value: Option<&str>| value.map_or_else(String::new, |value| format!(", {key}: {value}"));
        let (link, chunk) = (more("linkBytesPerSecond", self.link), more("chunkBytes", self.chunk));
        let sharing = more("sharing", self.sharing);
        let remap = self.remap.map_or_else(String::new, |remap| format!("  remap: {remap}\n"));
        let class = match self.memory {
            Some(memory) => {
                format!("host.sluice.dev\n  device: {{host: {{memory: {memory}{link}{chunk}}}}}")
            }
            None => "gpu.nvidia.com\n  device: {contextReserve: 64Mi}".to_owned(),
        };
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: box}}\nspec:\n  \
             deviceClassName: {class}\n  \
             gpus: [{{name: one, count: {gpus}{sharing}}}]\n  hostMemoryPerGPU: 4Gi\n  policy: {policy}\n{remap}{tenants}"
        )
    }
}

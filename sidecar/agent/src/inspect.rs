//! `sluice-sidecar inspect`: sizes of a model without loading it, from `config.json` and the headers of its weights.
//!
//! It uses the sidecar's own rules: the same parsing of the configuration, the same slab layout, and the same checks of
//! every tensor's shape and format. Activations are those of the native engine on the kind of device that the options
//! name; an engine of another kind reports its own when it attaches.

mod error;
mod headers;
mod model_files;

use std::io::Write;
use std::path::{Path, PathBuf};

use sluice_link::activation;
use sluice_link::activation::cuda::CudaSizes;
use sluice_link::model::ModelSpec;
use sluice_link::slab::slab_layout;
use sluice_link::vocabulary::BLOCK_TOKENS;
use sluice_policy::geometry::ActivationCost;
use sluice_wire::config::LimitsConfig;
use sluice_wire::geometry::{Geometry, GeometryErrorKind, GeometryReport};

pub use self::error::InspectError;
use self::headers::headers;
pub(crate) use self::headers::parse_header;
pub use self::model_files::ModelFiles;
use crate::download::{BucketArgs, DownloadError, HubArgs, ProgressOutput, RetryArgs};
use crate::engine_loop::{chunk_tokens, step_limits};
use crate::model::config::parse_config;
use crate::model::weights::check_headers;
use crate::run::failure::Failure;

/// Maximum size of a JSON file that is read whole, in bytes.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// What is inspected, and where the result goes.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// Number format in memory: Auto (as stored), Float32, Float16 or BFloat16.
    #[arg(long, default_value = "Auto", global = true)]
    dtype: String,
    /// Device that the engine computes on.
    #[command(flatten)]
    device: DeviceArgs,
    /// Also write the line to this file, such as the termination message of a container.
    #[arg(long, value_name = "FILE", global = true)]
    report: Option<PathBuf>,
    /// Report failed attempts on standard output instead of in the log, one JSON object a line, before the line of the
    /// sizes: `problem`, `retry_in_ms`.
    #[arg(long, global = true)]
    progress: bool,
    /// Tries while the source cannot be reached.
    #[command(flatten)]
    retry: RetryArgs,
    /// Where the model is.
    #[command(subcommand)]
    at: ModelLocation,
}

/// The device on which a step takes memory.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct DeviceArgs {
    /// Device that the engine computes on: its activations are part of the sizes.
    #[arg(long, value_enum, default_value_t = DeviceKind::Host, global = true)]
    pub device: DeviceKind,
    /// Longest sequence in tokens, on which activations depend on a CUDA device. Default: what the model was made for.
    #[arg(long, value_name = "TOKENS", global = true)]
    pub max_model_len: Option<u32>,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// A GPU made of host memory.
    #[default]
    Host,
    /// A CUDA device.
    Cuda,
}

/// Where the model is, on the command line.
#[derive(Clone, Debug, clap::Subcommand)]
enum ModelLocation {
    /// A folder of this machine.
    Folder {
        /// Its path.
        path: PathBuf,
    },
    /// A repository of a Hugging Face hub. The variable HF_TOKEN holds a token, if one is needed.
    HuggingFace {
        /// The repository.
        #[command(flatten)]
        hub: HubArgs,
    },
    /// Objects of a bucket. The variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold credentials, if they are
    /// needed.
    S3 {
        /// The objects.
        #[command(flatten)]
        objects: BucketArgs,
    },
}

/// Runs the subcommand: reports the sizes, or the reason why there are none.
///
/// # Errors
/// That reason, as a configuration error if a retry cannot help.
pub fn run(asked: &InspectArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.into()))?;
    let found = runtime.block_on(async {
        let files = asked.files().await?;
        inspect(&files, Some(asked.dtype.as_str()), asked.device).await
    });
    // A name lookup may still run. Do not wait for it.
    runtime.shutdown_background();
    let report = GeometryReport::new(found.as_ref().copied().map_err(InspectError::geometry_error));
    write_report(&report.to_json(), asked.report.as_deref()).map_err(|error| Failure::Other(error.into()))?;
    found.map(drop).map_err(|error| match error.unsupported_reason() {
        GeometryErrorKind::Unavailable => Failure::Other(error.into()),
        GeometryErrorKind::Unreadable | GeometryErrorKind::Unsupported => Failure::Config(error.into()),
    })
}

fn write_report(line: &str, report: Option<&Path>) -> std::io::Result<()> {
    if let Some(file) = report {
        std::fs::write(file, line)?;
    }
    writeln!(std::io::stdout(), "{line}")
}

impl InspectArgs {
    async fn files(&self) -> Result<ModelFiles, DownloadError> {
        let source = match &self.at {
            ModelLocation::Folder { path } => return Ok(ModelFiles::folder(path)),
            ModelLocation::HuggingFace { hub } => hub.source()?,
            ModelLocation::S3 { objects } => objects.source()?,
        };
        tracing::info!(%source, "inspecting a model");
        ModelFiles::remote(source, self.retry.policy(), ProgressOutput::new(self.progress)).await
    }
}

/// Returns the sizes of the model in `files` on a device, with `dtype` as the format in memory (`Auto` or none: as
/// stored).
///
/// # Errors
/// The files cannot be fetched, or are not a supported model.
pub async fn inspect(
    files: &ModelFiles,
    dtype: Option<&str>,
    device: DeviceArgs,
) -> Result<Geometry, InspectError> {
    files.check_present()?;
    let config = files.path("config.json");
    let map = files.json("config.json", MAX_JSON_BYTES).await?;
    let shape = parse_config(&config, map, dtype)?;
    let headers = headers(files, MAX_JSON_BYTES).await?;
    let spec = shape.into_spec(&headers);
    check_headers(files.location(), &spec, &headers)?;
    Ok(Geometry { download_bytes: files.download_bytes(), ..geometry(&spec, device) })
}

/// Returns the sizes of a model under the default limits that every tenant of a cluster has.
fn geometry(spec: &ModelSpec, device: DeviceArgs) -> Geometry {
    let layout = slab_layout(spec);
    let limits = LimitsConfig::default();
    let (smallest, largest) = step_limits(&limits);
    let cost = |threads| device.cost(spec, threads, chunk_tokens(&limits));
    Geometry {
        global_bytes: layout.global.bytes,
        layer_bytes: layout.layer.bytes,
        layers: u32::from(spec.layers),
        kv_bytes_per_token: spec.layer_block_bytes() / u64::from(BLOCK_TOKENS) * u64::from(spec.layers),
        max_model_len: spec.max_positions,
        activation_bytes: cost(0).bytes(smallest),
        step_activation_bytes: cost(0).bytes(largest),
        thread_bytes: cost(1).fixed_bytes - cost(0).fixed_bytes,
        // The sidecar copies from its master copy and needs no other staging.
        staging_bytes: 0,
        download_bytes: None,
    }
}

impl DeviceArgs {
    /// Returns the activation cost of an engine with `threads` threads, which take memory on host memory alone.
    fn cost(self, spec: &ModelSpec, threads: usize, chunk_tokens: u32) -> ActivationCost {
        match self.device {
            DeviceKind::Host => activation::cost(spec, threads, chunk_tokens),
            DeviceKind::Cuda => {
                let max_tokens = self.max_model_len.unwrap_or(u32::MAX).min(spec.max_positions);
                CudaSizes { spec, max_tokens, chunk_tokens }.cost()
            }
        }
    }
}

//! Sizes of a model, as `sluice-sidecar inspect` reads them from its configuration and the headers of its weights.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use sluice_types::tenant::WeightType;
use sluice_wire::geometry::{Geometry, Obstacle, Refusal, Report};
use tokio::io::AsyncReadExt;

use crate::models::hub_model::HubModel;
use crate::up::speak::note;
use crate::{child, siblings};

/// Where a model is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A folder of this machine.
    Folder(&'a Path),
    /// A repository of a hub, of which only beginnings of files are downloaded.
    Hub(&'a HubModel),
}

impl Place<'_> {
    fn arguments(&self) -> Vec<OsString> {
        match self {
            Place::Folder(folder) => vec!["folder".into(), folder.into()],
            Place::Hub(model) => hub_arguments(model),
        }
    }
}

/// Arguments of `sluice-sidecar fetch` and `inspect` for a repository of a hub.
pub fn hub_arguments(model: &HubModel) -> Vec<OsString> {
    let HubModel { endpoint, repo, revision, .. } = model;
    ["hugging-face", "--repo", repo, "--revision", revision, "--endpoint", endpoint]
        .map(OsString::from)
        .into()
}

/// Sizes of the model, in memory as `dtype`.
///
/// # Errors
/// The refusal of `sluice-sidecar inspect`, or why it could not be asked.
pub async fn inspect(place: Place<'_>, dtype: WeightType) -> Result<Geometry, Refusal> {
    let unavailable = |message: String| Refusal { reason: Obstacle::Unavailable, message };
    let sidecar = siblings::find("sluice-sidecar").map_err(|error| unavailable(format!("{error:#}")))?;
    let failed = |error: std::io::Error| unavailable(format!("{}: {error}", sidecar.display()));
    let mut command = tokio::process::Command::new(&sidecar);
    command.args(["inspect", "--dtype", &format!("{dtype:?}")]).args(place.arguments());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::quieten(&mut command);
    child::end_with_parent(&mut command);
    let mut running = command.spawn().map_err(failed)?;
    let (mut stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let read = async {
        let mut report = String::new();
        if let Some(stdout) = &mut stdout {
            stdout.read_to_string(&mut report).await?;
        }
        Ok::<_, std::io::Error>(report)
    };
    let words = async {
        match stderr {
            Some(stderr) => child::forward(stderr, |line| note(line)).await,
            None => None,
        }
    };
    let (report, words) = tokio::join!(read, words);
    let (report, status) = (report.map_err(failed)?, running.wait().await.map_err(failed)?);
    Report::from_json(report.trim().as_bytes()).unwrap_or_else(|error| {
        let words = words.unwrap_or_default();
        Err(unavailable(format!("{} ended with {status}: {error}\n{words}", sidecar.display())))
    })
}

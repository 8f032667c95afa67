//! Sizes of a model, as `sluice-sidecar inspect` reads them from its configuration and the headers of its weights.

use std::path::Path;
use std::process::Stdio;

use sluice_types::tenant::WeightType;
use sluice_wire::geometry::{Geometry, Obstacle, Refusal, Report};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::models::hub_model::HubModel;
use crate::up::speak::note;
use crate::{child, siblings};

/// Variable of the environment with the user's token of a hub.
pub const TOKEN: &str = "HF_TOKEN";

/// Where a model is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A folder of this machine.
    Folder(&'a Path),
    /// A repository of a hub, of which only beginnings of files are downloaded.
    Hub(&'a HubModel),
}

/// Adds what `sluice-sidecar fetch` and `inspect` need for a repository of a hub. The user's token goes to no hub that a URL names.
pub fn add_hub(command: &mut Command, model: &HubModel) {
    let HubModel { endpoint, repo, revision, takes_token, .. } = model;
    command.args(["hugging-face", "--repo", repo, "--revision", revision, "--endpoint", endpoint]);
    if !takes_token {
        command.env_remove(TOKEN);
    }
}

/// Sizes of the model, in memory as `dtype`.
///
/// # Errors
/// The refusal of `sluice-sidecar inspect`, or why it could not be asked.
pub async fn inspect(place: Place<'_>, dtype: WeightType) -> Result<Geometry, Refusal> {
    let unavailable = |message: String| Refusal { reason: Obstacle::Unavailable, message };
    let sidecar = siblings::find("sluice-sidecar").map_err(|error| unavailable(format!("{error:#}")))?;
    let failed = |error: std::io::Error| unavailable(format!("{}: {error}", sidecar.display()));
    let mut command = Command::new(&sidecar);
    command.args(["inspect", "--dtype", &format!("{dtype:?}")]);
    match place {
        Place::Folder(folder) => drop(command.arg("folder").arg(folder)),
        Place::Hub(model) => add_hub(&mut command, model),
    }
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

//! Reads the sizes of a model through `sluice-sidecar inspect`, from its configuration and the headers of its weights.

use std::path::Path;
use std::process::Stdio;

use sluice_wire::download::Retry;
use sluice_wire::geometry::{Geometry, GeometryError, GeometryErrorKind, GeometryReport};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

use crate::models::hub_model::HubModel;
use crate::up::output::eprint_note;
use crate::{child, sibling_binaries};

/// Environment variable with the user's hub token.
pub const HUB_TOKEN_ENV: &str = "HF_TOKEN";

/// Connection attempts per hub. Few, because a user waits, and a failed network seldom recovers within moments.
const CONNECT_TRIES: &str = "3";

/// Location of a model.
#[derive(Clone, Copy)]
pub enum ModelLocation<'a> {
    /// A folder of this machine.
    Folder(&'a Path),
    /// A repository of a hub, of which only beginnings of files are downloaded, and what shows failures that are
    /// tried again.
    Hub(&'a HubModel, &'a dyn Fn(&Retry)),
}

/// Adds the options that `sluice-sidecar fetch` and `inspect` need for a hub. The user's token is not sent to a hub
/// that a URL names.
pub fn add_hub(command: &mut Command, model: &HubModel) {
    let HubModel { endpoint, repo, revision, sends_token: takes_token, .. } = model;
    command.args(["--progress", "--connect-tries", CONNECT_TRIES]);
    command.args(["hugging-face", "--repo", repo, "--revision", revision, "--endpoint", endpoint]);
    if !takes_token {
        command.env_remove(HUB_TOKEN_ENV);
    }
}

/// Returns the sizes of the model. `options` are those of `sluice-sidecar inspect`; none = as stored, on a GPU made of
/// host memory.
///
/// # Errors
/// `sluice-sidecar inspect` rejected the model, or could not be run.
pub async fn inspect(place: ModelLocation<'_>, options: &[String]) -> Result<Geometry, GeometryError> {
    let unavailable = |message: String| GeometryError { reason: GeometryErrorKind::Unavailable, message };
    let sidecar =
        sibling_binaries::find("sluice-sidecar").map_err(|error| unavailable(format!("{error:#}")))?;
    let failed = |error: std::io::Error| unavailable(format!("{}: {error}", sidecar.display()));
    let mut command = Command::new(&sidecar);
    command.arg("inspect").args(options);
    match place {
        ModelLocation::Folder(folder) => drop(command.arg("folder").arg(folder)),
        ModelLocation::Hub(model, _) => add_hub(&mut command, model),
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::set_warn_log_level(&mut command);
    child::kill_on_parent_exit(&mut command);
    let mut running = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let read = async {
        match stdout {
            Some(stdout) => read_report(stdout, place).await,
            None => Ok(String::new()),
        }
    };
    let words = async {
        match stderr {
            Some(stderr) => child::forward_log(stderr, |line| eprint_note(line)).await,
            None => None,
        }
    };
    let (report, words) = tokio::join!(read, words);
    let (report, status) = (report.map_err(failed)?, running.wait().await.map_err(failed)?);
    GeometryReport::from_json(report.as_bytes()).unwrap_or_else(|error| {
        let words = words.unwrap_or_default();
        Err(unavailable(format!("{} ended with {status}: {error}\n{words}", sidecar.display())))
    })
}

/// Returns the last line; the lines before it report retried failures.
async fn read_report(stdout: impl AsyncRead + Unpin, place: ModelLocation<'_>) -> std::io::Result<String> {
    let (mut lines, mut report) = (BufReader::new(stdout).lines(), String::new());
    while let Some(line) = lines.next_line().await? {
        match (place, serde_json::from_str::<Retry>(&line)) {
            (ModelLocation::Hub(_, on_retry), Ok(retry)) => on_retry(&retry),
            _ => report = line,
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::models::hub_model::DEFAULT_ENDPOINT;

    #[tokio::test]
    async fn retries_are_shown_and_last_line_is_report() {
        let (shown, hub) = (RefCell::new(Vec::new()), HubModel::parse("org/tiny", DEFAULT_ENDPOINT).unwrap());
        let on_retry = |retry: &Retry| shown.borrow_mut().push((retry.problem.clone(), retry.retry_in_ms));
        let stdout = "{\"problem\":\"no hub\",\"retry_in_ms\":500}\n{\"version\":1}\n";
        let report = read_report(stdout.as_bytes(), ModelLocation::Hub(&hub, &on_retry)).await.unwrap();
        assert_eq!(report, "{\"version\":1}");
        assert_eq!(*shown.borrow(), [("no hub".to_owned(), 500)]);
    }
}

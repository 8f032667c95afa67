//! Inspects models of a hub before their weights are downloaded, and downloads them with progress.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sluice_wire::download::{DownloadReport, Progress, Retry};
use sluice_wire::geometry::{Geometry, GeometryError, GeometryErrorKind};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::inspect::{HUB_TOKEN_ENV, ModelLocation, add_hub, inspect};
use crate::models::cache::ModelGuard;
use crate::models::hub_model::HubModel;
use crate::up::output::eprint_note;
use crate::{EX_CONFIG, Misconfigured, child, sibling_binaries};
use sluice_page::text::formatting::bytes;

/// Time between two lines about a download whose bar is not on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Part of the sidecar's message when it cannot connect to a hub.
const UNREACHABLE_MARKER: &str = " cannot be reached: ";
/// Advice in that case.
const OFFLINE_HINT: &str = "; a folder with a model needs no network: sluice run FOLDER";

/// Returns the sizes of the model in `folder`.
///
/// # Errors
/// The engine does not support the model. The error is the message of `sluice-sidecar inspect`, after the model's name.
pub async fn sizes_in_folder(name: &str, folder: &Path) -> anyhow::Result<Geometry> {
    inspect(ModelLocation::Folder(folder), &[]).await.map_err(|refusal| inspect_error(name, refusal))
}

/// Returns the sizes of a model of a hub, reading only the configuration and the headers of the weights.
///
/// # Errors
/// As for [`sizes_in_folder`], or the hub cannot be reached.
pub async fn sizes_on_hub(model: &HubModel) -> anyhow::Result<Geometry> {
    eprint_note(format_args!("{model}: reading its configuration at {}", model.endpoint));
    let view = DownloadProgress::new(&model.to_string());
    let on_retry = |retry: &Retry| view.on_retry(retry);
    let inspected = inspect(ModelLocation::Hub(model, &on_retry), &[]).await;
    view.finish();
    inspected.map_err(|mut refusal| {
        if refusal.reason == GeometryErrorKind::Unavailable && refusal.message.contains(UNREACHABLE_MARKER) {
            refusal.message.push_str(OFFLINE_HINT);
        }
        let has_token = std::env::var_os(HUB_TOKEN_ENV).is_some_and(|token| !token.is_empty());
        if refusal.reason == GeometryErrorKind::Unreadable {
            refusal.message.push_str(&match (has_token, model.sends_token) {
                (false, _) => {
                    format!("; a private or gated model needs a token in the variable {HUB_TOKEN_ENV}")
                }
                (true, false) => {
                    format!(
                        "; {HUB_TOKEN_ENV} is not sent to a hub that a URL names: name this hub with --endpoint"
                    )
                }
                (true, true) => String::new(),
            });
        }
        inspect_error(&model.to_string(), refusal)
    })
}

fn inspect_error(name: &str, refusal: GeometryError) -> anyhow::Error {
    let words = format!("{name}: {}", refusal.message);
    match refusal.reason {
        GeometryErrorKind::Unavailable => anyhow::anyhow!(words),
        GeometryErrorKind::Unreadable | GeometryErrorKind::Unsupported => Misconfigured(words).into(),
    }
}

/// Downloads the missing files of `model` into the folder that `held` locks.
///
/// # Errors
/// The message with which `sluice-sidecar fetch` failed.
pub async fn download(model: &HubModel, held: &ModelGuard) -> anyhow::Result<()> {
    let sidecar = sibling_binaries::find("sluice-sidecar")?;
    let mut command = Command::new(&sidecar);
    command.arg("fetch");
    add_hub(&mut command, model);
    command.arg("--to").arg(held.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::set_warn_log_level(&mut command);
    child::kill_on_parent_exit(&mut command);
    let mut running = command.spawn().with_context(|| sidecar.display().to_string())?;
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        bail!("a child without the pipes that were asked for")
    };
    let view = DownloadProgress::new(&model.to_string());
    let reports = async {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            // Other lines are not shown.
            match serde_json::from_str::<DownloadReport>(&line) {
                Ok(DownloadReport::Progress(progress)) => view.update(progress),
                Ok(DownloadReport::Retry(retry)) => view.on_retry(&retry),
                Err(_) => {}
            }
        }
    };
    let ((), words) = tokio::join!(reports, child::forward_log(stderr, |line| view.print(line)));
    let status = running.wait().await?;
    view.finish();
    if status.success() {
        eprint_note(format_args!("{model}: downloaded to {}", held.folder().display()));
        return Ok(());
    }
    let words = words.unwrap_or_else(|| format!("the download ended with {status}"));
    let words = format!("{model}: {words}");
    match status.code() {
        Some(code) if code == i32::from(EX_CONFIG) => Err(Misconfigured(words).into()),
        _ => {
            bail!("{words}; the files downloaded so far are kept: run the command again to download the rest")
        }
    }
}

/// Style of the bar while data arrives, and while a retry is pending.
const BAR_TEMPLATE: &str =
    "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
const RETRY_TEMPLATE: &str = "{prefix}: {wide_msg}";

/// Progress output of a hub: a line of a terminal that is rewritten, else a line at intervals.
struct DownloadProgress {
    name: String,
    bar: Option<ProgressBar>,
    last_printed: Cell<Option<Instant>>,
    /// The byte count at the last failure, until it grows.
    bytes_at_failure: Cell<Option<u64>>,
    present_bytes: Cell<u64>,
}

impl DownloadProgress {
    fn new(name: &str) -> DownloadProgress {
        let bar = || ProgressBar::new(0).with_style(style(BAR_TEMPLATE)).with_prefix(name.to_owned());
        DownloadProgress {
            name: name.to_owned(),
            bar: std::io::stderr().is_terminal().then(bar),
            last_printed: Cell::new(None),
            bytes_at_failure: Cell::new(None),
            present_bytes: Cell::new(0),
        }
    }

    fn update(&self, progress: Progress) {
        let Progress { present_bytes, total_bytes } = progress;
        self.present_bytes.set(present_bytes);
        let Some(bar) = &self.bar else {
            let due = self.last_printed.get().is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL);
            if due || present_bytes == total_bytes {
                self.last_printed.set(Some(Instant::now()));
                eprint_note(format_args!(
                    "{}: {} of {}",
                    self.name,
                    bytes(present_bytes),
                    bytes(total_bytes)
                ));
            }
            return;
        };
        if let Some(before) = self.bytes_at_failure.get() {
            if present_bytes == before {
                return;
            }
            self.bytes_at_failure.set(None);
            bar.set_style(style(BAR_TEMPLATE));
        }
        bar.set_length(total_bytes);
        bar.set_position(present_bytes);
        if self.last_printed.replace(Some(Instant::now())).is_none() {
            // The bar takes note of the position before it measures: bytes of an earlier start are no speed of this
            // one.
            bar.tick();
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    /// Shows a failure that is retried.
    fn on_retry(&self, retry: &Retry) {
        let wait = Duration::from_millis(retry.retry_in_ms);
        let words = format!("trying again in {wait:?}: {}", retry.problem);
        match &self.bar {
            Some(bar) => {
                self.bytes_at_failure.set(Some(self.present_bytes.get()));
                bar.set_style(style(RETRY_TEMPLATE));
                bar.set_message(words);
            }
            None => eprint_note(format_args!("{}: {words}", self.name)),
        }
    }

    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprint_note(line)),
            None => eprint_note(line),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}

impl Drop for DownloadProgress {
    /// Removes the bar of an interrupted download.
    fn drop(&mut self) {
        self.finish();
    }
}

//! Models of a hub: inspected before the weights are downloaded, and downloaded with progress.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sluice_types::tenant::WeightType;
use sluice_wire::fetched::{Progress, Report, Retry};
use sluice_wire::geometry::{Geometry, Obstacle, Refusal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::inspect::{Place, TOKEN, add_hub, inspect};
use crate::models::cache::HeldModel;
use crate::models::hub_model::HubModel;
use crate::up::speak::note;
use crate::{EX_CONFIG, Misconfigured, child, siblings};
use sluice_page::words::figures::bytes;

/// Time between two lines about a download whose bar is not on a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Words of the sidecar about a hub to which there is no connection.
const UNREACHABLE: &str = " cannot be reached: ";
/// What helps there.
const OFFLINE: &str = "; a folder with a model needs no network: sluice run FOLDER";

/// Sizes of the model in `folder`.
///
/// # Errors
/// It is no model that the engine runs; the words of `sluice-sidecar inspect`, behind the model's name.
pub async fn sizes_in_folder(name: &str, folder: &Path) -> anyhow::Result<Geometry> {
    inspect(Place::Folder(folder), WeightType::Auto).await.map_err(|refusal| refused(name, refusal))
}

/// Sizes of a model of a hub, of which only the configuration and the headers of the weights are read.
///
/// # Errors
/// As [`sizes_in_folder`], and where the hub cannot be reached.
pub async fn sizes_on_hub(model: &HubModel) -> anyhow::Result<Geometry> {
    note(format_args!("{model}: reading its configuration at {}", model.endpoint));
    let view = View::new(&model.to_string());
    let on_retry = |retry: &Retry| view.retries(retry);
    let inspected = inspect(Place::Hub(model, &on_retry), WeightType::Auto).await;
    view.end();
    inspected.map_err(|mut refusal| {
        if refusal.reason == Obstacle::Unavailable && refusal.message.contains(UNREACHABLE) {
            refusal.message.push_str(OFFLINE);
        }
        let has_token = std::env::var_os(TOKEN).is_some_and(|token| !token.is_empty());
        if refusal.reason == Obstacle::Unreadable {
            refusal.message.push_str(&match (has_token, model.takes_token) {
                (false, _) => format!("; a private or gated model needs a token in the variable {TOKEN}"),
                (true, false) => {
                    format!("; {TOKEN} goes to no hub that a URL names: name this one with --endpoint")
                }
                (true, true) => String::new(),
            });
        }
        refused(&model.to_string(), refusal)
    })
}

fn refused(name: &str, refusal: Refusal) -> anyhow::Error {
    let words = format!("{name}: {}", refusal.message);
    match refusal.reason {
        Obstacle::Unavailable => anyhow::anyhow!(words),
        Obstacle::Unreadable | Obstacle::Unsupported => Misconfigured(words).into(),
    }
}

/// Downloads what is missing of `model` into the folder that `held` holds.
///
/// # Errors
/// The words with which `sluice-sidecar fetch` failed.
pub async fn download(model: &HubModel, held: &HeldModel) -> anyhow::Result<()> {
    let sidecar = siblings::find("sluice-sidecar")?;
    let mut command = Command::new(&sidecar);
    command.arg("fetch");
    add_hub(&mut command, model);
    command.arg("--to").arg(held.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::quieten(&mut command);
    child::end_with_parent(&mut command);
    let mut running = command.spawn().with_context(|| sidecar.display().to_string())?;
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        bail!("a child without the pipes that were asked for")
    };
    let view = View::new(&model.to_string());
    let reports = async {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            // A line of another kind is not shown.
            match serde_json::from_str::<Report>(&line) {
                Ok(Report::Progress(progress)) => view.show(progress),
                Ok(Report::Retry(retry)) => view.retries(&retry),
                Err(_) => {}
            }
        }
    };
    let ((), words) = tokio::join!(reports, child::forward(stderr, |line| view.print(line)));
    let status = running.wait().await?;
    view.end();
    if status.success() {
        note(format_args!("{model}: downloaded to {}", held.folder().display()));
        return Ok(());
    }
    let words = words.unwrap_or_else(|| format!("the download ended with {status}"));
    let words = format!("{model}: {words}");
    match status.code() {
        Some(code) if code == i32::from(EX_CONFIG) => Err(Misconfigured(words).into()),
        _ => bail!("{words}; what was downloaded is kept: run the command again to download the rest"),
    }
}

/// Style of a bar while bytes come, and while a failure is waited out.
const COMES: &str = "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
const WAITS: &str = "{prefix}: {wide_msg}";

/// What the user sees of a hub: a line of a terminal that is rewritten, else a line now and then.
struct View {
    name: String,
    bar: Option<ProgressBar>,
    last: Cell<Option<Instant>>,
    /// The bytes at the last failure, until more have come.
    waits: Cell<Option<u64>>,
    present_bytes: Cell<u64>,
}

impl View {
    fn new(name: &str) -> View {
        let bar = || ProgressBar::new(0).with_style(style(COMES)).with_prefix(name.to_owned());
        View {
            name: name.to_owned(),
            bar: std::io::stderr().is_terminal().then(bar),
            last: Cell::new(None),
            waits: Cell::new(None),
            present_bytes: Cell::new(0),
        }
    }

    fn show(&self, progress: Progress) {
        let Progress { present_bytes, total_bytes } = progress;
        self.present_bytes.set(present_bytes);
        let Some(bar) = &self.bar else {
            let due = self.last.get().is_none_or(|last| last.elapsed() >= LINE_EVERY);
            if due || present_bytes == total_bytes {
                self.last.set(Some(Instant::now()));
                note(format_args!("{}: {} of {}", self.name, bytes(present_bytes), bytes(total_bytes)));
            }
            return;
        };
        if let Some(before) = self.waits.get() {
            if present_bytes == before {
                return;
            }
            self.waits.set(None);
            bar.set_style(style(COMES));
        }
        bar.set_length(total_bytes);
        bar.set_position(present_bytes);
        if self.last.replace(Some(Instant::now())).is_none() {
            // The bar takes note of the position before it measures: bytes of an earlier start are no speed of this one.
            bar.tick();
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    /// Shows a failure that is tried again.
    fn retries(&self, retry: &Retry) {
        let wait = Duration::from_millis(retry.retry_in_ms);
        let words = format!("trying again in {wait:?}: {}", retry.problem);
        match &self.bar {
            Some(bar) => {
                self.waits.set(Some(self.present_bytes.get()));
                bar.set_style(style(WAITS));
                bar.set_message(words);
            }
            None => note(format_args!("{}: {words}", self.name)),
        }
    }

    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note(line)),
            None => note(line),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}

impl Drop for View {
    /// An interrupted download leaves no half of a bar.
    fn drop(&mut self) {
        self.end();
    }
}

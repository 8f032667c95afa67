//! Models of a hub: inspected before the weights are downloaded, and downloaded with progress.

use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sluice_types::tenant::WeightType;
use sluice_wire::fetched::Progress;
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
    inspect(Place::Hub(model), WeightType::Auto).await.map_err(|mut refusal| {
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

/// Downloads what is missing of `model`, which has `total_bytes`, into the folder that `held` holds.
///
/// # Errors
/// The words with which `sluice-sidecar fetch` failed.
pub async fn download(model: &HubModel, held: &HeldModel, total_bytes: u64) -> anyhow::Result<()> {
    let sidecar = siblings::find("sluice-sidecar")?;
    let mut command = Command::new(&sidecar);
    command.args(["fetch", "--progress"]);
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
    let view = View::new(model, total_bytes);
    let reports = async {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            // A line of another kind is not shown.
            serde_json::from_str::<Progress>(&line).into_iter().for_each(|progress| view.show(progress));
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

/// What the user sees of a download: a bar on a terminal, else a line now and then.
struct View {
    name: String,
    bar: Option<ProgressBar>,
    last: std::cell::Cell<Option<Instant>>,
}

impl View {
    fn new(model: &HubModel, total_bytes: u64) -> View {
        let style = "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(style).expect("the template is well-formed");
        let bar = || ProgressBar::new(total_bytes).with_style(style).with_prefix(model.to_string());
        let bar = std::io::stderr().is_terminal().then(bar);
        View { name: model.to_string(), bar, last: std::cell::Cell::new(None) }
    }

    fn show(&self, progress: Progress) {
        let Progress { present_bytes, total_bytes } = progress;
        let Some(bar) = &self.bar else {
            let due = self.last.get().is_none_or(|last| last.elapsed() >= LINE_EVERY);
            if due || present_bytes == total_bytes {
                self.last.set(Some(Instant::now()));
                note(format_args!("{}: {} of {}", self.name, bytes(present_bytes), bytes(total_bytes)));
            }
            return;
        };
        bar.set_length(total_bytes);
        bar.set_position(present_bytes);
        if self.last.replace(Some(Instant::now())).is_none() {
            // The bar takes note of the position before it measures: bytes of an earlier start are no speed of this one.
            bar.tick();
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(200));
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

impl Drop for View {
    /// An interrupted download leaves no half of a bar.
    fn drop(&mut self) {
        self.end();
    }
}

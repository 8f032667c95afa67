//! `cargo xtask demo`: one burst, two policies, one table.
//!
//! Everything goes through the product's own binaries: a generated model, `sluice up`, `sluice bench`, `sluice top`.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8Path;
use serde_json::Value;

use crate::process;
use crate::workspace::Workspace;

/// Options of `cargo xtask demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// A model folder in Hugging Face layout instead of a generated one.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Device memory; about 24 MiB more than weights and activations make KV short for the burst.
    #[arg(long, default_value = "104Mi")]
    memory: String,
    /// Bandwidth of the link to the device, bytes per second.
    #[arg(long, default_value_t = 3_400_000_000)]
    link: u64,
    /// Leave the tenant serving under Oneiros at the end.
    #[arg(long)]
    keep: bool,
}

/// Requests of the burst, their lengths, and how many are open at once.
const BURST: &[&str] = &["-n", "36", "--lengths", "64:160", "--concurrency", "12", "--vocab", "256"];
const PORT: &str = "8000";

/// Runs the demo.
pub fn run(workspace: &Workspace, args: &DemoArgs) -> Result<bool> {
    let root = &workspace.root;
    println!("building the release binaries");
    let packages =
        ["build", "--release", "--locked", "-p", "sluice-cli", "-p", "sluice-agent", "-p", "sluice-kernels"];
    ensure!(
        process::passes(process::cargo(root, &[&packages[..], &["--bins"]].concat()))?,
        "the build failed"
    );
    let folder = workspace.target.join("demo");
    std::fs::create_dir_all(&folder).with_context(|| folder.to_string())?;
    let demo = Demo { bins: workspace.target.join("release").into(), folder: folder.clone().into(), args };
    let model = demo.model(&folder)?;
    let recompute = demo.measure(&model, "Recompute")?;
    let oneiros = demo.measure(&model, "Oneiros")?;
    print_table(&recompute, &oneiros);
    if args.keep {
        demo.keep(&model)?
    }
    Ok(true)
}

struct Demo<'a> {
    bins: PathBuf,
    folder: PathBuf,
    args: &'a DemoArgs,
}

/// What one policy did with the burst.
struct Run {
    report: Value,
    state: Value,
    outputs: Vec<u8>,
    most_remapped: u64,
}

/// A `sluice up` that ends with this value.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        // `sluice up` drains and cleans up on SIGTERM; a process that has ended already needs neither.
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

impl Demo<'_> {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bins.join(name));
        command.env("SLUICE_RUNTIME_DIR", self.folder.join("run")).env("SLUICE_LOG", "warn");
        command
    }

    /// The model to serve: 24 layers of 6.5 MB, made once.
    fn model(&self, folder: &Utf8Path) -> Result<PathBuf> {
        if let Some(model) = &self.args.model {
            return std::path::absolute(model).with_context(|| model.display().to_string());
        }
        let model = folder.join("model");
        if !model.join("config.json").exists() {
            println!("making a model of 24 layers with random weights");
            let shape = [
                "--layers",
                "24",
                "--hidden",
                "384",
                "--heads",
                "6",
                "--kv-heads",
                "3",
                "--intermediate",
                "1024",
            ];
            let mut make = self.command("sluice-model-gen");
            make.args(["--out", model.as_str(), "--vocab", "512", "--max-positions", "512"]).args(shape);
            ensure!(make.status().context("sluice-model-gen")?.success(), "the model was not made");
        }
        Ok(model.into())
    }

    fn yaml(&self, model: &Path, policy: &str) -> Result<PathBuf> {
        let DemoArgs { memory, link, .. } = self.args;
        let file = self.folder.join("demo.yaml");
        let text = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: laptop}}\nspec:\n  deviceClassName: host.sluice.dev\n  \
             device: {{host: {{memory: {memory}, chunkBytes: 64Ki, linkBytesPerSecond: \"{link}\"}}}}\n  \
             gpus: [{{name: gpu}}]\n  hostMemoryPerGPU: 4Gi\n  policy: {policy}\n---\napiVersion: sluice.dev/v1alpha1\n\
             kind: ModelTenant\nmetadata: {{name: demo}}\nspec:\n  poolRef: {{name: laptop}}\n  \
             model: {{source: {{type: File, file: {{path: {:?}}}}}, maxModelLen: 512}}\n",
            model.display().to_string()
        );
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Starts the tenant and waits until it serves.
    fn up(&self, model: &Path, policy: &str) -> Result<Up> {
        let file = self.yaml(model, policy)?;
        let mut up = self.command("sluice");
        up.arg("up").arg("-f").arg(file).args(["--port", PORT]).stdout(Stdio::piped());
        let mut child = up.spawn().context("sluice up")?;
        let stdout = child.stdout.take().context("sluice up has no stdout")?;
        let up = Up(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if !line.starts_with("ready ") {
            bail!("the tenant does not serve; the sidecar's words are above");
        }
        Ok(up)
    }

    fn state(&self) -> Option<Value> {
        let output = self.command("sluice").args(["top", "--once", "--json"]).output().ok()?;
        serde_json::from_slice::<Value>(&output.stdout).ok()?.get(0).cloned()
    }

    /// One policy, one burst, shown as it goes.
    fn measure(&self, model: &Path, policy: &str) -> Result<Run> {
        println!("\n{policy}: {}", BURST.join(" "));
        let up = self.up(model, policy)?;
        let outputs = self.folder.join("outputs.json");
        let mut bench = self.command("sluice");
        bench
            .args(["bench", "--json", "--url", &format!("http://127.0.0.1:{PORT}"), "--outputs"])
            .arg(&outputs);
        let mut bench =
            bench.args(BURST).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("sluice bench")?;
        let mut most_remapped = 0;
        while bench.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(500));
            if let Some(state) = self.state() {
                most_remapped = most_remapped.max(state["remap"]["alpha"].as_u64().unwrap_or(0));
                show(&state);
            }
        }
        println!();
        let report = serde_json::from_slice(&bench.wait_with_output()?.stdout).context("the burst failed")?;
        let state = self.state().context("the tenant's state cannot be read")?;
        drop(up);
        let outputs = std::fs::read(&outputs).with_context(|| outputs.display().to_string())?;
        Ok(Run { report, state, outputs, most_remapped })
    }

    fn keep(&self, model: &Path) -> Result<()> {
        let mut up = self.up(model, "Oneiros")?;
        println!("\nserving under Oneiros until Ctrl-C; try:");
        println!("  curl -N localhost:{PORT}/v1/completions -H 'content-type: application/json' \\");
        println!("    -d '{{\"prompt\": \"Once upon a time\", \"max_tokens\": 40, \"stream\": true}}'");
        up.0.wait().context("sluice up")?;
        Ok(())
    }
}

/// One line of where memory is: rewritten on a terminal, appended elsewhere.
fn show(state: &Value) {
    let owners = &state["memory"]["owners"];
    let mib = |name: &str| owners[name].as_u64().unwrap_or(0) >> 20;
    let weights = mib("weights_global_bytes") + mib("weights_layers_bytes");
    let line = format!(
        "  weights {weights:>4} MiB  slots {:>3} MiB  KV {:>4} MiB ({:>3} % used)  remapped {:>2} layers  running {:>2}  waiting {:>2}  preempted {:>3}",
        mib("slots_bytes"),
        mib("kv_bytes"),
        state["kv"]["utilisation_permille"].as_u64().unwrap_or(0) / 10,
        state["remap"]["alpha"],
        state["queue"]["running"],
        state["queue"]["waiting"],
        state["figures"]["preemptions_total"]
    );
    if std::io::stdout().is_terminal() {
        print!("\r{line}")
    } else {
        println!("{line}")
    }
    // A line that is shown late is no harm.
    let _ = std::io::stdout().flush();
}

fn print_table(recompute: &Run, oneiros: &Run) {
    let figure = |run: &Run, path: &str| run.report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let total = |run: &Run, name: &str| run.state["figures"][name].as_u64().unwrap_or(0) as f64;
    let engine = |run: &Run| run.state["figures"]["engine_tbt"]["p99_ns"].as_f64().unwrap_or(f64::NAN) / 1e6;
    println!("\n{:<34}{:>12}{:>12}", "", "Recompute", "Oneiros");
    let row = |name: &str, value: &dyn Fn(&Run) -> f64| {
        println!("{name:<34}{:>12.1}{:>12.1}", value(recompute), value(oneiros));
    };
    row("throughput, output tokens/s", &|r| figure(r, "/output_tokens_per_s"));
    row("P99 TBT as delivered, ms", &|r| figure(r, "/tbt_ms/p99"));
    row("P99 TBT of the engine, ms", &engine);
    row("P99 TTFT, ms", &|r| figure(r, "/ttft_ms/p99"));
    row("layers remapped at most", &|r| r.most_remapped as f64);
    row("requests preempted", &|r| total(r, "preemptions_total"));
    row("tokens recomputed", &|r| total(r, "recomputed_tokens_total"));
    let same = if recompute.outputs == oneiros.outputs { "yes" } else { "NO" };
    println!("{:<34}{:>24}", "tokens identical", same);
}

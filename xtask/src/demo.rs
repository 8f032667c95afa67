//! `cargo xtask demo`: one burst, two policies, one table.
//!
//! Everything goes through the product's own binaries: a generated model, `sluice up`, `sluice bench`, `sluice top`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_types::quantity::Quantity;

use crate::contest::{self, Calibration, LOAD, Load, Outcome};
use crate::run::Stop;
use crate::tenant::{self, Device, Setup, Tenant, World};
use crate::workspace::Workspace;

/// Where `--keep` serves.
const PORT: u16 = 8000;
/// Longest context there, tokens, where the model allows it.
const CHAT_CONTEXT: u32 = 2048;

/// What `--quick` sends: still more at a time than there is KV for.
const QUICK: Load = Load { requests: 8, concurrency: 4, prompt: 32, output: 24 };

/// Options of `cargo xtask demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// A model folder in Hugging Face layout instead of a generated one.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Device memory, such as 112Mi. Default: weights, activations and KV for hardly more than one request.
    #[arg(long, value_parser = bytes)]
    memory: Option<u64>,
    /// How much longer a layer's copy takes than its compute; sets the link's bandwidth. About 7.5 on a
    /// GH200, about 70 on an H200 behind PCIe 5, where Oneiros must decline.
    #[arg(long, value_name = "R", default_value_t = 7.5, value_parser = positive, conflicts_with = "link")]
    ratio: f64,
    /// Bandwidth of the link to the device, bytes per second, instead of one that follows from --ratio.
    #[arg(long, value_name = "BYTES")]
    link: Option<u64>,
    /// Leave the tenant serving under Oneiros at the end.
    #[arg(long)]
    keep: bool,
    /// Fewer and shorter requests: shows that everything works, and no more.
    #[arg(long)]
    quick: bool,
    /// Take the binaries in this folder instead of building them.
    #[arg(long, value_name = "DIR")]
    bins: Option<PathBuf>,
}

impl DemoArgs {
    fn load(&self) -> Load {
        if self.quick { QUICK } else { LOAD }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<Quantity>().map(|quantity| quantity.bytes()).map_err(|error| error.to_string())
}

/// A ratio that means something.
pub fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0).ok_or("a number above 0".into())
}

/// Runs the demo; `false` if one token differed.
pub fn run(workspace: &Workspace, args: &DemoArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    if args.keep {
        let free = std::net::TcpListener::bind(("127.0.0.1", PORT));
        free.with_context(|| format!("--keep serves on port {PORT}"))?;
    }
    let (world, load) = (world(workspace, args, &stop)?, args.load());
    eprintln!("measuring the model with ample memory");
    let calibration = contest::calibrate(&world, load)?;
    let device = device(args, &calibration, load.context());
    print_setting(&calibration, device, load);
    let measure = |policy: &str| {
        println!("\n{policy}");
        let mut shown = String::new();
        let outcome = contest::run(&world, policy, device, load, |state| show(state, &mut shown))?;
        println!();
        anyhow::Ok(outcome)
    };
    let (recompute, oneiros) = (measure("Recompute")?, measure("Oneiros")?);
    print_table(&recompute, &oneiros);
    println!("\n{}", reading(&recompute, &oneiros));
    if args.keep {
        keep(&world, args, &calibration)?;
    }
    Ok(recompute.outputs == oneiros.outputs)
}

fn world(workspace: &Workspace, args: &DemoArgs, stop: &Stop) -> Result<World> {
    let (model, shape) = (args.model.as_deref(), contest::MODEL);
    if let Some(bins) = &args.bins {
        return World::with_binaries(bins, stop, model, shape);
    }
    tenant::build(workspace, stop)?;
    World::new(workspace, stop, model, shape)
}

fn device(args: &DemoArgs, calibration: &Calibration, context: u32) -> Device {
    let short =
        calibration.short_device(context, args.link.unwrap_or_else(|| calibration.link_for(args.ratio)));
    Device { memory_bytes: args.memory.unwrap_or(short.memory_bytes), ..short }
}

fn print_setting(calibration: &Calibration, device: Device, load: Load) {
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let kv = device.memory_bytes.saturating_sub(calibration.fixed_bytes);
    println!(
        "{} requests, {} at a time, {} tokens in and {} out; a request's KV grows to {:.1} MiB",
        load.requests,
        load.concurrency,
        load.prompt,
        load.output,
        mib(u64::from(load.prompt + load.output) * calibration.token_bytes)
    );
    let link = device.link_bytes_per_s.unwrap_or(u64::MAX) as f64;
    println!(
        "device: {:.0} MiB, of which {:.1} MiB for KV; link {:.2} GB/s: a layer of {:.1} MiB computes in {:.0} us and \
         is copied in {:.0} us",
        mib(device.memory_bytes),
        mib(kv),
        link / 1e9,
        mib(calibration.layer_bytes),
        calibration.compute_ns as f64 / 1e3,
        calibration.layer_bytes as f64 / link * 1e6
    );
}

/// Serves until a signal comes, with a context for a conversation and KV for hardly more than one.
fn keep(world: &World, args: &DemoArgs, calibration: &Calibration) -> Result<()> {
    let context = contest::positions(world)?.min(CHAT_CONTEXT);
    let setup = Setup { context, ..args.load().setup("Oneiros", device(args, calibration, context)) };
    let tenant = Tenant::start_at(world, "keep", &setup, PORT)?;
    println!("\nserving under Oneiros until Ctrl-C; try:");
    println!("  curl -N localhost:{PORT}/v1/completions -H 'content-type: application/json' \\");
    println!("    -d '{{\"prompt\": \"Once upon a time\", \"max_tokens\": 40, \"stream\": true}}'");
    println!("  sluice top --runtime-dir {}", tenant.runtime().display());
    println!("  sluice bench --concurrency 4 --lengths 32:128");
    while !world.stop.requested() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// One line of where memory is: rewritten on a terminal, elsewhere appended when it has changed.
fn show(state: &Value, shown: &mut String) {
    let owners = &state["memory"]["owners"];
    let mib = |name: &str| owners[name].as_u64().unwrap_or(0) as f64 / (1 << 20) as f64;
    let line = format!(
        "  weights {:>5.1} MiB  slots {:>4.1}  KV {:>5.1} ({:>3} % used)  remapped {:>2} layers  running {}  waiting {}  \
         preempted {:>2}",
        mib("weights_global_bytes") + mib("weights_layers_bytes"),
        mib("slots_bytes"),
        mib("kv_bytes"),
        state["kv"]["utilisation_permille"].as_u64().unwrap_or(0) / 10,
        state["remap"]["alpha"],
        state["queue"]["running"],
        state["queue"]["waiting"],
        state["figures"]["preemptions_total"]
    );
    if std::io::stdout().is_terminal() {
        print!("\r{line}");
    } else if line != *shown {
        println!("{line}");
    }
    *shown = line;
    // A line that is shown late is no harm.
    let _ = std::io::stdout().flush();
}

fn print_table(recompute: &Outcome, oneiros: &Outcome) {
    println!("\n{:<34}{:>12}{:>12}", "", "Recompute", "Oneiros");
    let row = |name: &str, digits: usize, value: &dyn Fn(&Outcome) -> f64| {
        println!("{name:<34}{:>12.digits$}{:>12.digits$}", value(recompute), value(oneiros));
    };
    row("throughput, output tokens/s", 1, &|o| o.throughput);
    row("P99 TTFT, ms", 0, &|o| o.ttft_p99);
    row("P99 TBT as delivered, ms", 1, &|o| o.delivered_tbt_p99);
    row("P99 TBT of the engine, ms", 1, &|o| o.engine_tbt_p99);
    row("requests in the batch, most", 0, &|o| o.running as f64);
    row("layers remapped, most", 0, &|o| o.remapped as f64);
    row("remappings", 0, &|o| o.remappings as f64);
    row("remappings declined", 0, &|o| o.declined as f64);
    row("MiB copied to the device", 0, &|o| (o.copied_bytes >> 20) as f64);
    row("requests preempted", 0, &|o| o.preempted as f64);
    row("tokens recomputed", 0, &|o| o.recomputed as f64);
    row("r = T_T / T_c as measured", 1, &|o| o.ratio.unwrap_or(f64::NAN));
    let same = if recompute.outputs == oneiros.outputs { "yes" } else { "NO" };
    println!("{:<34}{:>24}", "tokens identical", same);
}

/// The table in a sentence.
fn reading(recompute: &Outcome, oneiros: &Outcome) -> String {
    if oneiros.remappings == 0 {
        return format!(
            "Oneiros lent no layer and declined to {} times, because copies would not have hidden behind compute on this \
             link: it did what Recompute does.",
            oneiros.declined
        );
    }
    let gain = oneiros.throughput / recompute.throughput;
    let verdict = if gain > 1.0 { "won" } else { "did not win" };
    format!(
        "Oneiros {verdict}: it lent the memory of {} layers to KV, so {} requests ran at once instead of {}, with {gain:.2} \
         times the throughput and the first token (P99) after {:.1} s instead of {:.1} s.",
        oneiros.remapped,
        oneiros.running,
        recompute.running,
        oneiros.ttft_p99 / 1e3,
        recompute.ttft_p99 / 1e3
    )
}

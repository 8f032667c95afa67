//! `cargo xtask demo`: three tenants of one GPU, bursts that go round, three rules, one table.
//!
//! Everything goes through the product's own binaries: a generated model, `sluice up`, `sluice bench`, `sluice top`.

mod view;

use std::cmp::Ordering;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_types::quantity::Quantity;

use crate::contest;
use crate::neighbours::{self, FIXED, LRU, MRU, Outcome, Rule, Setting, Shape, Size, TENANTS};
use crate::run::Stop;
use crate::tenant::{Device, World};
use crate::workspace::Workspace;
use view::View;

/// Where `--keep` serves: the first tenant; the others on the ports above.
const PORT: u16 = 8000;
/// Longest context there, tokens, where the model allows it.
const CHAT_CONTEXT: u32 = 1024;

/// Options of `cargo xtask demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// A model folder in Hugging Face layout for all three tenants instead of a generated one.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Memory of the GPU, such as 256Mi. Default: weights and activations of all three, and for each KV for two requests.
    #[arg(long, value_parser = bytes)]
    memory: Option<u64>,
    /// How much longer a layer's copy takes than its compute; sets the link's bandwidth. About 7.5 on a
    /// GH200, about 70 on an H200 behind PCIe 5.
    #[arg(long, value_name = "R", default_value_t = 7.5, value_parser = positive, conflicts_with = "link")]
    ratio: f64,
    /// Bandwidth of the link to the device, bytes per second, instead of one that follows from --ratio.
    #[arg(long, value_name = "BYTES")]
    link: Option<u64>,
    /// Leave the tenants serving under Oneiros at the end.
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
    fn size(&self) -> Size {
        if self.quick { Size::QUICK } else { Size::SHOW }
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
        ports_are_free()?;
    }
    let (bins, model, size) = (args.bins.as_deref(), args.model.as_deref(), args.size());
    let world = World::prepare(workspace, &stop, bins, model, neighbours::MODEL)?;
    eprintln!("measuring the model with ample memory");
    let setting = setting(&world, args, size)?;
    print_setting(&setting, size);
    let measure = |rule: Rule| {
        println!("\n{}", rule.name);
        let mut view = View::new(setting.device.memory_bytes);
        let outcome = neighbours::run(&world, &setting, rule, (Shape::Alternating, size), |s| view.show(s))?;
        println!();
        anyhow::Ok((rule, outcome))
    };
    let outcomes = [measure(FIXED)?, measure(MRU)?, measure(LRU)?];
    print_table(&outcomes);
    println!("\n{}", reading(&outcomes.each_ref().map(|(_, outcome)| outcome)));
    if args.keep {
        keep(&world, &setting)?;
    }
    Ok(identical(&outcomes))
}

fn ports_are_free() -> Result<()> {
    for port in PORT..PORT + TENANTS.len() as u16 {
        let free = std::net::TcpListener::bind(("127.0.0.1", port));
        free.with_context(|| format!("--keep serves on port {port}"))?;
    }
    Ok(())
}

fn setting(world: &World, args: &DemoArgs, size: Size) -> Result<Setting> {
    let setting = Setting::measure(world, size, args.ratio)?;
    let Device { memory_bytes, chunk_bytes, link_bytes_per_s } = setting.device;
    let device = Device {
        memory_bytes: args.memory.unwrap_or(memory_bytes),
        chunk_bytes,
        link_bytes_per_s: args.link.or(link_bytes_per_s),
    };
    Ok(Setting { device, ..setting })
}

fn print_setting(setting: &Setting, size: Size) {
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let Setting { device, burst, calibration, .. } = setting;
    let kv = (device.memory_bytes / TENANTS.len() as u64).saturating_sub(calibration.fixed_bytes);
    println!(
        "{} requests in bursts of {} that go round {}: {} tokens in and {} out; a burst's KV grows to {:.0} MiB",
        size.requests(),
        burst.requests,
        TENANTS.join(", "),
        burst.prompt,
        burst.output,
        mib(u64::from(burst.requests * (burst.prompt + burst.output)) * calibration.token_bytes)
    );
    let link = device.link_bytes_per_s.unwrap_or(u64::MAX) as f64;
    println!(
        "GPU: {:.0} MiB, a third for each: {:.0} MiB of weights and activations, {:.1} MiB of KV; link {:.2} GB/s: a \
         layer of {:.1} MiB computes in {:.0} us and is copied in {:.0} us",
        mib(device.memory_bytes),
        mib(calibration.fixed_bytes),
        mib(kv),
        link / 1e9,
        mib(calibration.layer_bytes),
        calibration.compute_ns as f64 / 1e3,
        calibration.layer_bytes as f64 / link * 1e6
    );
    println!(
        "objectives: first token within {} ms, then one each {} ms; a token may be late by as much again",
        setting.ttft_ms, setting.pace_ms
    );
}

/// Serves until a signal comes, with a context for a conversation.
fn keep(world: &World, setting: &Setting) -> Result<()> {
    let context = contest::positions(world)?.min(CHAT_CONTEXT);
    let up = setting.for_context(context).start(world, "keep", MRU, PORT)?;
    println!("\nserving under Oneiros until Ctrl-C:");
    (0..TENANTS.len()).for_each(|tenant| println!("  {:<8} {}", TENANTS[tenant], up.url(tenant)));
    println!("try:");
    println!("  sluice top --runtime-dir {}", up.runtime().display());
    println!("  sluice bench --url {} -n 12 --lengths 32:128", up.url(0));
    while !world.stop.requested() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn print_table(outcomes: &[(Rule, Outcome); 3]) {
    print!("\n{:<36}", "");
    outcomes.iter().for_each(|(rule, _)| print!("{:>14}", rule.name));
    println!();
    let row = |name: &str, digits: usize, value: fn(&Outcome) -> f64| {
        print!("{name:<36}");
        outcomes.iter().for_each(|(_, outcome)| print!("{:>14.digits$}", value(outcome)));
        println!();
    };
    row("throughput, output tokens/s", 1, |o| o.throughput);
    row("goodput, output tokens/s", 1, |o| o.goodput);
    row("P99 TTFT, ms", 0, |o| o.ttft_p99);
    row("P99 TBT as delivered, ms", 1, |o| o.tbt_p99);
    row("requests in a tenant's batch, most", 0, |o| o.running as f64);
    row("requests preempted", 0, |o| o.preempted as f64);
    row("tokens recomputed", 0, |o| o.recomputed as f64);
    row("chunks lent, in all", 0, |o| o.chunks_lent as f64);
    row("layers lent, most at a time", 0, |o| o.layers_lent as f64);
    row("MiB copied to the device", 0, |o| (o.copied_bytes >> 20) as f64);
    let same = if identical(outcomes) { "yes" } else { "NO" };
    println!("{:<36}{:>42}", "tokens identical", same);
}

fn identical(outcomes: &[(Rule, Outcome); 3]) -> bool {
    outcomes.iter().all(|(_, outcome)| outcome.outputs == outcomes[0].1.outputs)
}

/// The table in two sentences.
fn reading([fixed, mru, lru]: &[&Outcome; 3]) -> String {
    if mru.chunks_lent == 0 {
        return "Oneiros lent nothing: every burst fitted the memory of its own tenant.".into();
    }
    let verdict = if mru.goodput > fixed.goodput { "won" } else { "did not win" };
    format!(
        "Oneiros {verdict}: idle neighbours lent up to {} layers to a burst, {}, with {:.2} times the throughput and {:.2} times the goodput of fixed partitions, and the first token (P99) \
         after {:.2} s instead of {:.2} s. With the most recently used neighbour asked first the goodput was {:.2} times \
         that with the least recently used one.",
        mru.layers_lent,
        at_once(mru.running, fixed.running),
        mru.throughput / fixed.throughput,
        mru.goodput / fixed.goodput,
        mru.ttft_p99 / 1e3,
        fixed.ttft_p99 / 1e3,
        mru.goodput / lru.goodput,
    )
}

/// What lending did to the most requests that ran at once.
fn at_once(lent: u64, fixed: u64) -> String {
    match lent.cmp(&fixed) {
        Ordering::Greater => format!("so {lent} requests ran at once instead of {fixed}"),
        Ordering::Equal => format!("and {lent} requests ran at once, as many as without"),
        Ordering::Less => format!("and {lent} requests ran at once, fewer than the {fixed} without"),
    }
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn what_lending_did_to_a_batch_is_told_as_it_was() {
        assert_eq!(at_once(6, 2), "so 6 requests ran at once instead of 2");
        assert_eq!(at_once(6, 6), "and 6 requests ran at once, as many as without");
        assert_eq!(at_once(5, 6), "and 5 requests ran at once, fewer than the 6 without");
    }
}

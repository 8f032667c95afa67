//! `cargo run -p sluice-benches -- wake`: the first token of a tenant that had given up all its memory, against what copying its
//! weights behind one prompt allows, and against the bare copy of the same bytes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_common::random::Rng;

use super::machine;
use super::report::{self, Verdict};
use super::statistics::{cell, middle};
use crate::child_process::Stop;
use crate::sharing_bench::MODEL;
use crate::source_tree::SourceTree;
use crate::tenant::{BenchEnv, Tenant, TenantDevice, TenantOptions, post};

/// Copy of a layer against the prompt's time in it: compute hides the copies, both are equal, copies hide compute.
const RATIOS: [f64; 3] = [0.5, 1.0, 2.0];
/// Maximum ratio of the first token's time to the bound.
const LIMIT: f64 = 1.15;
const MIB: u64 = 1 << 20;
/// Memory of the GPU for the generated model: three times the weights, so that all layers stay resident.
const DEVICE_BYTES: u64 = 160 * MIB;
/// Memory of the GPU for another one, times its files: weights of 16 bits become 32 here.
const DEVICE_TIMES: u64 = 4;
/// Characters of a prompt, each a token or a part of one.
const PROMPT: usize = 256;

/// Options of `cargo run -p sluice-benches -- wake`.
#[derive(Clone, Debug, clap::Args)]
pub struct WakeArgs {
    /// Times that the tenant sleeps, for each ratio.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(3..))]
    repetitions: u32,
    /// Take the binaries in this folder instead of building them.
    #[arg(long, value_name = "DIR")]
    bins: Option<PathBuf>,
    /// Also write every sample to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a model needs, from its state while it is awake.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: f64,
    layer_bytes: f64,
    global_bytes: f64,
}

impl Shape {
    /// From the state of a tenant that has copied each of its weights once. Its chunks hold more than the weights:
    /// what was copied is exact.
    fn read(state: &Value) -> Result<Shape> {
        let layers = state["layers"].as_array().map_or(0, Vec::len) as f64;
        ensure!(layers > 0.0, "the state has no layer");
        let global = state.pointer("/memory/owners/weights_global_bytes").and_then(Value::as_f64);
        let global_bytes = global.context("the state has no bytes of weights_global")?;
        Ok(Shape { layers, layer_bytes: (copied_bytes(state)? - global_bytes) / layers, global_bytes })
    }

    fn bytes(&self) -> f64 {
        self.global_bytes + self.layers * self.layer_bytes
    }
}

/// Bytes that a tenant has had copied to its device so far.
fn copied_bytes(state: &Value) -> Result<f64> {
    let copied = state.pointer("/figures/copied_bytes_total").and_then(Value::as_f64);
    copied.context("the state has no copied bytes")
}

/// Milliseconds to the first token at one ratio.
#[derive(Clone, Debug)]
struct Samples {
    /// T_T / T_p as wished.
    ratio: f64,
    link_bytes_per_s: f64,
    awake: Vec<f64>,
    woken: Vec<f64>,
    /// Of those, until all memory was there and mapped: only then copies begin.
    mapped: Vec<f64>,
    /// By all wakes together.
    copied_bytes: f64,
}

impl Samples {
    /// The least time that waking can take: with T_p from the prompt while awake and T_T from the link, all n layers
    /// missing, the global weights first. Milliseconds.
    fn bound(&self, shape: Shape) -> f64 {
        let (prompt, layer) = (self.prompt(shape), self.copy(shape.layer_bytes));
        let behind = (layer + shape.layers * prompt).max(shape.layers * layer + prompt);
        self.copy(shape.global_bytes) + behind
    }

    /// Median of the first token after the sleep, in bounds.
    fn of_bound(&self, shape: Shape) -> f64 {
        middle(&self.woken) / self.bound(shape)
    }

    /// The same from the moment on when all memory was there.
    fn of_bound_once_mapped(&self, shape: Shape) -> f64 {
        let rest = self.woken.iter().zip(&self.mapped).map(|(woken, mapped)| woken - mapped);
        middle(&rest.collect::<Vec<_>>()) / self.bound(shape)
    }

    /// T_T / T_p as it was.
    fn measured(&self, shape: Shape) -> f64 {
        self.copy(shape.layer_bytes) / self.prompt(shape)
    }

    /// T_p, milliseconds.
    fn prompt(&self, shape: Shape) -> f64 {
        middle(&self.awake) / shape.layers
    }

    /// Returns the time of a bare copy of `bytes`, milliseconds.
    fn copy(&self, bytes: f64) -> f64 {
        bytes / self.link_bytes_per_s * 1e3
    }
}

/// Measures; `false` if a median is above the limit.
pub fn run(tree: &SourceTree, args: &WakeArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    let world = BenchEnv::prepare(tree, &stop, args.bins.as_deref(), None, MODEL)?;
    let machine = machine::describe();
    let wakes = Wakes::measure(&world, args.repetitions)?;
    let mut report = machine::report(tree, machine);
    print!("{}", machine::heading(&report));
    wakes.print();
    println!();
    let verdicts = wakes.verdicts();
    let passed = report::print(&verdicts);
    report["ratios"] = wakes.to_json();
    report["verdicts"] = report::to_json(&verdicts);
    report::write(args.json.as_deref(), &report)?;
    Ok(passed)
}

/// What was measured at all ratios.
pub(super) struct Wakes {
    host: Host,
    shape: Shape,
    repetitions: u32,
    ratios: Vec<Samples>,
}

/// What the tenant runs on.
#[derive(Clone, Copy, Debug)]
struct Host {
    memory_bytes: u64,
    /// Of the engine: all cores but one, which stands for a GPU's copy engine.
    threads: usize,
}

impl Host {
    fn of(world: &BenchEnv) -> Result<Host> {
        let mut files_bytes = 0;
        for file in std::fs::read_dir(world.model()).with_context(|| world.model().display().to_string())? {
            files_bytes += file?.metadata()?.len();
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Host {
            memory_bytes: DEVICE_BYTES.max((DEVICE_TIMES * files_bytes).next_multiple_of(MIB)),
            threads: cores.saturating_sub(1).max(1),
        })
    }

    fn setup(&self, link_bytes_per_s: Option<u64>) -> TenantOptions<'static> {
        let device =
            TenantDevice { memory_bytes: self.memory_bytes, chunk_bytes: MIB / 16, link_bytes_per_s };
        TenantOptions {
            policy: "Oneiros",
            device,
            context: 512,
            paced: false,
            threads: Some(self.threads),
            page: false,
        }
    }
}

impl Wakes {
    /// Makes a tenant sleep and wake `repetitions` times at each ratio.
    pub(super) fn measure(world: &BenchEnv, repetitions: u32) -> Result<Wakes> {
        eprintln!("measuring the model while it is awake");
        let host = Host::of(world)?;
        let (shape, prompt_ms) = calibrate(world, host, repetitions)?;
        let mut ratios = Vec::new();
        for ratio in RATIOS {
            let link = shape.layer_bytes / (ratio * prompt_ms / shape.layers / 1e3);
            eprintln!("waking at T_T / T_p = {ratio}: a link of {:.0} MiB/s", link / MIB as f64);
            let tenant = Tenant::start(world, "wake", &host.setup(Some(link as u64)))?;
            ratios.push(measure(&tenant, ratio, link, (&world.stop, repetitions))?);
        }
        Ok(Wakes { host, shape, repetitions, ratios })
    }

    /// The table.
    pub(super) fn print(&self) {
        println!("{}", heading(self.host, self.shape, self.repetitions));
        self.ratios.iter().for_each(|samples| print(samples, self.shape));
    }

    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        self.ratios.iter().flat_map(|samples| verdicts(samples, self.shape)).collect()
    }

    /// For the file.
    pub(super) fn to_json(&self) -> Value {
        self.ratios.iter().map(|samples| reported(samples, self.shape)).collect()
    }
}

fn heading(host: Host, shape: Shape, repetitions: u32) -> String {
    let columns =
        ["T_T / T_p", "measured", "awake", "hibernated", "mapped", "bound", "of bound", "bare copy"];
    format!(
        "GPU of {} MiB, engine with {} threads; n = {} layers of {:.0} KiB, and {:.0} KiB of other weights\n\
         T_T: copy of a layer; T_p: what a prompt of {PROMPT} characters computes in it\n\
         awake, hibernated: time to its first token, ms, median (range) of {repetitions}; mapped: of that, until all memory was back\n\
         bound: copy of the other weights, then T_T + n T_p or n T_T + T_p, whichever is longer, ms\n\n{}",
        host.memory_bytes / MIB,
        host.threads,
        shape.layers,
        shape.layer_bytes / 1024.0,
        shape.global_bytes / 1024.0,
        line(columns.map(str::to_owned))
    )
}

fn line([wished, measured, awake, woken, mapped, bound, of_bound, copy]: [String; 8]) -> String {
    format!(
        "{wished:>9} {measured:>9} {awake:>26} {woken:>26} {mapped:>8} {bound:>8} {of_bound:>9} {copy:>10}"
    )
}

fn print(samples: &Samples, shape: Shape) {
    let cells = [
        samples.ratio.to_string(),
        format!("{:.2}", samples.measured(shape)),
        cell(&samples.awake, 1),
        cell(&samples.woken, 1),
        format!("{:.1}", middle(&samples.mapped)),
        format!("{:.1}", samples.bound(shape)),
        format!("{:.2}", samples.of_bound(shape)),
        format!("{:.1}", samples.copy(shape.bytes())),
    ];
    println!("{}", line(cells));
}

/// First that every wake was one, then whether the median keeps the limit.
fn verdicts(samples: &Samples, shape: Shape) -> [Verdict; 2] {
    let ratio = samples.ratio;
    let times = samples.copied_bytes / shape.bytes() / samples.woken.len() as f64;
    let (of_bound, once_mapped) = (samples.of_bound(shape), samples.of_bound_once_mapped(shape));
    [
        (
            format!("T_T / T_p = {ratio}: a wake copied {times:.3} times the weights, at least 1"),
            // Sums of floating point.
            times > 1.0 - 1e-9,
        ),
        (
            format!(
                "T_T / T_p = {ratio}: first token after {of_bound:.2} times the bound, at most {LIMIT} ({once_mapped:.2} \
                 times from mapped on)"
            ),
            of_bound <= LIMIT,
        ),
    ]
}

fn reported(samples: &Samples, shape: Shape) -> Value {
    json!({
        "ratio": samples.ratio,
        "ratio_measured": samples.measured(shape),
        "link_bytes_per_s": samples.link_bytes_per_s,
        "awake_ms": samples.awake,
        "hibernated_ms": samples.woken,
        "mapped_ms": samples.mapped,
        "bound_ms": samples.bound(shape),
        "copy_ms": samples.copy(shape.bytes()),
        "copied_bytes": samples.copied_bytes,
    })
}

/// Sizes, and the prompt's time while the tenant is awake.
fn calibrate(world: &BenchEnv, host: Host, repetitions: u32) -> Result<(Shape, f64)> {
    let tenant = Tenant::start(world, "shape", &host.setup(None))?;
    let mut visit = Visit::of(&tenant)?;
    visit.ask()?;
    let awake: Vec<f64> = (0..repetitions).map(|_| visit.ask()).collect::<Result<_>>()?;
    Ok((Shape::read(&tenant.state()?)?, middle(&awake)))
}

fn measure(tenant: &Tenant<'_>, ratio: f64, link: f64, (stop, repetitions): (&Stop, u32)) -> Result<Samples> {
    let mut visit = Visit::of(tenant)?;
    let (mut awake, mut woken, mut mapped) = (Vec::new(), Vec::new(), Vec::new());
    visit.ask()?;
    let before = copied_bytes(&tenant.state()?)?;
    for _ in 0..repetitions {
        stop.check()?;
        awake.push(visit.ask()?);
        visit.order("/sleep")?;
        let (answered, there) = visit.ask_while_waking()?;
        woken.push(answered);
        mapped.push(there);
    }
    let copied_bytes = copied_bytes(&tenant.state()?)? - before;
    Ok(Samples { ratio, link_bytes_per_s: link, awake, woken, mapped, copied_bytes })
}

/// The way to a tenant's doors.
struct Visit {
    serve: SocketAddr,
    admin: SocketAddr,
    token: String,
    asked: u64,
}

impl Visit {
    fn of(tenant: &Tenant<'_>) -> Result<Visit> {
        let record = tenant.record()?;
        let text = |field: &str| record[field].as_str().with_context(|| format!("a record without {field}"));
        let token = std::fs::read_to_string(text("token_file")?).context("the token's file")?;
        let serve = tenant.url().trim_start_matches("http://").parse()?;
        Ok(Visit { serve, admin: text("admin")?.parse()?, token: token.trim().to_owned(), asked: 0 })
    }

    /// Returns the time of one token after a new prompt, milliseconds.
    fn ask(&mut self) -> Result<f64> {
        self.asked += 1;
        let mut rng = Rng::new(self.asked);
        let prompt: String = (0..PROMPT).map(|_| char::from(b'a' + rng.below(26) as u8)).collect();
        let body = json!({"model": "bench", "prompt": prompt, "max_tokens": 1, "temperature": 0}).to_string();
        let begun = Instant::now();
        post(self.serve, "/v1/completions", None, &body)?;
        Ok(milliseconds(begun))
    }

    /// The same for a tenant that was ordered to sleep, from the order to wake on, with the request sent during the
    /// wake-up. Also returns the time until that order was carried out.
    fn ask_while_waking(&mut self) -> Result<(f64, f64)> {
        let (admin, token) = (self.admin, self.token.clone());
        let begun = Instant::now();
        let order = std::thread::spawn(move || {
            post(admin, "/wake_up", Some(&token), "").map(|_| milliseconds(begun))
        });
        self.ask()?;
        let answered = milliseconds(begun);
        let mapped = order.join().map_err(|_| anyhow::anyhow!("the thread of the order panicked"))??;
        Ok((answered, mapped))
    }

    fn order(&self, path: &str) -> Result<()> {
        post(self.admin, path, Some(&self.token), "").map(drop)
    }
}

fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns samples with this bandwidth; a prompt takes 40 ms.
    fn samples(link_bytes_per_s: f64) -> Samples {
        let (awake, woken) = (vec![40.0, 39.0, 44.0], vec![50.0]);
        Samples { ratio: 1.0, link_bytes_per_s, awake, woken, mapped: vec![5.0], copied_bytes: 4500.0 }
    }

    fn shape() -> Shape {
        let state = json!({
            "layers": ["Resident", "Resident", "Resident", "Resident"],
            "memory": {"owners": {"weights_global_bytes": 500, "weights_layers_bytes": 4096}},
            "figures": {"copied_bytes_total": 4500},
        });
        Shape::read(&state).unwrap()
    }

    #[test]
    fn the_bound_is_the_slower_of_copies_and_compute_with_one_of_the_other() {
        // A layer's copy takes 1 ms, its share of the prompt 10 ms.
        assert_eq!(samples(1e6).bound(shape()), 0.5 + 1.0 + 40.0);
        assert_eq!(samples(1e6).copy(shape().bytes()), 4.5);
        assert_eq!(samples(1e6).measured(shape()), 0.1);
        assert_eq!(samples(1e6).of_bound_once_mapped(shape()), 45.0 / 41.5);
        // A layer's copy takes 100 ms.
        assert_eq!(samples(1e4).bound(shape()), 50.0 + 400.0 + 10.0);
    }

    #[test]
    fn a_wake_that_copied_too_little_was_none_and_one_that_took_too_long_fails() {
        let of = |samples: Samples| verdicts(&samples, shape()).map(|(_, holds)| holds);
        // 50 ms of 42.
        assert_eq!(of(samples(1e6)), [true, false]);
        assert_eq!(of(Samples { woken: vec![47.0], ..samples(1e6) }), [true, true]);
        assert_eq!(of(Samples { copied_bytes: 4499.0, ..samples(1e6) }), [false, false]);
        assert_eq!(of(Samples { woken: vec![47.0; 2], ..samples(1e6) }), [false, true]);
        assert!(!of(Samples { woken: vec![], ..samples(1e6) })[1], "no sample shows nothing");
    }
}

//! The command `serve-trace`.

use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::peers::victim::VictimRule;
use sluice_policy::reclaim::PolicyName;
use sluice_policy::tunables::Tuned;
use sluice_sim::experiments::{Figure, Series};
use sluice_sim::gpu::GpuSharing;
use sluice_sim::profiles::model;
use sluice_sim::serve::{self, RequestSlo, ServeConfig, ServeOptions, ServeStats};
use sluice_sim::workload::arrivals::ArrivalProcess;
use sluice_sim::workload::{self, Arrival, LengthSource, Limits, TenantAssignment};

use crate::args::{ServeArgs, SharingArg};
use crate::estimate::{find_by_name, find_machine};
use crate::output::{check_writable, print, print_status, save};
use crate::progress::RunProgress;
use crate::{data, table};

const MS: u64 = 1_000_000;

/// Serves the same load under each policy.
pub fn serve(args: &ServeArgs) -> Result<bool> {
    let case = case(args)?;
    let load = load(args, &case)?;
    check_writable([&args.json, &args.svg])?;
    let mut all = Vec::new();
    for policy in policies(args)? {
        all.push(serve_policy(&ServeConfig { policy, ..case.clone() }, &load)?);
    }
    print(&text(args, &all))?;
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&all)? + "\n";
        save(file, |file| Ok(std::fs::write(file, text)?))?;
    }
    if let Some(file) = &args.svg {
        save(file, |file| Ok(sluice_sim::figure::draw(&[metrics_figure(&all)], file)?))?;
    }
    Ok(true)
}

fn policies(args: &ServeArgs) -> Result<Vec<PolicyName>> {
    if args.policy.is_empty() {
        return Ok(PolicyName::ALL.to_vec());
    }
    let policy = |name: &String| find_by_name(name, &PolicyName::ALL, |policy| policy.name(), "policy");
    args.policy.iter().map(policy).collect()
}

fn serve_policy(case: &ServeConfig, load: &[Arrival]) -> Result<ServeStats> {
    let (progress, begin) = (RunProgress::new(case.policy.name(), load.len() as u64), Instant::now());
    let served = serve::serve(case, load, &mut |ended| progress.update(ended));
    progress.finish();
    let served = served.map_err(|problem| anyhow!(problem))?;
    let wall_s = begin.elapsed().as_secs_f64();
    let rate = (served.tokens + prompt_tokens(load)) as f64 / wall_s;
    print_status(&format!(
        "{}: {:.0} s simulated in {wall_s:.1} s, {rate:.0} tokens of prompts and answers per second of wall time",
        served.policy, served.seconds
    ));
    Ok(served)
}

fn prompt_tokens(load: &[Arrival]) -> u64 {
    load.iter().map(|coming| u64::from(coming.lengths.prompt)).sum()
}

fn case(args: &ServeArgs) -> Result<ServeConfig> {
    let hardware = find_machine(&args.profile)?;
    let models: Vec<_> = args
        .model
        .iter()
        .map(|name| find_by_name(name, &model::ALL, |model| model.name, "model"))
        .collect::<Result<_>>()?;
    let count = args.tenants.unwrap_or(models.len());
    ensure!((1..=64).contains(&count), "a GPU has 1 to 64 tenants");
    ensure!(
        args.share.is_empty() || args.share.len() == count,
        "--share needs {count} values, one for each tenant"
    );
    ensure!(args.share.iter().sum::<u32>() <= 100, "the shares must sum to at most 100 percent");
    let models: Vec<_> = models.iter().cycle().take(count).copied().collect();
    let shares: Vec<_> = args.share.iter().map(|percent| percent * 10).collect();
    let quantum_ns = args.quantum_ms * MS;
    Ok(ServeConfig {
        hardware,
        tenants: serve::tenant_models(&hardware, &models, &shares),
        sharing: match args.sharing {
            SharingArg::Temporal => serve::round_robin(Quantum::new(quantum_ns / 10, quantum_ns)),
            SharingArg::Spatial => GpuSharing::Spatial,
            SharingArg::Isolated => GpuSharing::Isolated,
        },
        policy: PolicyName::default(),
        launch: args.launch.into(),
        chunk_bytes: args.chunk_mib << 20,
        max_sequences: args.max_sequences,
        prefix_caching: false,
        rule: VictimRule::default(),
        slo: RequestSlo { ttft_ns: args.ttft_ms * MS, tbt_ns: args.tbt_ms * MS },
        options: ServeOptions {
            kv_bytes: args.kv_gib.map(|gib| gib << 30),
            host_kv_bytes: args.host_kv_gib.map(|gib| gib << 30),
            ..ServeOptions::default()
        },
        tunables: parse_tunables(&args.set)?,
        seed: args.seed,
    })
}

fn parse_tunables(set: &[(String, u64)]) -> Result<Tuned> {
    let mut tuned = Tuned::default();
    set.iter().try_for_each(|(name, value)| tuned.set(name, *value)).context("--set")?;
    Ok(tuned)
}

fn load(args: &ServeArgs, case: &ServeConfig) -> Result<Vec<Arrival>> {
    let read = |file: &String| data::read(file, &args.data, args.held_back);
    let lengths: Vec<_> =
        args.lengths.iter().map(|file| Ok(LengthSource::new(&read(file)?))).collect::<Result<_>>()?;
    let limits = Limits {
        model_tokens: case.tenants.iter().map(|place| place.model.context_tokens).collect(),
        prompt_tokens: args.prompt_cap,
        requests: args.requests,
    };
    let deal = if args.apart { TenantAssignment::Segments } else { TenantAssignment::Random };
    Ok(workload::load(&arrivals(args)?, &lengths, &limits, deal, args.seed))
}

fn arrivals(args: &ServeArgs) -> Result<ArrivalProcess> {
    let rate = args.rate.map(|rate| rate * args.scale);
    let cv = match args.trace.as_str() {
        "poisson" => 1.0,
        "gamma" => args.cv,
        file => {
            let mut table = data::read(file, &args.data, args.held_back)?;
            ensure!(table.has_times(), "{file} has no arrivals: use it with --lengths");
            if !args.apart {
                table.rows.truncate(args.requests);
            }
            let rate = rate.or((args.scale != 1.0).then(|| table.mean_rate() * args.scale));
            return Ok(ArrivalProcess::Trace { table, rate });
        }
    };
    let Some(rate) = rate else { bail!("--trace {} needs --rate", args.trace) };
    Ok(ArrivalProcess::Gamma { rate, cv })
}

fn text(args: &ServeArgs, all: &[ServeStats]) -> String {
    let heading = [
        "POLICY",
        "DONE",
        "GOODPUT",
        "TOKENS/S",
        "TTFT P50",
        "P99 S",
        "TBT P50",
        "P99 MS",
        "PREEMPTED",
        "PAUSED",
        "REMAPPED",
        "STALL S",
        "LINK GB",
        "PLANS",
        "GAP % P50/P90/MAX",
    ];
    let rows: Vec<_> = all.iter().map(row).collect();
    format!(
        "{} on {}, {:?}, arrivals of {}\n\n{}",
        args.model.join(", "),
        args.profile,
        args.sharing,
        args.trace,
        table::text(heading, &rows)
    )
}

fn row(served: &ServeStats) -> [String; 15] {
    [
        served.policy.clone(),
        format!("{}/{}", served.completed, served.requests),
        format!("{:.1}", served.goodput),
        format!("{:.1}", served.throughput),
        format!("{:.2}", served.ttft_p50 / 1e3),
        format!("{:.2}", served.ttft_p99 / 1e3),
        format!("{:.1}", served.tbt_p50),
        format!("{:.1}", served.tbt_p99),
        served.preemptions.to_string(),
        served.pauses.to_string(),
        served.remapped_layers.to_string(),
        format!("{:.2}", served.stall_s + served.kv_stall_s),
        format!("{:.1}+{:.1}", served.link_gb.0, served.link_gb.1),
        served.plans.to_string(),
        served.plan_gaps(),
    ]
}

fn metrics_figure(all: &[ServeStats]) -> Figure {
    let line = |served: &ServeStats| Series { name: served.policy.clone(), points: served.made.clone() };
    Figure {
        title: "Tokens made".into(),
        x: "seconds".into(),
        y: "tokens".into(),
        names: Vec::new(),
        lines: all.iter().map(line).collect(),
    }
}

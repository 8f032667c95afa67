//! Published models under a load: gains of policies, reproducible runs, and the command line.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;
use sluice_sim::gpu::GpuSharing;
use sluice_sim::profiles::cost::Launch;
use sluice_sim::profiles::{hardware, model};
use sluice_sim::serve::{self, ServeConfig, ServeOptions, ServeStats};
use sluice_sim::workload::arrivals::ArrivalProcess;
use sluice_sim::workload::table::Table;
use sluice_sim::workload::{self, Arrival, LengthSource, Lengths, Limits, TenantAssignment, TraceSplit};

/// Returns two models in time slices whose KV is short.
fn case(policy: PolicyName) -> ServeConfig {
    let hardware = *hardware::find("gh200").unwrap();
    let models = ["opt-13b", "opt-6.7b"].map(|name| *model::find(name).unwrap());
    let round_robin = serve::round_robin(Quantum::new(5_000_000, 50_000_000));
    ServeConfig::new(hardware, serve::tenant_models(&hardware, &models, &[300, 170]), round_robin, policy)
}

/// Returns bursts for the first tenant, and occasional requests for the second.
fn load(requests: usize, rate: f64) -> Vec<Arrival> {
    let limits = Limits { model_tokens: vec![2048; 2], prompt_tokens: 2048, requests };
    let lengths = [LengthSource::fixed(Lengths { prompt: 300, output: 200 })];
    let arrivals = ArrivalProcess::Gamma { rate, cv: 3.0 };
    let mut load = workload::load(&arrivals, &lengths, &limits, TenantAssignment::Random, 5);
    load.iter_mut().enumerate().for_each(|(at, coming)| coming.tenant = usize::from(at % 12 == 0));
    load
}

fn serve(case: &ServeConfig, load: &[Arrival]) -> ServeStats {
    serve::serve(case, load, &mut |_| {}).unwrap()
}

#[test]
fn idle_peer_memory_serves_more_concurrent_requests() {
    let load = load(90, 40.0);
    let recompute = serve(&case(PolicyName::Recompute), &load);
    let oneiros = serve(&case(PolicyName::Oneiros), &load);
    assert_eq!((recompute.completed, oneiros.completed), (90, 90));
    assert_eq!(recompute.tokens, oneiros.tokens);
    assert_eq!((recompute.remapped_layers, recompute.link_gb.0), (0, 0.0), "nothing moves under Recompute");
    assert!(oneiros.remapped_layers > 0 && oneiros.link_gb.0 > 1.0);
    let gain = oneiros.throughput / recompute.throughput;
    assert!(gain > 1.1, "{} and {} tokens per second", recompute.throughput, oneiros.throughput);
    assert!(oneiros.ttft_p99 < recompute.ttft_p99);
}

#[test]
fn run_is_deterministic_per_seed() {
    let load = load(40, 20.0);
    let case = case(PolicyName::Oneiros);
    let first = serve(&case, &load);
    assert_eq!(first, serve(&case, &load));
    assert_ne!(first.made, serve(&ServeConfig { seed: 2, ..case }, &load).made, "letters take other times");
}

#[test]
fn a_load_that_fits_is_served_alike_under_every_policy_and_however_the_gpu_is_shared() {
    let load = load(6, 1.0);
    for sharing in [GpuSharing::Spatial, GpuSharing::Isolated, case(PolicyName::Recompute).sharing] {
        let served = |policy| serve(&ServeConfig { sharing, ..case(policy) }, &load);
        let reference = served(PolicyName::Recompute);
        for policy in PolicyName::ALL {
            let found = served(policy);
            assert_eq!(found.preemptions, 0, "{policy:?}");
            // A policy without fixed placement moves KV even if memory is not short.
            if policy != PolicyName::FlexGen {
                assert_eq!(found.goodput, reference.goodput, "{policy:?} {sharing:?}");
            }
        }
    }
}

#[test]
fn single_request_step_takes_time_of_cost_model() {
    let load = [Arrival { at_ns: 0, tenant: 0, lengths: Lengths { prompt: 100, output: 400 } }];
    let case = case(PolicyName::Recompute);
    let served = serve(&case, &load);
    let batch = sluice_sim::profiles::cost::BatchShape::decode(1, 300);
    let step_ns =
        sluice_sim::profiles::cost::step_ns(&case.hardware, &case.tenants[0].model, &batch, Launch::Graph);
    let error = served.tbt_p50 * 1e6 / step_ns as f64 - 1.0;
    assert!(error.abs() < 0.01, "{} ms, the model says {step_ns} ns", served.tbt_p50);
}

#[test]
fn unpausable_request_is_recomputed() {
    let load = load(60, 60.0);
    let served = |never_pauses| {
        let tuning = ServeOptions { never_pauses, kv_bytes: Some(1 << 32), ..ServeOptions::default() };
        serve(&ServeConfig { options: tuning, ..case(PolicyName::OrbitFlow) }, &load)
    };
    let (pausing, not) = (served(false), served(true));
    assert!(pausing.pauses > 0 && not.pauses == 0, "{} and {} pauses", pausing.pauses, not.pauses);
    assert!(not.preemptions > pausing.preemptions);
    assert!(pausing.tbt_met <= pausing.tbt_met_paced, "what was early makes up for what is late");
}

/// Returns the folder of trace files, or `None` if there is none.
fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("SLUICE_SHARED").map(PathBuf::from)?.join("data");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is no folder", folder.display());
    None
}

#[test]
fn published_traces_are_read_and_their_last_third_is_held_back() {
    let Some(data) = data() else { return };
    for (file, rows) in [
        ("azure_llm_2023_code.csv", 8_818),
        ("prism_multi_model.csv", 1_500),
        ("sharegpt_lengths.csv", 15_000),
        ("alpaca_lengths.csv", 1_807),
    ] {
        let text = std::fs::read_to_string(data.join(file)).unwrap();
        let part = |held_back| Table::parse(file, &text, held_back).unwrap();
        let (used, held) = (part(TraceSplit::Shown), part(TraceSplit::HeldBack));
        // The last line of one file has no newline.
        assert!((rows..=rows + 1).contains(&(used.rows.len() + held.rows.len())), "{file}");
        if let (Some(last), Some(first)) = (used.rows.last().unwrap().at_ns, held.rows[0].at_ns) {
            assert!(last < first, "{file} is cut by time");
        } else {
            assert_eq!(used.rows.len(), (rows * 2).div_ceil(3), "{file} is cut by row");
        }
    }
}

fn sluice_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice-sim")).args(args).output().unwrap()
}

#[test]
fn the_command_serves_a_trace_under_several_policies_side_by_side() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (trace, json, svg) = (folder.join("t.csv"), folder.join("serve.json"), folder.join("serve.svg"));
    let rows: String = (0..30).map(|at| format!("{}.5,{},20\n", at / 10, 50 + at)).collect();
    std::fs::write(&trace, format!("arrival_s,context_tokens,generated_tokens\n{rows}")).unwrap();
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let done = sluice_sim(&[
        "serve-trace",
        "--trace",
        &text(&trace),
        "--profile",
        "gh200",
        "--model",
        "opt-6.7b",
        "--tenants",
        "2",
        "--policy",
        "recompute,Oneiros",
        "--chunk-mib",
        "16",
        "--json",
        &text(&json),
        "--svg",
        &text(&svg),
    ]);
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{err}");
    assert!(err.contains("tokens of prompts and answers per second of wall time"), "{err}");
    assert_eq!(out.lines().filter(|line| line.contains("30/30")).count(), 2, "{out}");
    let served: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(
        (served[0]["policy"].as_str(), served[1]["completed"].as_u64()),
        (Some("Recompute"), Some(30))
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    for file in [trace, json, svg] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn command_errors_name_items_and_lines() {
    let error_of = |args: &[&str]| {
        let all: Vec<_> =
            ["serve-trace", "--profile", "gh200", "--model", "opt-13b"].iter().chain(args).copied().collect();
        let done = sluice_sim(&all);
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).unwrap()
    };
    let bad = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad.csv");
    std::fs::write(&bad, "arrival_s,context_tokens,generated_tokens\n1,2,3\n4,five,6\n").unwrap();
    let message = error_of(&["--trace", bad.to_str().unwrap()]);
    assert!(message.contains("bad.csv:3: `five` is not a number of tokens"), "{message}");
    std::fs::remove_file(bad).unwrap();
    assert!(error_of(&["--trace", "nowhere.csv"]).contains("file nowhere.csv does not exist"));
    assert!(error_of(&["--trace", "poisson"]).contains("needs --rate"));
    assert!(
        error_of(&["--trace", "poisson", "--rate", "1", "--policy", "X"])
            .contains("no policy has the name \"X\"; the names are Recompute")
    );
    assert!(error_of(&["--trace", "poisson", "--rate", "0"]).contains("above 0"));
    let set = |settings: &str| error_of(&["--trace", "poisson", "--rate", "1", "--set", settings]);
    assert!(set("cost_window_steps").contains("expected NAME=VALUE"));
    assert!(set("cost_window_steps=few").contains("`few` is not a whole number"));
    assert!(set("cost_window_steps=0").contains("--set: cost_window_steps is 0, and must be 1 to 1000000"));
    assert!(
        set("replan_mismatches=2,window=3").contains("`window` is not a tunable (stall_allowance_permille, ")
    );
    let held_back = ["--trace", "poisson", "--rate", "1", "--set", "replan_mismatches=2", "--held-back"];
    assert!(error_of(&held_back).contains("cannot be used with"));
}

#[test]
fn numbers_of_the_policy_are_listed_and_what_is_set_decides() {
    let listed = sluice_sim(&["tunables"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let of = |name: &str| listed.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let row = of("fixed_away_permille ").unwrap();
    assert!(row.contains(" 500 ") && row.contains("0 to 1000"), "{row}");

    let json = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("set.json");
    let fetched = |settings: &[&str]| {
        let fixed =
            ["serve-trace", "--trace", "poisson", "--rate", "4", "--requests", "8", "--profile", "gh200"];
        let rest = ["--model", "opt-6.7b", "--policy", "FlexGen", "--json", json.to_str().unwrap()];
        let done = sluice_sim(&[&fixed[..], &rest, settings].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let served: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        served[0]["link_gb"][0].as_f64().unwrap()
    };
    let usual = fetched(&[]);
    assert_eq!(fetched(&["--set", "fixed_away_permille=500"]), usual);
    assert!(fetched(&["--set", "fixed_away_permille=250"]) < usual, "fewer layers are away");
    std::fs::remove_file(json).unwrap();
}

#[test]
fn unwritable_output_fails_and_broken_pipe_does_not() {
    for args in [&["list"][..], &["tunables"], &["estimate", "--json"], &["soak", "--seeds", "1"]] {
        let run = |stdout: Stdio| {
            Command::new(env!("CARGO_BIN_EXE_sluice-sim")).args(args).stdout(stdout).output().unwrap()
        };
        let full = run(std::fs::File::options().write(true).open("/dev/full").unwrap().into());
        let error = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(2), "{args:?}: {error}");
        assert_eq!(error, "sluice-sim: standard output: No space left on device (os error 28)\n", "{args:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = run(writer.into());
        assert_eq!((left.status.code(), left.stderr), (Some(0), vec![]), "{args:?}");
    }
}

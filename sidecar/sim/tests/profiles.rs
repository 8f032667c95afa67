//! Machines, models and costs against published figures.

use sluice_sim::estimate::Estimate;
use sluice_sim::experiments;
use sluice_sim::experiments::{ExperimentCheck, ExperimentKind};
use sluice_sim::profiles::cost::{BatchShape, Launch, step_ns};
use sluice_sim::profiles::{hardware, model};

fn machine(name: &str) -> hardware::Hardware {
    *hardware::find(name).expect("a machine of this name")
}

fn model(name: &str) -> model::ModelProfile {
    *model::find(name).expect("a model of this name")
}

#[test]
fn models_have_the_published_sizes() {
    // KV of a token in bytes, and weights of a layer in units of 0.01 GB.
    for (name, kv_bytes, layer_centi_gb) in [
        ("opt-6.7b", 524_288, 40),
        ("opt-13b", 819_200, 63),
        ("opt-30b", 1_376_256, 123),
        ("llama-2-13b", 819_200, 63),
        ("llama-3-8b", 131_072, 44),
        ("llama-3-70b", 327_680, 171),
    ] {
        let model = model(name);
        assert_eq!(model.kv_token_bytes(), kv_bytes, "{name}");
        assert_eq!((model.layer_bytes() + 5_000_000) / 10_000_000, layer_centi_gb, "{name}");
    }
    for (name, billions) in
        [("opt-6.7b", 6.7), ("opt-13b", 13.0), ("opt-30b", 30.0), ("llama-3-8b", 8.0), ("llama-3-70b", 70.6)]
    {
        let parameters = model(name).weight_bytes() as f64 / 2e9;
        assert!((parameters / billions - 1.0).abs() < 0.02, "{name}: {parameters} of {billions} billion");
    }
}

/// DistServe's profile of OPT-13B on an A100 80 GB, milliseconds (Apache-2.0, simdistserve's estimators).
fn published_decode_ms(sequences: f64, context: f64) -> f64 {
    23.475 + 5.93e-4 * context + 0.0607 * sequences
}

fn published_prefill_ms(tokens: f64) -> f64 {
    22.05 + 0.1405 * tokens + 8.08e-6 * tokens * tokens
}

fn ours_ms(batch: BatchShape) -> f64 {
    step_ns(&machine("a100-pcie4"), &model("opt-13b"), &batch, Launch::Eager) as f64 / 1e6
}

#[test]
fn decode_steps_take_what_distserve_measured() {
    for (sequences, context) in [(1, 128), (8, 512), (32, 512), (64, 256), (16, 2_000)] {
        let published = published_decode_ms(sequences as f64, (sequences * context) as f64);
        let ours = ours_ms(BatchShape::decode(sequences, context));
        assert!((ours / published - 1.0).abs() < 0.1, "{sequences} x {context}: {ours} of {published} ms");
    }
}

#[test]
fn prompts_take_what_distserve_measured() {
    for tokens in [512, 1_024, 2_048] {
        let published = published_prefill_ms(tokens as f64);
        let ours = ours_ms(BatchShape::prefill(tokens));
        assert!((ours / published - 1.0).abs() < 0.2, "{tokens}: {ours} of {published} ms");
    }
}

#[test]
fn r_is_about_7_5_on_gh200_and_about_70_over_pcie_5_when_weights_bound_a_step() {
    let estimate = |name| {
        let batch = BatchShape::decode(1, 0);
        Estimate::new(&machine(name), &model("opt-13b"), &batch, Launch::Graph)
    };
    let (coherent, pcie) = (estimate("gh200"), estimate("h200-pcie5"));
    // Launch time is part of a layer's compute, so r is slightly below the bound from memory alone.
    assert!((6_000..=7_700).contains(&coherent.r_permille()), "{}", coherent.r_permille());
    assert!((55_000..=70_500).contains(&pcie.r_permille()), "{}", pcie.r_permille());
    assert!(coherent.alpha() >= 3, "remapping wins there");
    assert_eq!(pcie.alpha(), 0, "and must be declined there");
}

#[test]
fn a_larger_batch_lowers_r_and_frees_more() {
    let machine = machine("gh200");
    let estimates: Vec<Estimate> = [1, 16, 64, 128]
        .iter()
        .map(|&sequences| {
            Estimate::new(&machine, &model("opt-13b"), &BatchShape::decode(sequences, 1_024), Launch::Graph)
        })
        .collect();
    assert!(
        estimates.is_sorted_by(|a, b| a.r_permille() > b.r_permille() && a.alpha() <= b.alpha()),
        "{estimates:?}"
    );
}

/// Rows that differ intentionally; a note below the table gives the reason.
const OTHERWISE: [(&str, &str, ExperimentCheck); 1] =
    [("pie-fig4", "a queue of five: layer times that a token waits", ExperimentCheck::Reasoned)];

#[test]
fn every_experiment_matches_paper_or_explains_deviation() {
    let mut otherwise = Vec::new();
    for experiment in experiments::ALL {
        let ExperimentKind::Analytic(run) = experiment.kind else { continue };
        let report = run();
        let lines: Vec<_> = report.figures.iter().flat_map(|figure| &figure.lines).collect();
        assert!(!report.rows.is_empty() && !lines.is_empty(), "{}", experiment.name);
        assert!(lines.iter().all(|line| line.points.len() > 1), "{}", experiment.name);
        for row in report.rows.iter().filter(|row| row.verdict != ExperimentCheck::Same) {
            let what = format!("{}: {}: {} and not {}", experiment.name, row.what, row.ours, row.paper);
            assert!(row.reason.is_some(), "{what}, and no reason");
            otherwise.push((experiment.name, row.what.clone(), row.verdict));
        }
    }
    let expected = OTHERWISE.map(|(name, what, verdict)| (name, what.to_owned(), verdict));
    assert_eq!(otherwise, expected);
}

#[test]
fn names_are_unique_and_found() {
    let experiments: Vec<&str> = experiments::ALL.iter().map(|experiment| experiment.name).collect();
    for names in [experiments, hardware::ALL.map(|m| m.name).to_vec(), model::ALL.map(|m| m.name).to_vec()] {
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
    }
    assert!(experiments::find("pie-fig4").is_some() && experiments::find("pie").is_none());
}

/// What `sluice-gpu-bench --profile` writes, of a machine with half the link of an H100.
const MEASURED: &str = r#"{
  "schema": 1, "stand_in": false, "device": "NVIDIA Test", "date": "2026-11-28T05:00:00Z", "commit": "abc",
  "memory_bytes": 85899345920, "host_bytes": 137438953472, "memory_bytes_per_s": 3000000000000,
  "flops": 600000000000000, "in_bytes_per_s": 27500000000, "out_bytes_per_s": 27000000000,
  "coupled_permille": 900, "setup_ns": 6000
}"#;

fn estimate(profile: &str) -> (Option<i32>, String) {
    let file = unused_name();
    std::fs::write(&file, profile).unwrap();
    let args = ["estimate", "--model", "opt-13b", "--profile", file.to_str().unwrap()];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sluice-sim")).args(args).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Returns a name that no other test has.
fn unused_name() -> std::path::PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("machine-{}-{number}.json", std::process::id()))
}

#[test]
fn the_command_estimates_for_a_measured_machine_and_refuses_one_of_the_stand_in() {
    let (code, text) = estimate(MEASURED);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("NVIDIA Test") && text.contains("measured"), "{text}");
    let (code, text) = estimate(&MEASURED.replace("\"stand_in\": false", "\"stand_in\": true"));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("was measured on the stand-in for the CUDA driver"), "{text}");
}

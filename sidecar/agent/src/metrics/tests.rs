//! Tests of the exposed metrics and their format.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_common::metrics_text::{Sample, samples, sum};
use sluice_policy::reason::Reason;

use super::objectives::StreamEnd;
use super::*;

/// Parses OpenMetrics strictly enough to reject a broken line. Returns the families and the samples.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<Sample<'_>>) {
    let mut families = BTreeMap::new();
    let mut samples = Vec::new();
    let mut lines = text.lines();
    assert_eq!(lines.next_back(), Some("# EOF"));
    for line in lines {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("name and type");
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is declared twice");
        } else if !line.starts_with("# ") {
            let sample = Sample::parse(line).unwrap_or_else(|| panic!("no sample: {line}"));
            assert_eq!(sample.label("model_name"), Some("tiny"), "{line}");
            samples.push(sample);
        }
    }
    (families, samples)
}

/// Records a response. Each entry is the milliseconds before a write, and the tokens written together.
fn record_answer(metrics: &Metrics, tokens: &[(u64, u32)]) {
    let mut now = Instant::now();
    let answer = metrics.recent().objectives.track_first(now);
    for (ms, count) in tokens {
        now += Duration::from_millis(*ms);
        metrics.on_written(answer, now, *count);
    }
    metrics.recent().objectives.end(answer, now, StreamEnd::Closed);
}

/// Returns the time `seconds` ago.
fn ago(seconds: u64) -> Instant {
    Instant::now().checked_sub(Duration::from_secs(seconds)).expect("this machine is up for longer")
}

fn busy() -> Metrics {
    let metrics = Metrics::new("tiny", &SloConfig::default());
    record_answer(&metrics, &[(30, 1), (55, 3), (56, 1)]);
    metrics.record_prompt(20);
    metrics.record_generated_token(None);
    metrics.record_generated_token(Some(Duration::from_millis(3)));
    metrics.record_write_lateness(1000);
    metrics.on_request_ended("stop", Duration::from_secs(1));
    metrics.on_request_ended("never heard of", Duration::from_secs(1));
    let step =
        StepOutput { elapsed_ns: 5_000_000, stall_ns: 500_000_000, decodes: 4, ..StepOutput::default() };
    metrics.on_step(&StepOutput {
        prefill_tokens: 16,
        recomputed_tokens: 6,
        kv_stall_ns: 250_000_000,
        ..step
    });
    metrics.set_kv_copied(KvCopyStats { fetched_bytes: 3, written_back_bytes: 4 });
    metrics.set_kv_copied(KvCopyStats { fetched_bytes: 30, written_back_bytes: 40 });
    metrics.set_offloaded_prompts(3, 100);
    metrics.set_offloaded_prompts(5, 50);
    metrics.on_admitted(Some(1_000_000), 16);
    metrics.on_admitted(None, 99);
    metrics.on_preempted(6);
    metrics.on_planned(0);
    metrics.on_planned(150);
    metrics.on_engine_lost();
    metrics.on_engine_hung();
    metrics.add_sidecar_hangs(4);
    (0..5).for_each(|_| metrics.on_slice_skipped());
    (0..2).for_each(|_| metrics.on_slice_taken_over());
    (0..3).for_each(|_| metrics.on_slice_overtaken());
    metrics.set_slice_holder_overdue(9.0);
    metrics.set_slice_holder_overdue(1.5);
    metrics.set_credentials_valid("api_keys", true);
    metrics.record_moves("remap", 2, 4096);
    let mut state = State::default();
    state.queue.waiting = 2;
    state.kv.utilisation_permille = 250;
    state.figures.copied_bytes_total = 77;
    state.memory.owners.kv_bytes = 12_345;
    (state.remap.alpha, state.activity.lent_layers) = (1, 3);
    metrics.set_state(&state);
    metrics
}

const DIRECTIVE: &str = include_str!("../../../../crds/wire/tests/golden/directive-v2.json");

const VLLM: [(&str, &str); 13] = [
    ("vllm:num_requests_running", "gauge"),
    ("vllm:num_requests_waiting", "gauge"),
    ("vllm:kv_cache_usage_perc", "gauge"),
    ("vllm:time_to_first_token_seconds", "histogram"),
    ("vllm:inter_token_latency_seconds", "histogram"),
    ("vllm:e2e_request_latency_seconds", "histogram"),
    ("vllm:request_queue_time_seconds", "histogram"),
    ("vllm:prompt_tokens", "counter"),
    ("vllm:generation_tokens", "counter"),
    ("vllm:num_preemptions", "counter"),
    ("vllm:request_success", "counter"),
    ("vllm:prefix_cache_queries", "counter"),
    ("vllm:prefix_cache_hits", "counter"),
];

const OWN: [(&str, &str); 41] = [
    ("sluice_tenant_info", "gauge"),
    ("sluice_memory_bytes", "gauge"),
    ("sluice_memory_capacity_bytes", "gauge"),
    ("sluice_layers_remapped", "gauge"),
    ("sluice_layers_lent", "gauge"),
    ("sluice_moves", "counter"),
    ("sluice_moved_bytes", "counter"),
    ("sluice_copied_bytes", "counter"),
    ("sluice_link_bytes_per_second", "gauge"),
    ("sluice_steps", "counter"),
    ("sluice_prefill_tokens", "counter"),
    ("sluice_recomputed_tokens", "counter"),
    ("sluice_stall_seconds", "counter"),
    ("sluice_kv_stall_seconds", "counter"),
    ("sluice_kv_fetch_bytes", "counter"),
    ("sluice_kv_writeback_bytes", "counter"),
    ("sluice_offloaded_prompts", "counter"),
    ("sluice_prompt_buffer_bytes", "gauge"),
    ("sluice_engine_tbt_seconds", "histogram"),
    ("sluice_delivered_tbt_seconds", "histogram"),
    ("sluice_write_lateness_seconds", "histogram"),
    ("sluice_engine_losses", "counter"),
    ("sluice_engine_hangs", "counter"),
    ("sluice_sidecar_hangs", "counter"),
    ("sluice_time_slice_skips", "counter"),
    ("sluice_time_slice_takeovers", "counter"),
    ("sluice_time_slice_losses", "counter"),
    ("sluice_time_slice_holder_overdue_seconds", "gauge"),
    ("sluice_slo_attainment_ratio", "gauge"),
    ("sluice_overdue_tokens", "gauge"),
    ("sluice_slo_tokens", "counter"),
    ("sluice_slo_missed_tokens", "counter"),
    ("sluice_credentials_last_reload_successful", "gauge"),
    ("sluice_deposit_tokens", "gauge"),
    ("sluice_open_requests", "gauge"),
    ("sluice_time_slice_wait_seconds", "histogram"),
    ("sluice_time_slice_handover_seconds", "histogram"),
    ("sluice_grant_seconds", "histogram"),
    ("sluice_revoke_seconds", "histogram"),
    ("sluice_wake_seconds", "histogram"),
    ("sluice_plan_gap_ratio", "histogram"),
];

/// Metrics of a tenant whose engine is proxied, besides those that the engine exposes itself.
const PROXIED: [(&str, &str); 21] = [
    ("sluice_tenant_info", "gauge"),
    ("sluice_engine_tbt_seconds", "histogram"),
    ("sluice_delivered_tbt_seconds", "histogram"),
    ("sluice_write_lateness_seconds", "histogram"),
    ("sluice_engine_losses", "counter"),
    ("sluice_slo_attainment_ratio", "gauge"),
    ("sluice_overdue_tokens", "gauge"),
    ("sluice_slo_tokens", "counter"),
    ("sluice_slo_missed_tokens", "counter"),
    ("sluice_credentials_last_reload_successful", "gauge"),
    ("sluice_deposit_tokens", "gauge"),
    ("sluice_open_requests", "gauge"),
    ("sluice_wake_seconds", "histogram"),
    ("sluice_held_requests", "gauge"),
    ("sluice_held_seconds", "histogram"),
    ("sluice_resent_requests", "counter"),
    ("sluice_requests", "counter"),
    ("sluice_request_seconds", "histogram"),
    ("sluice_ttft_seconds", "histogram"),
    ("sluice_prompt_tokens", "counter"),
    ("sluice_generation_tokens", "counter"),
];

#[test]
fn exposed_names_match_golden() {
    exposed(&busy(), VLLM.into_iter().chain(OWN).collect());
    let proxied = Metrics::proxied("tiny", &SloConfig::default());
    record_answer(&proxied, &[(0, 1), (0, 1)]);
    proxied.set_credentials_valid("admin_tls", false);
    proxied.set_state(&State::default());
    exposed(&proxied, PROXIED.into_iter().collect());
}

#[test]
fn docs_list_every_metric() {
    let page = include_str!("../../../../docs/metrics.md");
    for (name, kind) in VLLM.into_iter().chain(OWN).chain(PROXIED) {
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let is_listed = [format!("`{name}`"), format!("`{name}{{")].iter().any(|text| page.contains(text));
        assert!(is_listed, "docs/metrics.md says nothing of {name}");
    }
}

#[test]
fn docs_list_every_reason() {
    let page = include_str!("../../../../docs/metrics.md");
    for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::Stream) {
        let label = reason.label();
        assert!(page.contains(&format!("\n| `{label}` | ")), "docs/metrics.md says nothing of {label}");
    }
}

fn exposed(metrics: &Metrics, wanted: BTreeSet<(&str, &str)>) {
    let text = metrics.encode();
    let (families, samples) = parse(&text);
    let found: BTreeSet<_> = families.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(found, wanted);
    for (name, kind) in wanted {
        let suffix = match kind {
            "counter" => "_total",
            "histogram" => "_count",
            _ => "",
        };
        let full = format!("{name}{suffix}");
        assert!(samples.iter().any(|sample| sample.name == full), "{name} has no sample");
    }
}

#[test]
fn samples_match_recorded_values() {
    let text = busy().encode();
    let (_, samples) = parse(&text);
    let value = |series: &str| {
        let line = format!("{series} 0");
        let wanted = Sample::parse(&line).expect("a series");
        let found = samples.iter().find(|sample| {
            let others = sample.labels.iter().filter(|(name, _)| *name != "model_name");
            sample.name == wanted.name && others.eq(&wanted.labels)
        });
        found.unwrap_or_else(|| panic!("no sample {series} in {samples:#?}")).value
    };
    assert_eq!(value("vllm:request_success_total{finished_reason=\"stop\"}"), 1.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"error\"}"), 1.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"abort\"}"), 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.25);
    assert_eq!(value("vllm:num_requests_waiting"), 2.0);
    assert_eq!(value("vllm:generation_tokens_total"), 2.0);
    assert_eq!(value("vllm:inter_token_latency_seconds_count"), 1.0);
    assert_eq!(value("vllm:prefix_cache_hits_total"), 16.0);
    assert_eq!(value("vllm:prefix_cache_queries_total"), 20.0);
    assert_eq!(value("sluice_engine_tbt_seconds_count"), 4.0);
    assert_eq!(value("sluice_engine_tbt_seconds_sum"), 0.02);
    assert_eq!(value("sluice_engine_tbt_seconds_bucket{le=\"0.005\"}"), 4.0);
    assert_eq!(value("sluice_engine_tbt_seconds_bucket{le=\"0.002\"}"), 0.0);
    assert_eq!(value("sluice_delivered_tbt_seconds_count"), 4.0);
    assert_eq!(value("sluice_delivered_tbt_seconds_bucket{le=\"+Inf\"}"), 4.0);
    assert_eq!(value("sluice_stall_seconds_total"), 0.5);
    assert_eq!(value("sluice_plan_gap_ratio_count"), 2.0);
    assert_eq!(value("sluice_plan_gap_ratio_bucket{le=\"0.0\"}"), 1.0);
    assert_eq!(value("sluice_plan_gap_ratio_bucket{le=\"0.1\"}"), 1.0);
    assert_eq!(value("sluice_plan_gap_ratio_bucket{le=\"0.2\"}"), 2.0);
    assert_eq!(value("sluice_kv_stall_seconds_total"), 0.25);
    assert_eq!(value("sluice_kv_fetch_bytes_total"), 30.0);
    assert_eq!(value("sluice_kv_writeback_bytes_total"), 40.0);
    assert_eq!((value("sluice_offloaded_prompts_total"), value("sluice_prompt_buffer_bytes")), (5.0, 50.0));
    assert_eq!(value("sluice_memory_bytes{owner=\"kv\"}"), 12_345.0);
    assert_eq!((value("sluice_layers_remapped"), value("sluice_layers_lent")), (1.0, 3.0));
    assert_eq!(value("sluice_engine_hangs_total"), 1.0);
    assert_eq!((value("sluice_sidecar_hangs_total"), value("sluice_time_slice_skips_total")), (4.0, 5.0));
    assert_eq!(
        (value("sluice_time_slice_takeovers_total"), value("sluice_time_slice_losses_total")),
        (2.0, 3.0)
    );
    assert_eq!(value("sluice_time_slice_holder_overdue_seconds"), 1.5, "the last word on it");
    assert_eq!(value("sluice_copied_bytes_total"), 77.0);
    assert_eq!(value("sluice_moves_total{reason=\"remap\"}"), 2.0);
    assert_eq!(value("sluice_moved_bytes_total{reason=\"remap\"}"), 4096.0);
    assert_eq!(value("sluice_slo_attainment_ratio{objective=\"tbt\"}"), 0.75);
    assert_eq!(value("sluice_slo_tokens_total{objective=\"tbt\"}"), 4.0);
    assert_eq!(value("sluice_slo_missed_tokens_total{objective=\"tbt\"}"), 1.0);
}

#[test]
fn next_token_has_ten_percent_tolerance() {
    let slo = busy().slo();
    assert_eq!(
        (slo.tbt_target_ns, slo.tbt_attained_permille, slo.ttft_attained_permille),
        (50_000_000, Some(750), Some(1000))
    );
    let metrics = Metrics::new("tiny", &SloConfig::default());
    record_answer(&metrics, &[(2001, 1)]);
    assert_eq!((metrics.slo().ttft_attained_permille, metrics.slo().tbt_attained_permille), (Some(0), None));
}

/// Returns the lines of the metrics of one objective.
fn slo_lines(metrics: &Metrics, objective: &str) -> Vec<String> {
    let text = metrics.encode();
    let (_, samples) = parse(&text);
    let about = samples.iter().filter(|sample| sample.label("objective") == Some(objective));
    about.map(|sample| format!("{} {}", sample.name, sample.value)).collect()
}

fn slo_lines_for(share: &str, overdue: u32, tokens: u32, missed: u32) -> Vec<String> {
    vec![
        format!("sluice_slo_attainment_ratio {share}"),
        format!("sluice_overdue_tokens {overdue}"),
        format!("sluice_slo_tokens_total {tokens}"),
        format!("sluice_slo_missed_tokens_total {missed}"),
    ]
}

#[test]
fn overdue_tokens_are_exposed_and_counted_once() {
    let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
    let mut hung = metrics.track_first_token(ago(3));
    let waits = metrics.track_first_token(Instant::now());
    assert_eq!(slo_lines(&metrics, "ttft"), slo_lines_for("0", 1, 1, 1));
    let slo = metrics.slo();
    assert_eq!((slo.ttft_attained_permille, slo.ttft_overdue, slo.tbt_overdue), (Some(0), 1, 0));
    hung.on_written(1);
    assert_eq!(slo_lines(&metrics, "ttft"), slo_lines_for("0", 0, 1, 1));
    drop((hung, waits));
    assert_eq!(
        slo_lines(&metrics, "ttft"),
        slo_lines_for("0", 0, 1, 1),
        "what was not late when it left is no miss"
    );
}

#[test]
fn hung_stream_is_overdue_until_it_ends() {
    let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
    let key = metrics.recent().objectives.track_next(ago(1));
    let mut hung = PendingToken::new(metrics.clone(), key);
    assert_eq!(metrics.slo().tbt_attained_permille, None, "its client has not asked for more");
    hung.on_buffer_empty();
    assert_eq!(slo_lines(&metrics, "tbt"), slo_lines_for("0", 1, 1, 1));
    assert_eq!(metrics.slo().tbt_overdue, 1);
    hung.fail();
    assert_eq!(slo_lines(&metrics, "tbt"), slo_lines_for("0", 0, 1, 1));
}

#[test]
fn state_percentiles_separate_engine_and_delivery() {
    let metrics = busy();
    let engine = metrics.engine_tbt();
    assert_eq!(engine.samples, 4);
    assert!((5_000_000..5_400_000).contains(&engine.p50_ns), "{engine:?}");
    assert_eq!(metrics.delivered_tbt().samples, 4);
    assert!(metrics.delivered_tbt().p99_ns >= 56_000_000);
    assert_eq!(metrics.ttft().samples, 1);
}

#[test]
fn gpu_uuid_label_follows_directive() {
    let folder = tempfile::tempdir().expect("a folder");
    let directives = DirectiveStore::open(folder.path().join("directive.json"), Box::new(|_| Ok(())));
    let metrics = Metrics::new("tiny", &SloConfig::default()).with_directives(&directives);
    let uuids = || {
        metrics.set_state(&State::default());
        let text = metrics.encode();
        let infos = samples(&text).filter(|sample| sample.name == "sluice_tenant_info");
        infos.map(|info| info.label("uuid").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(uuids(), [Some(String::new())]);
    directives.put(DIRECTIVE.as_bytes()).expect("newer than none");
    assert_eq!(uuids(), [Some("GPU-5c2f6a1e-8a53-4b6e-9d0f-2f1d9b11e2a4".to_owned())]);
}

#[test]
fn reasons_cannot_grow_without_bound() {
    let metrics = Metrics::new("tiny", &SloConfig::default());
    (0..1000).for_each(|i| metrics.record_moves(&format!("made up {i}"), 1, 1));
    let text = metrics.encode();
    let series = samples(&text).filter(|sample| sample.name == "sluice_moves_total").count();
    assert_eq!(series, MOVE_REASONS_MAX + 1);
    let other = sum(&text, "sluice_moves_total", &[("reason", "other")]);
    assert_eq!(other, Some((1000 - MOVE_REASONS_MAX) as f64), "the rest is counted together");
}

#[test]
fn updown_gauges_follow_changes() {
    let metrics = Metrics::new("tiny", &SloConfig::default());
    metrics.deposits.add(5);
    metrics.deposits.add(-2);
    metrics.open_requests.add(1);
    assert_eq!(metrics.streams(), Streams { open: 1, deposit_tokens: 3 });
    assert!(metrics.encode().contains("\nsluice_deposit_tokens{model_name=\"tiny\"} 3\n"));
}

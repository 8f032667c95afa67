//! The state message against its committed form: names, shapes, versions.

use sluice_wire::message::ReadError;
use sluice_wire::state::{
    Activity, Direction, EngineHang, EngineState, EngineWork, Figures, GpuState, GrantState, KvState,
    MemoryState, Move, OwnerBytes, Percentiles, Phase, Queue, ReasonCount, RemapState, Residency,
    SharingState, SidecarHangs, Skip, SloState, State, Streams, Takeover, Tenant, TenantReport,
    TimeSliceState, TokenCounts, VERSION,
};

use super::golden;

const GOLDEN: &str = include_str!("../golden/state-v2.json");
/// The same state in the words of version 1.
const V1: &str = include_str!("../golden/state-v1.json");
/// Version 1 as sidecars wrote it before they had peers.
const V1_FIRST: &str = include_str!("../golden/state-v1-first.json");
const GPU: &str = include_str!("../golden/gpu-state-v2.json");
const GPU_V1: &str = include_str!("../golden/gpu-state-v1.json");

fn figures() -> Figures {
    let percentiles = |samples, p50_ns, p99_ns| Percentiles { samples, p50_ns, p99_ns };
    Figures {
        engine_tbt: percentiles(900, 8_100_000, 21_000_000),
        delivered_tbt: percentiles(880, 50_000_000, 50_400_000),
        ttft: percentiles(40, 120_000_000, 480_000_000),
        prefill_tokens_total: 5120,
        decode_tokens_total: 920,
        recomputed_tokens_total: 16,
        preemptions_total: 1,
        pauses_total: 4,
        kv_stall_ns_total: 1_250_000,
        steps_total: 610,
        moves_total: vec![
            ReasonCount { reason: "remap_own".into(), count: 2 },
            ReasonCount { reason: "revert".into(), count: 1 },
        ],
        link_messages_total: 1248,
        copied_bytes_total: 73_400_320,
        link_bytes_per_second: Some(8_589_934_592),
        t_transfer_ns: Some(30_517),
        t_compute_ns: Some(4_069),
        r_permille: Some(7_500),
    }
}

fn memory() -> MemoryState {
    MemoryState {
        capacity_bytes: 100_663_296,
        chunk_bytes: 65_536,
        overhead_bytes: 0,
        owners: OwnerBytes {
            weights_global_bytes: 8_388_608,
            weights_layers_bytes: 16_777_216,
            slots_bytes: 8_388_608,
            kv_bytes: 50_331_648,
            activation_bytes: 12_582_912,
            staging_bytes: 1_048_576,
            earmarked_bytes: 0,
            free_bytes: 3_145_728,
        },
        in_transit_bytes: 0,
    }
}

fn engine() -> EngineState {
    EngineState {
        pid: Some(4711),
        restarts: 1,
        attempt: 2,
        up_since_unix_ms: Some(1_764_000_000_500),
        lost_unix_ms: Some(1_764_000_000_400),
        failure: None,
        work: Some(EngineWork { during: "remapping".into(), waited_ms: 40, limit_ms: 2_000 }),
        hangs: 1,
        last_hang: Some(EngineHang {
            at_unix_ms: 1_764_000_000_390,
            during: "step".into(),
            waited_ms: 2_300,
            limit_ms: 2_250,
            alive: false,
        }),
    }
}

fn state() -> State {
    State {
        version: VERSION,
        at_unix_ms: 1_764_000_060_000,
        tenant: Tenant {
            namespace: "default".into(),
            name: "story".into(),
            model: "story".into(),
            gpu: "chat-0".into(),
        },
        phase: Phase::Active,
        phase_since_unix_ms: 1_764_000_001_000,
        sleep_ordered: false,
        idle_since_unix_ms: None,
        policy: "Oneiros".into(),
        remap: RemapState { alpha: 1, beta: 1, moving_layers: vec![1, 3], cap_layers: 2 },
        layers: vec![
            Residency::Resident,
            Residency::Moving { slot: 0 },
            Residency::Loading,
            Residency::Moving { slot: 0 },
        ],
        memory: memory(),
        kv: KvState {
            layer_blocks_total: 6144,
            layer_blocks_used: 4000,
            layer_blocks_cached: 1000,
            layer_blocks_free: 1144,
            layer_block_bytes: 8192,
            draining_chunks: 2,
            fragmentation_permille: 35,
            utilisation_permille: 651,
            host_layer_blocks_used: 96,
            host_layer_blocks_limit: 2048,
        },
        queue: Queue { waiting: 3, running: 8, preempted: 1 },
        streams: Streams { open: 11, deposit_tokens: 42 },
        figures: figures(),
        slo: SloState {
            ttft_target_ns: 2_000_000_000,
            tbt_target_ns: 50_000_000,
            window_seconds: 60,
            allowed_miss_permille: 10,
            ttft_attained_permille: Some(1000),
            tbt_attained_permille: Some(996),
            ttft_overdue: 1,
            tbt_overdue: 2,
            ttft_window: TokenCounts { tokens: 50, given_up: 3, asleep: 2 },
            tbt_window: TokenCounts { tokens: 880, given_up: 1, asleep: 0 },
        },
        engine: engine(),
        sidecar_hangs: Some(SidecarHangs { total: 2, at_unix_ms: 1_764_000_000_100, waited_ms: 12_400 }),
        moves: vec![Move {
            at_unix_ms: 1_764_000_030_000,
            reason: "remap_own".into(),
            detail: "alpha 0 -> 1".into(),
            layers: vec![1, 3],
            bytes: 4_194_304,
        }],
        peers: Some(peers()),
        activity: Activity {
            inactive_since_unix_ms: Some(1_764_000_058_000),
            last_used_unix_ms: Some(1_764_000_057_990),
            next_use_in_ms: Some(12_500),
            resident_since_unix_ms: None,
            lent_layers: 3,
        },
    }
}

fn peers() -> SharingState {
    let grant = |name: &str, direction, nonce, bytes| GrantState {
        namespace: "default".into(),
        name: name.into(),
        direction,
        nonce,
        bytes,
        expires_in_ms: 4_250,
    };
    SharingState {
        instance: 7_331,
        share_bytes: 100_663_296,
        wanted_share_bytes: 117_440_512,
        floor_bytes: 33_554_432,
        budget_bytes: 92_274_688,
        lendable_bytes: 4_194_304,
        held_bytes: 88_080_384,
        in_transit_bytes: 65_536,
        awaited_bytes: 131_072,
        waits_for: Some("131072 bytes of its share, which peers hold".into()),
        lent_bytes: 12_582_912,
        borrowed_bytes: 4_194_304,
        grants: vec![
            grant("code", Direction::Lent, 41, 12_582_912),
            grant("chat", Direction::Borrowed, u64::MAX, 4_194_304),
        ],
        time_slice: Some(TimeSliceState {
            holds: false,
            epoch: 90_210,
            waiting: 2,
            held_ns_total: 31_000_000_000,
            slices_total: 30_070,
            handover: Percentiles { samples: 512, p50_ns: 18_000, p99_ns: 95_000 },
            wait: Percentiles { samples: 512, p50_ns: 40_000_000, p99_ns: 101_000_000 },
            holder: Some("default/code".into()),
            holder_overdue_ms: 120,
            takeovers_total: 2,
            last_takeover: Some(Takeover {
                from: "default/code".into(),
                at_unix_ms: 1_764_000_059_000,
                overdue_ms: 260,
            }),
            lost_total: 1,
            skips_total: 3,
            last_skip: Some(Skip { of: "default/code".into(), at_unix_ms: 1_764_000_058_000 }),
        }),
        grant: Percentiles { samples: 12, p50_ns: 3_000_000, p99_ns: 9_000_000 },
        revoke: Percentiles { samples: 7, p50_ns: 4_000_000, p99_ns: 80_000_000 },
        wake: Percentiles { samples: 7, p50_ns: 15_000_000, p99_ns: 20_000_000 },
    }
}

fn gpu_state() -> GpuState {
    let unreachable = TenantReport::Unreachable {
        namespace: "default".into(),
        name: "code".into(),
        reason: "no answer within 500 ms".into(),
    };
    let state = State { tenant: Tenant { name: "chat".into(), ..Tenant::default() }, ..State::default() };
    GpuState { version: VERSION, tenants: vec![TenantReport::State(Box::new(state)), unreachable] }
}

#[test]
fn the_message_is_written_as_committed() {
    golden::written_as(&state(), GOLDEN);
    golden::written_as(&gpu_state(), GPU);
}

#[test]
fn a_message_of_an_older_writer_is_read_with_defaults_for_what_it_lacks() {
    let kv = KvState { host_layer_blocks_used: 0, host_layer_blocks_limit: 0, ..state().kv };
    let engine = EngineState { lost_unix_ms: None, work: None, hangs: 0, last_hang: None, ..state().engine };
    let figures = Figures { pauses_total: 0, kv_stall_ns_total: 0, ..figures() };
    let none = TokenCounts::default();
    let slo =
        SloState { ttft_overdue: 0, tbt_overdue: 0, ttft_window: none, tbt_window: none, ..state().slo };
    let (peers, activity) = (None, Activity::default());
    let older =
        State { version: 1, kv, engine, sidecar_hangs: None, figures, slo, peers, activity, ..state() };
    assert_eq!(State::from_json(V1_FIRST.as_bytes()).expect("still readable"), older);
}

#[test]
fn the_states_of_a_gpu_are_read_and_refused_by_their_version_like_one() {
    assert_eq!(GpuState::from_json(GPU.as_bytes()).expect("golden"), gpu_state());
    let added = golden::with(GPU, "/added", 1.into());
    assert_eq!(GpuState::from_json(&added).expect("still readable"), gpu_state());
    let newer = GpuState::from_json(&golden::with(GPU, "/version", 3.into())).expect_err("newer");
    assert!(matches!(newer, ReadError::NewerVersion { version: 3, known: 2 }), "{newer}");
}

#[test]
fn a_budget_is_share_and_grants() {
    assert!(peers().balances());
    let held_bytes = peers().budget_bytes + peers().in_transit_bytes;
    assert!(SharingState { held_bytes, ..peers() }.balances(), "bytes in transit are reported");
    assert!(!SharingState { held_bytes: held_bytes + 1, ..peers() }.balances());
    assert!(!SharingState { budget_bytes: 1, ..peers() }.balances());
    assert!(!SharingState { lent_bytes: u64::MAX, ..peers() }.balances());
    assert!(!SharingState { share_bytes: u64::MAX, ..peers() }.balances());
}

#[test]
fn the_committed_message_is_read() {
    assert_eq!(State::from_json(GOLDEN.as_bytes()).expect("golden"), state());
}

#[test]
fn version_1_is_read_as_the_same_state() {
    let work = Some(EngineWork { during: "re-backing".into(), waited_ms: 40, limit_ms: 2_000 });
    let older = State { version: 1, engine: EngineState { work, ..engine() }, ..state() };
    assert_eq!(State::from_json(V1.as_bytes()).expect("golden"), older);
    let mut older = gpu_state();
    older.version = 1;
    for report in &mut older.tenants {
        if let TenantReport::State(state) = report {
            state.version = 1;
        }
    }
    assert_eq!(GpuState::from_json(GPU_V1.as_bytes()).expect("golden"), older);
}

#[test]
fn a_message_with_the_old_and_the_new_name_of_a_field_is_refused() {
    let both = golden::with(GOLDEN, "/neighbourhood", serde_json::Value::Null);
    assert!(State::from_json(&both).is_err());
}

#[test]
fn a_reader_ignores_fields_that_it_does_not_know() {
    let mut value: serde_json::Value = serde_json::from_str(GOLDEN).expect("golden");
    value["added"] = 1.into();
    value["memory"]["owners"]["added"] = "x".into();
    value["moves"][0]["added"] = true.into();
    assert_eq!(State::from_json(value.to_string().as_bytes()).expect("still readable"), state());
}

#[test]
fn a_reader_takes_defaults_for_fields_that_an_older_writer_lacks() {
    let read = State::from_json(br#"{"version": 2, "queue": {"running": 2}}"#).expect("readable");
    let expected = State { queue: Queue { running: 2, ..Queue::default() }, ..State::default() };
    assert_eq!(read, expected);
}

#[test]
fn a_higher_major_is_refused_even_when_it_has_another_shape() {
    for text in
        [GOLDEN.replacen("\"version\": 2", "\"version\": 3", 1), r#"{"version": 3, "layers": 7}"#.into()]
    {
        let error = State::from_json(text.as_bytes()).expect_err("newer");
        assert!(matches!(error, ReadError::NewerVersion { version: 3, known: 2 }), "{error}");
        assert!(error.to_string().contains("version 3"), "{error}");
    }
}

#[test]
fn a_message_without_version_or_with_broken_fields_is_refused_and_the_field_named() {
    for text in ["", "{", "{\"version\": 1} x"] {
        assert!(matches!(State::from_json(text.as_bytes()), Err(ReadError::Malformed(_))), "{text}");
    }
    for (text, field) in [
        ("{}", "version"),
        ("[]", "."),
        ("{\"version\": \"1\"}", "version"),
        ("{\"version\": 0}", "version"),
        ("{\"version\": 1, \"layers\": [\"Lost\"]}", "layers[0]"),
        ("{\"version\": 1, \"memory\": {\"chunk_bytes\": -1}}", "memory.chunk_bytes"),
    ] {
        let error = State::from_json(text.as_bytes()).expect_err(text);
        assert!(matches!(&error, ReadError::Invalid(_)), "{text}: {error}");
        assert_eq!(error.field(), Some(field), "{text}: {error}");
    }
}

#[test]
fn the_capacity_equation_is_checked() {
    assert!(memory().balances());
    let one_less = MemoryState { overhead_bytes: 1, ..memory() };
    assert!(!one_less.balances());
    assert!(
        MemoryState { in_transit_bytes: 1, ..one_less.clone() }.balances(),
        "bytes in transit are reported"
    );
    assert!(!MemoryState { overhead_bytes: 2, in_transit_bytes: 1, ..one_less }.balances());
    let mut overflowing = memory();
    overflowing.owners.free_bytes = u64::MAX;
    assert!(!overflowing.balances());
}

//! Starts a tenant for tests: this process is the sidecar, and the engine is a real process.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_agent::engine_loop::{DeviceFailed, InjectedFaults, LoadError, TenantLoader, load};
use sluice_agent::engine_process::SpawnedEngine;
use sluice_agent::heartbeat::Heartbeat;
use sluice_agent::metrics::Metrics;
use sluice_agent::peers::admin_call::AdminCall;
use sluice_agent::scheduler_handle::{
    MessageSender, RequestHandle, RequestUpdate, SchedulerHandle, SchedulerMessage, Status, Submission,
};
use sluice_common::metrics_text::sum;
use sluice_common::random::Rng;
use sluice_link::server::Listener;
use sluice_ports::sampling::{Sampling, TokenLogprobs};
use sluice_scheduler::Finish;
use sluice_wire::State;
use sluice_wire::config::{
    CudaConfig, DebugConfig, EngineConfig, GpuConfig, LimitsConfig, ListenConfig, MemoryConfig,
    SidecarConfig, SloConfig,
};

use crate::machine::Machine;

/// Longest wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the path of a reference model or data set; `None` (reported on stderr) if it is absent.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SLUICE_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        // Not `eprintln!`, which the test harness captures.
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED {test}: {} is absent; set SLUICE_SHARED", path.display()).unwrap();
        return None;
    }
    Some(path)
}

/// Returns the path of a binary of the workspace.
pub fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = std::env::var_os("SLUICE_BIN_DIR").map(PathBuf::from);
    let folder = built.unwrap_or_else(|| own.parent().unwrap().parent().unwrap().to_owned());
    let path = folder.join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --bins", path.display());
    path
}

/// Returns a tenant of `model` with `memory_bytes` of device memory, as [`Machine::ample_bytes`] says. All memory that it
/// receives is poisoned.
pub fn config(model: &Path, memory_bytes: u64, policy: &str) -> SidecarConfig {
    let (free, machine) = (([127, 0, 0, 1], 0).into(), Machine::current());
    SidecarConfig {
        namespace: "default".into(),
        name: "tenant".into(),
        served_names: Vec::new(),
        model_path: model.to_owned(),
        dtype: None,
        max_model_len: None,
        gpu: GpuConfig {
            name: "gpu".into(),
            cuda: machine.choose(None, Some(CudaConfig::default())),
            memory_bytes: machine.ample_bytes(memory_bytes),
            chunk_bytes: machine.chunk_bytes(),
            link_bytes_per_second: None,
            link_to_host_bytes_per_second: None,
            host_memory_bytes: None,
        },
        gpu_ledger: None,
        policy: policy.into(),
        memory: MemoryConfig {
            guaranteed_kv_bytes: None,
            kv_limit_bytes: None,
            host_kv_bytes: 0,
            max_remapped_percent: 100,
        },
        slo: SloConfig::default(),
        order: "FirstCome".into(),
        pacing: "Immediate".into(),
        limits: LimitsConfig { max_sequences: 8, max_step_tokens: 64, ..LimitsConfig::default() },
        api_keys_file: None,
        listen: ListenConfig {
            serve: free,
            admin: free,
            probes: free,
            drain_hook: false,
            drain_key: None,
            admin_tls: None,
            peer_token_file: None,
        },
        runtime_dir: PathBuf::new(),
        engine: EngineConfig { threads: 2, ..EngineConfig::default() },
        hibernate_after_seconds: None,
        drain_seconds: 1,
        journal: None,
        tunables: BTreeMap::default(),
        debug: DebugConfig { force_remap: None, poison: true, no_prefix_cache: false },
    }
}

/// Returns faults that only poison the activations before every step, because no result may depend on their contents.
pub fn poisoned() -> InjectedFaults {
    let mut faults = InjectedFaults::default();
    faults.engine.poison_activations = true;
    faults
}

/// Returns [`poisoned`] with a delay per layer, so that a test can interrupt a step. A GPU has none: its steps are slow
/// enough, and those with a delay are no graphs.
pub fn slowed(layer_delay: Duration) -> InjectedFaults {
    let mut faults = poisoned();
    let layer_delay = Machine::current().choose(layer_delay, Duration::ZERO);
    faults.engine.layer_delay_ns = layer_delay.as_nanos() as u64;
    faults
}

/// A request of a test.
#[derive(Clone, Debug)]
pub struct TestRequest {
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    pub sampling: Sampling,
}

impl TestRequest {
    /// Requests exactly `max_tokens` greedy tokens, with log-probabilities.
    pub fn greedy(prompt: &[u32], max_tokens: u32) -> TestRequest {
        let sampling = Sampling { ignore_stop: true, logprobs: Some(5), ..Sampling::default() };
        TestRequest { prompt: prompt.to_vec(), max_tokens, sampling }
    }
}

/// The answer to a request, with every bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// Per token the bits of its log-probability, then the alternatives with theirs.
    pub bits: Vec<Vec<u32>>,
}

impl Answer {
    fn take(&mut self, token: u32, logprobs: Option<TokenLogprobs>) {
        self.tokens.push(token);
        let Some(TokenLogprobs { chosen, top }) = logprobs else { return };
        let top = top.into_iter().flat_map(|(token, logprob)| [token, logprob.to_bits()]);
        self.bits.push(std::iter::once(chosen.to_bits()).chain(top).collect());
    }
}

/// Asserts that two sets of answers are equal, and reports the first difference instead of both sets.
pub fn assert_same(found: &[Answer], expected: &[Answer], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: answers");
    for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
        let token = found.tokens.iter().zip(&expected.tokens).position(|(f, e)| f != e);
        assert_eq!(token, None, "{what}: request {request} has another token there");
        assert_eq!(found.tokens.len(), expected.tokens.len(), "{what}: length of request {request}");
        let bits = found.bits.iter().zip(&expected.bits).position(|(f, e)| f != e);
        assert_eq!(bits, None, "{what}: request {request} has other log-probabilities there");
        assert_eq!(found.bits.len(), expected.bits.len(), "{what}: log-probabilities of request {request}");
    }
}

/// A running tenant; it stops on drop.
pub struct Tenant {
    pub service: SchedulerHandle,
    metrics: Arc<Metrics>,
    inbox: MessageSender,
    engine_loop: Option<std::thread::JoinHandle<Result<(), DeviceFailed>>>,
    engine: Option<SpawnedEngine>,
    closed: Arc<AtomicBool>,
    pub heartbeat: Heartbeat,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Tenant {
    /// Starts a tenant and waits until it serves.
    pub fn start(config: SidecarConfig) -> Tenant {
        Tenant::start_with(config, poisoned())
    }

    /// As [`Tenant::start`], with faults.
    pub fn start_with(config: SidecarConfig, faults: InjectedFaults) -> Tenant {
        let tenant = Tenant::begin(config, faults).unwrap_or_else(|error| panic!("{error}"));
        tenant.wait_for(&Status::Serving);
        tenant
    }

    /// Starts a tenant up to the point where its weights are being copied.
    pub fn begin(mut config: SidecarConfig, faults: InjectedFaults) -> Result<Tenant, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        config.runtime_dir = folder.path().to_owned();
        let metrics = Arc::new(Metrics::new("tenant", &config.slo));
        let mut loaded = load(config)?;
        loaded.faults = faults;
        let socket = folder.path().join("engine.sock");
        let listener = Listener::bind(&socket).unwrap();
        let engine = SpawnedEngine::start(&binary("sluice-engine"), &socket).unwrap();
        let (inbox, messages) = MessageSender::new();
        let (status, watched) = tokio::sync::watch::channel(Status::Loading);
        let (closed, heartbeat) = (Arc::new(AtomicBool::new(false)), Heartbeat::default());
        let loading = TenantLoader {
            peers: None,
            directives: None,
            loaded: Arc::new(loaded),
            inbox: inbox.clone(),
            messages,
            status,
            metrics: metrics.clone(),
            listener,
            closed: closed.clone(),
            heartbeat: heartbeat.clone(),
        };
        let (opened, outcome) = std::sync::mpsc::channel();
        let engine_loop = std::thread::spawn(move || match loading.finish() {
            Err(error) => {
                opened.send(Some(error)).unwrap();
                Ok(())
            }
            Ok(engine_loop) => {
                opened.send(None).unwrap();
                engine_loop.run()
            }
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = SchedulerHandle::new(inbox.clone(), watched);
        let (engine_loop, engine) = (Some(engine_loop), Some(engine));
        let tenant = Tenant {
            service,
            metrics,
            inbox,
            engine_loop,
            engine,
            closed,
            heartbeat,
            runtime,
            _folder: folder,
        };
        let failed = outcome.recv_timeout(TIMEOUT).expect("loading ends");
        failed.map_or(Ok(tenant), Err)
    }

    /// Waits for a status.
    pub fn wait_for(&self, wanted: &Status) {
        self.wait_until(|status| status == wanted);
    }

    /// Waits for a status for which `reached` is true.
    pub fn wait_until(&self, reached: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.service.status();
        let reached = async {
            tokio::time::timeout(TIMEOUT, status.wait_for(reached)).await.map(|s| s.unwrap().clone())
        };
        self.runtime
            .block_on(reached)
            .unwrap_or_else(|_| panic!("stays {:?}", self.service.status().borrow()))
    }

    /// Waits until its scheduler's thread has completed one more iteration.
    pub fn wait_for_heartbeat(&self) {
        let (until, mut before) = (Instant::now() + TIMEOUT, None);
        loop {
            let age = self.heartbeat.age();
            if age.zip(before).is_some_and(|(now, before)| now < before) {
                return;
            }
            assert!(Instant::now() < until, "its thread stands still: {age:?} since the last beat");
            before = age;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the permanent failure of the device. The tenant cannot be used afterwards.
    pub fn failure(&mut self) -> DeviceFailed {
        let ended = self.engine_loop.take().unwrap().join();
        ended.expect("no invariant broke").expect_err("the device has failed")
    }

    /// Submits a request.
    pub fn submit(&self, wanted: &TestRequest) -> RequestHandle {
        let TestRequest { prompt, max_tokens, sampling } = wanted.clone();
        self.service.submit(Submission { prompt, max_tokens, sampling, priority: 0, salt: 0, paced: false })
    }

    /// Returns the next update of a request.
    pub fn next(&self, ticket: &mut RequestHandle) -> RequestUpdate {
        let next = async { tokio::time::timeout(TIMEOUT, ticket.next()).await };
        self.runtime.block_on(next).expect("an update in time").expect("an update before the room has gone")
    }

    /// Waits for one token.
    pub fn wait_for_token(&self, ticket: &mut RequestHandle) {
        let update = self.next(ticket);
        assert!(matches!(update, RequestUpdate::Token { .. }), "{update:?}");
    }

    /// Returns the whole answer to a request, and its end.
    pub fn finish(&self, mut ticket: RequestHandle) -> (Answer, Finish) {
        let mut answer = Answer::default();
        loop {
            match self.next(&mut ticket) {
                RequestUpdate::Token { token, logprobs, .. } => answer.take(token, logprobs),
                RequestUpdate::Finished(finish) => return (answer, finish),
                RequestUpdate::Refused(refusal) => panic!("{refusal}"),
            }
        }
    }

    /// Returns the whole answer to a request that must succeed.
    pub fn collect(&self, ticket: RequestHandle) -> Answer {
        let (answer, finish) = self.finish(ticket);
        assert!(matches!(finish, Finish::Length | Finish::Stop), "{finish:?}");
        answer
    }

    /// Serves requests concurrently.
    pub fn serve_concurrently(&self, wanted: &[TestRequest]) -> Vec<Answer> {
        let tickets: Vec<_> = wanted.iter().map(|wanted| self.submit(wanted)).collect();
        tickets.into_iter().map(|ticket| self.collect(ticket)).collect()
    }

    /// Serves requests one after the other.
    pub fn serve_in_order(&self, wanted: &[TestRequest]) -> Vec<Answer> {
        wanted.iter().map(|wanted| self.collect(self.submit(wanted))).collect()
    }

    /// Sends a call as the admin port does.
    pub fn call<T>(&self, question: impl FnOnce(tokio::sync::oneshot::Sender<T>) -> AdminCall) -> T {
        let asked = self.service.query(TIMEOUT, |answer| SchedulerMessage::Admin(question(answer)));
        self.runtime.block_on(asked).expect("the room answers")
    }

    /// Returns the sidecar's state. In debug builds the engine loop audits its backend for it.
    pub fn state(&self) -> State {
        self.runtime.block_on(self.service.state()).expect("the room is there")
    }

    /// Returns the sum of all series of a metric, for metrics that the state does not include.
    pub fn metric(&self, name: &str) -> f64 {
        sum(&self.metrics.encode(), name, &[]).unwrap_or(0.0)
    }

    /// Polls the state until `reached` is true.
    pub fn state_when(&self, what: &str, reached: impl Fn(&State) -> bool) -> State {
        let begun = Instant::now();
        loop {
            let state = self.state();
            if reached(&state) {
                return state;
            }
            assert!(begun.elapsed() < TIMEOUT, "not in time: {what}; now {state:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asserts that without requests no block is used except by the cache, and that the accounting balances.
    pub fn assert_nothing_leaks(&self, what: &str) -> State {
        self.state_when("all requests have ended", |s| s.queue.running + s.queue.waiting == 0);
        // Blocks that were prefetched for a step that does not run are freed once the copy is complete.
        let state = self.state_when("no block is in use", |state| state.kv.layer_blocks_used == 0);
        assert!(state.memory.balances(), "{what}: {:?}", state.memory);
        let kv = &state.kv;
        assert_eq!(kv.layer_blocks_total, kv.layer_blocks_cached + kv.layer_blocks_free, "{what}: {kv:?}");
        state
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let engine = self.engine.take();
        if let Some(engine) = &engine {
            // A normal exit is not an engine failure.
            engine.ending().store(true, Ordering::Relaxed);
        }
        self.closed.store(true, Ordering::Relaxed);
        self.inbox.send(SchedulerMessage::Stop);
        let ended = self.engine_loop.take().map(std::thread::JoinHandle::join);
        drop(engine);
        match ended {
            Some(ended) if !std::thread::panicking() => {
                ended.expect("no invariant broke").expect("the device did not fail");
            }
            _ => {}
        }
    }
}

/// Returns how often a reason applied.
pub fn event_count(state: &State, reason: &str) -> u64 {
    state.figures.moves_total.iter().find(|r| r.reason == reason).map_or(0, |r| r.count)
}

/// Returns the device memory with which the tenant of `config` has all layers resident and exactly `kv_bytes` of KV.
pub fn config_fitting_kv(config: &SidecarConfig, kv_bytes: u64) -> SidecarConfig {
    let mut ample = config.clone();
    ample.gpu.memory_bytes = Machine::current().ample_bytes(256 << 20);
    ample.gpu.link_bytes_per_second = None;
    ample.policy = "Recompute".into();
    ample.debug.force_remap = None;
    let owners = Tenant::start(ample).state().memory.owners;
    let fixed_bytes = owners.weights_global_bytes + owners.weights_layers_bytes + owners.activation_bytes;
    let mut config = config.clone();
    config.gpu.memory_bytes = fixed_bytes + kv_bytes.next_multiple_of(Machine::current().chunk_bytes());
    config
}

/// Returns a prompt of `tokens` tokens below `vocab`; the first ids are reserved for special tokens.
pub fn random_prompt(rng: &mut Rng, tokens: u64, vocab: u64) -> Vec<u32> {
    (0..tokens).map(|_| rng.between(3, vocab - 1) as u32).collect()
}

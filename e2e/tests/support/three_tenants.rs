//! Three tenants on a GPU with memory for their weights and little more: under load each needs memory of the
//! others.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_client::RequestError;
use sluice_wire::State;
use sluice_wire::state::SharingState;
use tokio::task::JoinHandle;

use super::tenant::{greedy, prompt};
use super::{Answer, Tenant, TestEnv, Up, Yaml, eventually, model};

/// 21.3 MiB of weights; a request of the load grows to 10 blocks of 8 KiB in each of 16 layers.
const MODEL: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 4 --intermediate 640";
/// The weights of all and 8 MiB more for each.
const MEMORY: &str = "88Mi";
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
/// Requests at once for one tenant: 11.2 MiB of KV, where it has 8 MiB of its own.
pub const LOAD: u32 = 9;
const PROMPT: u32 = 100;
const TOKENS: usize = 48;
const PAUSE: Duration = Duration::from_millis(5);
/// Limit for the return of all loans after a crash.
pub const RETURN_AFTER_CRASHES: Duration = Duration::from_secs(30);

/// The tenants, in one environment.
#[derive(Debug)]
pub struct ThreeTenants<'a> {
    /// Their parent process.
    pub up: Up<'a>,
    /// The tenants.
    pub tenants: [Tenant; 3],
}

/// Requests of a load that may be open.
pub type OpenLoad = Vec<JoinHandle<Result<Answer, RequestError>>>;

/// Results of the requests of a load, in order.
pub type Answers = Vec<Result<Answer, RequestError>>;

impl<'a> ThreeTenants<'a> {
    /// Starts them with time slices under `policy`.
    pub async fn start(world: &'a TestEnv, policy: &'static str) -> ThreeTenants<'a> {
        ThreeTenants::start_of(&model::bin_folder(), world, policy).await
    }

    /// Same as [`ThreeTenants::start`], with the sidecar and the engine in `binaries`.
    pub async fn start_of(binaries: &Path, world: &'a TestEnv, policy: &'static str) -> ThreeTenants<'a> {
        ThreeTenants::start_with(binaries, world, policy, "").await
    }

    /// Same as [`ThreeTenants::start_of`], with `more` in the `spec` of each.
    pub async fn start_with(
        binaries: &Path,
        world: &'a TestEnv,
        policy: &'static str,
        more: &str,
    ) -> ThreeTenants<'a> {
        let mut yaml = Yaml::pool(MEMORY);
        for (seed, name) in NAMES.into_iter().enumerate() {
            let folder = world.model(&format!("model-{name}"), &format!("{MODEL} --seed {seed}"));
            let spec =
                format!("pacing: {{mode: Immediate}}, memory: {{guaranteedKv: 2Mi}}, drainSeconds: 2{more}");
            yaml = yaml.tenant(name, &folder, ", maxModelLen: 256", &spec);
        }
        (yaml.link, yaml.chunk, yaml.policy) = (Some("2Gi"), Some("64Ki"), policy);
        yaml.sharing = Some("{mode: Temporal, temporal: {order: RoundRobin}}");
        yaml.remap = Some("{minResidenceMilliseconds: 0}");
        let mut up = world.up_of(binaries, &yaml.text(), &["--poison"]);
        let tenants = [up.ready(NAMES[0]).await, up.ready(NAMES[1]).await, up.ready(NAMES[2]).await];
        ThreeTenants { up, tenants }
    }

    /// States of all.
    pub async fn states(&self) -> [State; 3] {
        let [a, b, c] = &self.tenants;
        let (a, b, c) = tokio::join!(a.state(), b.state(), c.state());
        [a, b, c]
    }

    /// Returns the answers of each tenant to its load while the others are idle, and the observations.
    pub async fn baseline(&self) -> Vec<(Vec<Answer>, Observed)> {
        let mut all = Vec::new();
        for index in 0..self.tenants.len() {
            let (answers, seen) = self.watched(&[index]).await;
            all.push((answers.into_iter().flatten().map(Result::unwrap).collect(), seen));
        }
        all
    }

    /// Returns the answers of the tenants `busy` to a simultaneous load, and the observations of all three.
    pub async fn watched(&self, busy: &[usize]) -> (Vec<Answers>, Observed) {
        let on = AtomicBool::new(true);
        let load = async {
            let loads: Vec<_> = busy.iter().map(|index| begin(&self.tenants[*index])).collect();
            let mut answers = Vec::new();
            for load in loads {
                answers.push(ended(load).await);
            }
            on.store(false, Ordering::Relaxed);
            answers
        };
        tokio::join!(load, Observed::watch(&self.tenants, &on))
    }

    /// Loads all tenants until one is in a state. Returns the loads, that tenant and its state.
    pub async fn find_loaded_tenant(
        &self,
        what: &str,
        wanted: impl Fn(&State) -> bool,
    ) -> ([OpenLoad; 3], usize, State) {
        let mut loads = self.tenants.each_ref().map(begin);
        let (tenant, state) = self.find_in_loads(&mut loads, what, |_, state| wanted(state)).await;
        (loads, tenant, state)
    }

    /// Returns the first matching tenant, with its state. Loads that have all ended are sent
    /// again: on a busy machine a state may be over between two looks.
    pub async fn find_in_loads(
        &self,
        loads: &mut [OpenLoad; 3],
        what: &str,
        wanted: impl Fn(usize, &State) -> bool,
    ) -> (usize, State) {
        eventually(what, async || {
            if loads.iter().flatten().all(JoinHandle::is_finished) {
                *loads = self.tenants.each_ref().map(begin);
            }
            let mut states = self.states().await.into_iter().enumerate();
            states.find(|(index, state)| wanted(*index, state))
        })
        .await
    }

    /// Returns the peers of a tenant.
    pub fn others(&self, tenant: usize) -> Vec<&Tenant> {
        let others = self.tenants.iter().enumerate().filter(|(index, _)| *index != tenant);
        others.map(|(_, other)| other).collect()
    }

    /// Waits until all loans are returned: budgets are shares, and no tenant holds more.
    pub async fn are_all_loans_returned(&self, limit: Duration) {
        let home = |state: &State| {
            let place = tenant_index(state);
            (place.lent_bytes, place.borrowed_bytes, place.grants.len()) == (0, 0, 0)
        };
        let begun = Instant::now();
        let mut states = self.states().await;
        while !states.iter().all(home) {
            assert!(
                begun.elapsed() < limit,
                "loans are out after {limit:?}: {:#?}",
                reported_events(&states)
            );
            tokio::time::sleep(PAUSE * 10).await;
            states = self.states().await;
        }
        let sum = |of: fn(&State) -> u64| states.iter().map(of).sum::<u64>();
        assert_eq!(
            sum(|s| tenant_index(s).budget_bytes),
            sum(|s| tenant_index(s).share_bytes),
            "{:#?}",
            reported_events(&states)
        );
        for state in &states {
            assert!(
                tenant_index(state).balances()
                    && tenant_index(state).held_bytes <= tenant_index(state).budget_bytes,
                "{state:?}"
            );
        }
        eprintln!("all loans were home after {:?}", begun.elapsed());
    }
}

/// Sends all requests of the load.
pub fn begin(tenant: &Tenant) -> OpenLoad {
    let request = |seed| {
        let tenant = tenant.clone();
        tokio::spawn(async move { tenant.complete(&greedy(&prompt(seed, PROMPT), TOKENS)).await })
    };
    (0..LOAD).map(request).collect()
}

/// Whether requests of the tenant run or wait.
pub fn is_loaded(state: &State) -> bool {
    state.queue.running + state.queue.waiting > 0
}

/// Waits for the end of all.
pub async fn ended(load: OpenLoad) -> Answers {
    let mut answers = Vec::new();
    for request in load {
        answers.push(request.await.unwrap());
    }
    answers
}

/// Checks that every answer arrived and equals the one while the others were idle.
pub fn same(index: usize, answers: Answers, expected: &[Answer]) {
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let differ: Vec<_> = (0..answers.len()).filter(|at| answers[*at] != expected[*at]).collect();
    assert_eq!(differ, [0; 0], "tenant {index}: requests with other answers");
}

/// Describes states for a failure message.
pub fn reported_events(states: &[State]) -> Vec<String> {
    let events_of = |s: &State| {
        format!(
            "{} {:?} {:?} {:?} {:?}",
            s.tenant.name,
            s.phase,
            s.peers,
            s.figures.moves_total,
            s.moves.last()
        )
    };
    states.iter().map(events_of).collect()
}

/// Returns the part of a state about peers.
pub fn tenant_index(state: &State) -> &SharingState {
    state.peers.as_ref().expect("it shares its GPU")
}

/// How often a reason occurred.
pub fn events(state: &State, reason: &str) -> u64 {
    let mut all = state.figures.moves_total.iter();
    all.find(|event| event.reason == reason).map_or(0, |event| event.count)
}

/// Observations over all polls, per tenant.
#[derive(Debug, Default)]
pub struct Observed {
    /// Polls.
    pub polls: u32,
    /// Most bytes lent at one time.
    pub most_lent: [u64; 3],
    /// Most bytes borrowed at one time.
    pub most_borrowed: [u64; 3],
}

impl Observed {
    /// Polls while `on`. Skips a tenant that does not answer because it was killed.
    pub async fn watch(tenants: &[Tenant; 3], on: &AtomicBool) -> Observed {
        let mut seen = Observed::default();
        while on.load(Ordering::Relaxed) {
            for (index, tenant) in tenants.iter().enumerate() {
                if let Some(state) = tenant.try_state().await {
                    seen.check(index, &state);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        seen
    }

    /// Checks one poll of tenant `index`: its accounting must be consistent.
    pub fn check(&mut self, index: usize, state: &State) {
        let place = tenant_index(state);
        assert!(place.balances(), "{}: {place:?}", state.tenant.name);
        assert!(state.memory.balances(), "{}: {:?}", state.tenant.name, state.memory);
        let forever = place.grants.iter().filter(|grant| grant.expires_in_ms > 60_000);
        assert_eq!(forever.count(), 0, "{}: {place:?}", state.tenant.name);
        self.polls += 1;
        self.most_lent[index] = self.most_lent[index].max(place.lent_bytes);
        self.most_borrowed[index] = self.most_borrowed[index].max(place.borrowed_bytes);
    }
}

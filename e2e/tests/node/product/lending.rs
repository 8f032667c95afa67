//! Idle memory becomes KV of a loaded tenant; metrics and status agree about it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_e2e::cluster::within;
use sluice_types::Quantity;

use crate::installed::processes::{Stopped, container, kill};
use crate::installed::{Load, Product, TENANTS, value};

const CHAT: &str = TENANTS[0];
const CODE: &str = TENANTS[1];
/// As long as the requests that cause the loan may take.
const WAIT_LIMIT: Duration = Duration::from_secs(240);

/// Memory of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Memory {
    weights: u64,
    kv: u64,
    layers_away: u64,
}

impl Memory {
    fn has_lent_weights(self, before: Memory) -> bool {
        self.weights < before.weights && self.layers_away > before.layers_away
    }
}

/// The tenants of the test, and the addresses of their pods.
struct TenantPair<'a> {
    product: &'a Product<'a>,
    addresses: [String; 3],
}

impl Product<'_> {
    /// One tenant gets more requests than its own KV memory holds, while its peers are idle; then the peers get
    /// requests.
    pub async fn lends(&self) {
        let all = TenantPair { product: self, addresses: TENANTS.map(|name| self.address(name)) };
        let load = Load::new(self, CODE).await;
        let engine = container(&self.pod(CHAT), "engine").worker().expect("who is ready has an engine");
        let at_home = |now: &[Memory; 3]| now.iter().all(|one| one.layers_away == 0);
        let before = all.alike("all weights are at home", at_home).await;
        let is_lent = |now: &[Memory; 3]| {
            now[0].kv > before[0].kv && (1..3).any(|of| now[of].has_lent_weights(before[of]))
        };
        let seen = AtomicBool::new(false);
        let looks = async {
            let measured = async || is_lent(&all.measured().await).then_some(());
            within(WAIT_LIMIT, "weights of one become KV of another", measured).await;
            let engine = Stopped::stop(engine);
            all.alike("weights have become KV", is_lent).await;
            seen.store(true, Ordering::Relaxed);
            engine.go_on();
        };
        // On a busy machine the requests may run one after another and not need the KV of all at once, so the load
        // is repeated.
        tokio::join!(load.answered_until(self, CHAT, &seen), looks);
        for name in TENANTS {
            self.complete(name, 8).await;
        }
        let home = |now: &[Memory; 3]| at_home(now) && (0..3).all(|of| now[of].weights == before[of].weights);
        all.alike("all weights are at home again", home).await;
    }
}

impl Product<'_> {
    /// Kills the sidecar of a borrower: its requests end, its peers get their memory back, and it starts again.
    pub async fn takes_back(&self) {
        let all = TenantPair { product: self, addresses: TENANTS.map(|name| self.address(name)) };
        let load = Load::new(self, CODE).await;
        let golden = self.complete(CHAT, 64).await;
        let at_home = |now: &[Memory; 3]| now.iter().all(|one| one.layers_away == 0);
        let before = all.alike("all weights are at home", at_home).await;
        let sidecar = container(&self.pod(CHAT), "sidecar");
        let mut requests = load.sent(self, CHAT);
        let lent = async || {
            let now = all.measured().await;
            load.keep_sent(self, CHAT, &mut requests);
            (1..3).any(|of| now[of].has_lent_weights(before[of])).then_some(())
        };
        within(WAIT_LIMIT, "it borrows", lent).await;
        kill(sidecar.first().expect("it runs"));
        let open = requests.len();
        let whole = requests.join_all().await.into_iter().flatten();
        assert!(whole.count() < open, "it was killed in the middle of them");
        self.ready_again(CHAT, &|pod| container(pod, "sidecar").restarts == sidecar.restarts + 1).await;
        let home = |now: &[Memory; 3]| at_home(now) && (0..3).all(|of| now[of].weights == before[of].weights);
        for name in TENANTS {
            assert_eq!(self.complete(name, 64).await, golden, "{name}");
        }
        all.alike("all weights are at home again", home).await;
        self.borrows(CHAT, &all.addresses[0], &load).await;
    }
}

impl TenantPair<'_> {
    /// Waits until the status and the metrics of all tenants agree and match `wanted`.
    async fn alike(&self, what: &str, wanted: impl Fn(&[Memory; 3]) -> bool) -> [Memory; 3] {
        let alike = async || {
            let (reported, measured) = (self.reported_loans()?, self.measured().await);
            (reported == measured && wanted(&reported)).then_some(reported)
        };
        self.product.wait(&format!("{what}, and status and metrics agree"), alike).await
    }

    /// Returns the memory in the status; `None` if a status has none yet.
    fn reported_loans(&self) -> Option<[Memory; 3]> {
        let of = |name: &str| {
            let memory = self.product.tenant(name)["status"]["memory"].take();
            let bytes = |field: &str| {
                serde_json::from_value::<Quantity>(memory[field].clone())
                    .ok()
                    .map(|quantity| quantity.bytes())
            };
            let layers_away = memory["remappedLayers"].as_u64()?;
            Some(Memory { weights: bytes("weights")?, kv: bytes("kv")?, layers_away })
        };
        Some([of(TENANTS[0])?, of(TENANTS[1])?, of(TENANTS[2])?])
    }

    /// Returns the memory in the metrics.
    async fn measured(&self) -> [Memory; 3] {
        [self.measured_of(0).await, self.measured_of(1).await, self.measured_of(2).await]
    }

    async fn measured_of(&self, tenant: usize) -> Memory {
        let text = self.product.metrics(&self.addresses[tenant]).await;
        let sample =
            |metric: &str, labels: &[(&str, &str)]| value(&text, metric, TENANTS[tenant], labels) as u64;
        let bytes = |owner: &str| sample("sluice_memory_bytes", &[("owner", owner)]);
        let weights = ["weights_global", "weights_layers", "slots"].map(bytes).iter().sum();
        let layers_away = sample("sluice_layers_remapped", &[]) + sample("sluice_layers_lent", &[]);
        Memory { weights, kv: bytes("kv"), layers_away }
    }
}

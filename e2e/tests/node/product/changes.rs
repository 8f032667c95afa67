//! Changes to a running product: only necessary pod restarts, no cut stream, and no changed token.

use serde_json::{Value, json};

use crate::installed::admin::{Admin, Credential};
use crate::installed::pod::{is_ready, is_terminating, uid};
use crate::installed::processes::{container, kill};
use crate::installed::{Product, TENANTS};

const CHAT: &str = TENANTS[0];
const CODE: &str = TENANTS[1];
const SUMMARY: &str = TENANTS[2];
/// The only GPU of the pool.
const GPU: &str = "trial-shared-0";

/// Three serving tenants on one GPU, and their expected output.
struct Changes<'a> {
    product: &'a Product<'a>,
    operator: Credential,
    /// The 200 tokens after the prompt.
    golden: String,
    /// The pods before the changes.
    lives: Vec<String>,
}

impl Product<'_> {
    /// Makes all changes, one after another.
    pub async fn changes(&self) {
        // A tenant may be a victim a second after its last request.
        for name in TENANTS {
            self.change("modeltenant", name, &json!({"idle": {"afterSeconds": 1}}));
        }
        let golden = self.complete(CHAT, 200).await;
        let changes =
            Changes { product: self, operator: Credential::of_operator(self), golden, lives: self.lives() };
        for policy in ["Oneiros", "Recompute", "Unified"] {
            changes.another_policy_holds_from_the_next_step_on(policy).await;
        }
        changes.changed_priority_reaches_peers_and_reorders_victims().await;
        changes.another_way_to_share_is_a_new_epoch_to_which_all_go_together().await;
        changes.simultaneous_engine_crashes_are_one_fault().await;
        changes.a_tenant_that_idles_for_long_sleeps_and_a_request_wakes_it().await;
    }
}

impl Changes<'_> {
    /// Changes the policy with open streams, while the engine is stopped in the middle of them.
    async fn another_policy_holds_from_the_next_step_on(&self, policy: &str) {
        let (streams, engine) = self.product.held_streams(CHAT, 10, 200).await;
        self.product.change("gpupool", "trial", &json!({"policy": policy}));
        for name in TENANTS {
            self.directed(name, &format!("policy {policy}"), |directive| directive["policy"] == policy).await;
        }
        engine.go_on();
        streams.end_with(&self.golden).await;
        for name in TENANTS {
            let admin = self.admin(name);
            let held = async || (admin.state(&self.operator).await["policy"] == policy).then_some(());
            self.product.wait(&format!("{name}: {policy} is in force"), held).await;
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name} under {policy}");
        }
        assert_eq!(self.product.lives(), self.lives, "{policy} replaced a pod");
    }

    async fn changed_priority_reaches_peers_and_reorders_victims(&self) {
        let (streams, engine) = self.product.held_streams(CHAT, 10, 200).await;
        self.ranked(CODE, SUMMARY).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        self.gives_before(CODE, SUMMARY).await;
        self.ranked(SUMMARY, CODE).await;
        self.gives_before(SUMMARY, CODE).await;
        assert_eq!(self.product.lives(), self.lives, "a priority replaced a pod");
    }

    /// Changes the priorities of two tenants, and waits until they and their peer have the directive.
    async fn ranked(&self, low: &str, high: &str) {
        for (name, priority) in [(low, 10), (high, 20)] {
            self.product.change("modeltenant", name, &json!({"priority": priority}));
            self.directed(name, "its own priority", |directive| directive["tenant"]["priority"] == priority)
                .await;
            let of = |directive: &Value| {
                let others = directive["peers"].as_array().unwrap();
                others.iter().any(|one| one["name"] == name && one["priority"] == priority)
            };
            self.directed(CHAT, &format!("the priority of {name}"), of).await;
        }
    }

    /// Waits until the pool's status lists both as victims, in this order.
    async fn gives_before(&self, first: &str, second: &str) {
        let order = async || {
            let order = &self.gpu()["victimOrder"];
            let place = |name: &str| order.as_array()?.iter().position(|one| one == name);
            (place(first)? < place(second)?).then_some(())
        };
        self.product.wait(&format!("{first} is to give before {second}"), order).await;
    }

    async fn another_way_to_share_is_a_new_epoch_to_which_all_go_together(&self) {
        assert_eq!(self.gpu()["effectiveMode"], "Temporal");
        let before: Vec<Value> = TENANTS.iter().flat_map(|name| self.product.pods(name)).collect();
        let (streams, engine) = self.product.held_streams(CHAT, 20, 200).await;
        let spatial = json!([{"name": "shared", "count": 1, "sharing": {"mode": "Spatial"}}]);
        self.product.change("gpupool", "trial", &json!({"updatePolicy": "Disruptive", "gpus": spatial}));
        let terminates = async || self.product.pods(CHAT).iter().any(is_terminating).then_some(());
        self.product.wait("the old pod is ordered to end", terminates).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        let claim = format!("{GPU}-e2");
        for name in TENANTS {
            let moved = async || {
                let pod = self.product.pod(name);
                let uses = &pod["spec"]["resourceClaims"][0]["resourceClaimName"];
                (uses == claim.as_str() && !before.iter().any(|old| uid(old) == uid(&pod))).then_some(())
            };
            self.product.wait(&format!("{name} is on {claim}"), moved).await;
            self.product.condition(name, "Ready", "True").await;
            self.product.reached(name).await;
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name}, all at once");
        }
        let is_moved = async || {
            let claims = self.product.kubectl(&["get", "resourceclaims", "-o", "name"]);
            let gpu = self.gpu();
            let spatial = gpu["effectiveMode"] == "Spatial" && gpu["claimName"] == claim.as_str();
            (spatial && claims.trim() == format!("resourceclaim.resource.k8s.io/{claim}")).then_some(())
        };
        self.product.wait("the old claim is gone, and the pool shows the new one", is_moved).await;
        self.directed(CHAT, "the way to share", |directive| directive["sharing"] == "Spatial").await;
    }

    /// A fault of one MPS client ends all clients: the test kills each engine.
    async fn simultaneous_engine_crashes_are_one_fault(&self) {
        let lives = self.product.lives();
        let one = container(&self.product.pod(CHAT), "engine");
        kill(one.worker().unwrap());
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "the engine of one");
        self.product.condition(CHAT, "Degraded", "False").await;
        let engines = TENANTS.map(|name| container(&self.product.pod(name), "engine").worker().unwrap());
        engines.into_iter().for_each(kill);
        for name in TENANTS {
            let has_fault = async || {
                let all = self.product.tenant(name)["status"]["conditions"].clone();
                let degraded = all.as_array()?.iter().find(|one| one["type"] == "Degraded")?.clone();
                (degraded["status"] == "True" && degraded["reason"] == "MpsFault").then_some(())
            };
            self.product.wait(&format!("{name} reports the fault"), has_fault).await;
            self.product.condition(name, "Ready", "True").await;
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name} after the fault");
        }
        assert_eq!(self.product.lives(), lives, "a fault replaced a pod");
    }

    async fn a_tenant_that_idles_for_long_sleeps_and_a_request_wakes_it(&self) {
        let (lives, admin) = (self.product.lives(), self.admin(SUMMARY));
        let quick = json!({"idle": {"afterSeconds": 1, "hibernateAfterSeconds": 2}});
        self.product.change("modeltenant", SUMMARY, &quick);
        let state = async || self.product.tenant(SUMMARY)["status"]["slots"][0]["state"].clone();
        let sleeps = async || (state().await == "Hibernated").then_some(());
        self.product.wait("the status says that it sleeps", sleeps).await;
        let asleep = admin.state(&self.operator).await;
        assert_eq!(asleep["phase"], "Hibernated");
        assert!(is_ready(&self.product.pod(SUMMARY)), "who sleeps takes requests");
        assert_eq!(self.product.complete(SUMMARY, 200).await, self.golden, "after its sleep");
        assert_eq!(self.product.lives(), lives, "sleep replaced a pod");
    }

    /// Waits until a tenant's directive matches `wanted`.
    async fn directed(&self, tenant: &str, what: &str, wanted: impl Fn(&Value) -> bool) {
        let admin = self.admin(tenant);
        let is_directed = async || wanted(&admin.directive(&self.operator).await).then_some(());
        self.product.wait(&format!("{tenant} has a directive with {what}"), is_directed).await;
    }

    fn admin(&self, tenant: &str) -> Admin {
        Admin::of(self.product, tenant, &self.product.address(tenant))
    }

    /// Returns the status of the only GPU.
    fn gpu(&self) -> Value {
        self.product.get("gpupool", "trial")["status"]["gpus"][0].clone()
    }
}

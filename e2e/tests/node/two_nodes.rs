//! Two nodes: the tenants of a GPU run on one of them, and move to the other together when it is lost or drained.

use serde_json::Value;
use sluice_e2e::cluster::{SecondNode, on_two_nodes};
use sluice_e2e::hub::Hub;

use crate::installed::pod::{is_ready, is_terminating};
use crate::installed::{IMAGES, Load, PROMPT, Product, TENANTS, model};
use crate::rights::{self, Run};

const FIRST: &str = "node-0";

/// Tenants that move between two nodes.
struct Movers<'a> {
    product: &'a Product<'a>,
    second: &'a SecondNode<'a>,
    /// The 200 tokens after the prompt.
    golden: String,
}

impl<'a> Movers<'a> {
    /// Starts all tenants on the second node: the first one, with operator and control plane, is cordoned at that
    /// time.
    async fn start(
        product: &'a Product<'a>,
        second: &'a SecondNode<'a>,
        hub: &Hub,
        golden: Option<&str>,
    ) -> Movers<'a> {
        product.kubectl(&["uncordon", second.name()]);
        product.kubectl(&["cordon", FIRST]);
        product.start_tenants(hub).await;
        product.kubectl(&["uncordon", FIRST]);
        let whole = product.complete(TENANTS[0], 200).await;
        let said = format!("{PROMPT}{whole}");
        if let Some(golden) = golden {
            assert!(said.starts_with(golden) || golden.starts_with(&said), "{said:?} is not of {golden:?}");
        }
        Movers { product, second, golden: whole }
    }

    /// Pods of one claim share a node and its memory.
    async fn tenants_share_one_node(&self) {
        self.are_on(self.second.name(), 1).await;
        let load = Load::new(self.product, TENANTS[1]).await;
        self.product.borrows(TENANTS[0], &self.product.address(TENANTS[0]), &load).await;
    }

    /// Tenants leave a node that stops responding. Its old processes end when it is back.
    async fn tenants_leave_lost_node(&self) {
        self.second.disconnect();
        self.are_on(FIRST, 2).await;
        self.serve().await;
        assert_eq!(
            self.pods().iter().filter(|pod| is_terminating(pod)).count(),
            TENANTS.len(),
            "no pod was ended"
        );
        self.second.find();
        self.product
            .wait("the old pods end", async || {
                self.pods().iter().all(|pod| !is_terminating(pod)).then_some(())
            })
            .await;
        self.one_claim(2).await;
        self.serve().await;
    }

    /// Tenants leave a drained node after every open stream has finished.
    async fn tenants_leave_drained_node_after_streams(&self) {
        let (streams, engine) = self.product.held_streams(TENANTS[0], 20, 200).await;
        let drain =
            ["drain", FIRST, "--pod-selector=sluice.dev/tenant", "--delete-emptydir-data", "--timeout=2m"];
        let mut drain = self.product.node.api().kubectl(&drain);
        let drained = tokio::task::spawn_blocking(move || drain.output().unwrap());
        self.product
            .wait("they are ordered to end", async || self.pods().iter().any(is_terminating).then_some(()))
            .await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        let drained = drained.await.unwrap();
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
        self.are_on(self.second.name(), 3).await;
        self.product.kubectl(&["uncordon", FIRST]);
        self.one_claim(3).await;
        self.serve().await;
    }

    /// Waits until every tenant has a pod on that node and with that epoch of the claim, and its Service routes to
    /// it.
    async fn are_on(&self, node: &str, epoch: u32) {
        let claim = claim(epoch);
        let there = |pod: &&Value| {
            let spec = &pod["spec"];
            spec["nodeName"] == node
                && spec["resourceClaims"][0]["resourceClaimName"] == claim.as_str()
                && is_ready(pod)
                && !is_terminating(pod)
        };
        let all = async || (self.pods().iter().filter(there).count() == TENANTS.len()).then_some(());
        self.product.wait(&format!("all on {node} with {claim}"), all).await;
        for name in TENANTS {
            self.product.condition(name, "Ready", "True").await;
            self.product.reached(name).await;
        }
        let is_shown = async || {
            let gpu = &self.product.get("gpupool", "trial")["status"]["gpus"][0];
            (gpu["node"] == node && gpu["claimName"] == claim.as_str()).then_some(())
        };
        self.product.wait(&format!("the pool shows {node}"), is_shown).await;
    }

    /// Checks that every tenant gives the same answers as on the other node.
    async fn serve(&self) {
        for name in TENANTS {
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name}");
        }
    }

    /// Waits until the claims of other epochs are deleted.
    async fn one_claim(&self, epoch: u32) {
        let only = async || {
            let names = self.product.kubectl(&["get", "resourceclaims", "-o", "name"]);
            (names.trim() == format!("resourceclaim.resource.k8s.io/{}", claim(epoch))).then_some(())
        };
        self.product.wait("one claim", only).await;
    }

    fn pods(&self) -> Vec<Value> {
        TENANTS.iter().flat_map(|name| self.product.pods(name)).collect()
    }
}

fn claim(epoch: u32) -> String {
    format!("trial-shared-0-e{epoch}")
}

#[test]
fn tenants_of_a_gpu_share_a_node_and_leave_a_lost_or_drained_one_together() {
    on_two_nodes(async |node, second| {
        if IMAGES.iter().any(|image| second.image(image).is_none()) {
            return;
        }
        // The operator must run on the node that is not lost.
        let cordoned = node.api().kubectl(&["cordon", second.name()]).status().unwrap();
        assert!(cordoned.success());
        let Some(product) = Product::install_with(node, ",operator.nodeGraceSeconds=1").await else { return };
        let (folder, golden) = model();
        let hub = product.hub(&folder).await;
        let movers = Movers::start(&product, second, &hub, golden.as_deref()).await;
        movers.tenants_share_one_node().await;
        movers.tenants_leave_lost_node().await;
        movers.tenants_leave_drained_node_after_streams().await;
        rights::end_of(Run::TwoNodes, &product);
        product.end();
    });
}

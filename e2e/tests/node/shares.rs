//! A tenant is added to a GPU whose memory is fully assigned, and a cap changes: the running tenants adjust, no pod
//! is replaced, and no container restarts. The operator only manages their namespace, with Roles.

use reqwest::Method;
use serde_json::Value;
use sluice_e2e::cluster::on_node_exclusive;

use crate::installed::admin::{Admin, Credential};
use crate::installed::{Product, TENANTS, model, pool, tenant};

const CHAT: &str = TENANTS[0];
const SUMMARY: &str = TENANTS[2];
const CHUNK: u64 = 64 << 10;

impl Product<'_> {
    /// Returns the state of a tenant's sidecar.
    async fn reported_shares(&self, tenant: &str, who: &Credential) -> Value {
        let admin = Admin::of(self, tenant, &self.address(tenant));
        let (status, body) = admin.ask(who, Method::GET, "/v1/state", None).await.unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns the shares of these tenants, once each has the share that it was assigned.
    async fn shares(&self, tenants: &[&str], who: &Credential) -> Vec<u64> {
        let mut shares = Vec::new();
        for name in tenants {
            let dealt = async || {
                let admin = Admin::of(self, name, &self.address(name));
                let dealt = admin.directive_if_given(who).await?["tenant"]["share_bytes"].as_u64()?;
                let place = self.reported_shares(name, who).await["peers"].take();
                (place["share_bytes"] == dealt && place["wanted_share_bytes"] == dealt).then_some(dealt)
            };
            shares.push(self.wait(&format!("{name} has what it was dealt"), dealt).await);
        }
        shares
    }

    /// The operator has rights on pods in its tenants' namespace only.
    fn has_rights_only_here(&self) {
        let operator = "--as=system:serviceaccount:sluice-system:sluice-operator";
        let may = |namespace: &str| {
            let asked = ["auth", "can-i", "patch", "pods", operator, "-n", namespace];
            let output = self.node.api().kubectl(&asked).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!([may(&self.namespace), may("default")], ["yes", "no"]);
    }

    /// Returns the uids of the pods of these tenants, and asserts that no container was restarted.
    fn first_lives(&self, tenants: &[&str]) -> Vec<String> {
        let uid = |tenant: &&str| {
            let pod = self.pod(tenant);
            let lists = ["initContainerStatuses", "containerStatuses"];
            let all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
            let restarts: Vec<_> = all.map(|one| one["restartCount"].as_u64().unwrap()).collect();
            assert!(
                restarts.len() >= 2 && restarts.iter().all(|count| *count == 0),
                "{tenant}: {restarts:?}"
            );
            pod["metadata"]["uid"].as_str().unwrap().to_owned()
        };
        tenants.iter().map(uid).collect()
    }
}

#[test]
fn a_tenant_comes_to_a_gpu_that_is_dealt_out_and_a_cap_changes_and_every_pod_stays() {
    on_node_exclusive(async |node| {
        let Some(product) = Product::install_for_its_namespace(node).await else { return };
        let (folder, _) = model();
        let hub = product.hub(&folder).await;
        product.apply(&[pool(1)]);
        let there = &TENANTS[..2];
        product.start(&[there[0], there[1]].map(|name| tenant(name, hub.endpoint()))).await;
        let operator = Credential::of_operator(&product);
        let all: u64 = product.shares(there, &operator).await.iter().sum();
        assert!(all > (15 << 20) - 2 * CHUNK, "two have the GPU between them: {all}");
        let (lives, said) = (product.first_lives(there), product.complete(CHAT, 64).await);

        product.apply(&[tenant(SUMMARY, hub.endpoint())]);
        product.condition(SUMMARY, "Ready", "True").await;
        product.reached(SUMMARY).await;
        assert_eq!(product.complete(SUMMARY, 64).await, said, "of the same model");
        let shares = product.shares(&TENANTS, &operator).await;
        assert!(
            shares.iter().sum::<u64>() <= 15 << 20 && shares.iter().all(|share| *share < all / 2),
            "{shares:?}"
        );
        let mut lives = lives;
        lives.extend(product.first_lives(&[SUMMARY]));
        assert_eq!(product.first_lives(&TENANTS), lives, "those that ran made room as they ran");

        let before = product.reported_shares(CHAT, &operator).await;
        assert!(before["remap"]["cap_layers"].as_u64() > Some(0), "{before}");
        product.kubectl(&[
            "patch",
            "modeltenant",
            CHAT,
            "--type=merge",
            "-p",
            r#"{"spec":{"memory":{"maxRemappedPercent":0}}}"#,
        ]);
        let capped = async || {
            (product.reported_shares(CHAT, &operator).await["remap"]["cap_layers"] == 0).then_some(())
        };
        product.wait("the cap is in force", capped).await;
        assert_eq!(product.complete(CHAT, 64).await, said);
        product.condition(CHAT, "Ready", "True").await;
        assert_eq!(product.first_lives(&TENANTS), lives, "a cap comes by directive, not at the start");
        product.has_rights_only_here();
        // Its rights are deleted with the namespace, perhaps before the pool.
        product.kubectl(&["delete", "modeltenants,gpupools", "--all", "--wait"]);
        product.end();
    });
}

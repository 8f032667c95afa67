//! The chart with serving tenants: upgraded from another version, uninstalled with its hooks, and installed again;
//! then their namespace is deleted.

mod crds;

use std::path::Path;
use std::process::Command;

use reqwest::Method;
use serde_json::Value;
use sluice_e2e::cluster::{on_node_exclusive, skipped};
use sluice_e2e::hub::Hub;

use crate::installed::admin::{Admin, Credential};
use crate::installed::pod::{is_terminating, uid};
use crate::installed::processes::container;
use crate::installed::{IMAGES, Load, Product, SYSTEM, TENANTS, chart, model};
use crate::rights::{self, Run};

/// Tag of the same images as another version.
const NEXT: &str = "next";
/// Folder in which the driver records its prepared claims.
const PREPARED: &str = "var/lib/kubelet/plugins/sluice.dev/claims";

/// Creates a chart like a previous release: this tree's with an older version, another default, an object that no
/// longer exists, without two admission policies, and with a CRD that lacks a rule and a field.
fn older(folder: &Path) {
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(folder).status().unwrap();
    assert!(copied.success());
    let own = folder.join("sluice");
    let change = |file: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(own.join(file)).unwrap();
        assert!(text.contains(from), "{file} has no {from:?}");
        std::fs::write(own.join(file), text.replacen(from, to, 1)).unwrap();
    };
    change("Chart.yaml", "\nversion: ", "\nversion: 0.0.1-before.");
    change("values.yaml", "leaseSeconds: 15", "leaseSeconds: 10");
    std::fs::remove_file(own.join("templates/admission.yaml")).unwrap();
    crds::make_older(&own);
    let gone = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sluice-before\n  namespace: {{ .Release.Namespace }}\n";
    std::fs::write(own.join("templates/before.yaml"), gone).unwrap();
}

/// Tenants during upgrades and uninstallations of the chart.
struct PodInstances<'a> {
    product: &'a Product<'a>,
    golden: String,
    pods: Vec<String>,
}

impl<'a> PodInstances<'a> {
    async fn start(product: &'a Product<'a>, hub: &Hub) -> PodInstances<'a> {
        product.start_tenants(hub).await;
        let golden = product.complete(TENANTS[0], 200).await;
        PodInstances { product, golden, pods: product.lives() }
    }

    async fn an_upgrade_replaces_no_pod_and_cuts_no_stream(&self) {
        assert!(self.has("configmap", "sluice-before") && !self.has_policy());
        let (streams, engine) = self.product.held_streams(TENANTS[0], 20, 200).await;
        self.product.release("upgrade", &chart(), &[]);
        engine.go_on();
        streams.end_with(&self.golden).await;
        assert!(!self.has("configmap", "sluice-before") && self.has_policy());
        self.are_reconciled().await;
    }

    /// Upgrades to other images and back: all pods are replaced at the same time, each after its streams have
    /// finished.
    async fn other_images_replace_every_pod_and_cut_no_stream(&mut self) {
        let tags = IMAGES.map(|image| format!("images.{image}.tag={NEXT}"));
        self.replaced_by(NEXT, || self.product.release("upgrade", &chart(), &["--set", &tags.join(",")]))
            .await;
        let back = ["rollback", "sluice", "--namespace", SYSTEM, "--wait", "--timeout", "3m"];
        self.replaced_by(env!("CARGO_PKG_VERSION"), || drop(self.product.helm(&back))).await;
        self.pods = self.product.lives();
    }

    async fn replaced_by(&self, version: &str, change: impl FnOnce()) {
        let before: Vec<Value> = TENANTS.iter().flat_map(|name| self.product.pods(name)).collect();
        let (streams, engine) = self.product.held_streams(TENANTS[0], 20, 200).await;
        change();
        let terminates = async || self.product.pods(TENANTS[0]).iter().any(is_terminating).then_some(());
        self.product.wait("the old pod is ordered to end", terminates).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        for name in TENANTS {
            let is_new = |pod: &Value| !before.iter().any(|old| uid(old) == uid(pod));
            self.product.ready_again(name, &is_new).await;
            let spec = self.product.pod(name)["spec"].take();
            let images = [&spec["initContainers"], &spec["containers"]];
            let images = images.into_iter().filter_map(Value::as_array).flatten();
            let of_version = |one: &Value| one["image"].as_str().unwrap().ends_with(&format!(":{version}"));
            assert!(images.into_iter().all(of_version), "{name} is of {version}: {spec}");
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name} of {version}");
        }
    }

    async fn without_the_chart_tenants_serve_and_the_next_release_adopts_them(&self) {
        let before = self.fences().await;
        let (streams, engine) = self.product.held_streams(TENANTS[0], 20, 200).await;
        self.product.uninstall();
        let kinds = ["-n", SYSTEM, "get", "deployments,daemonsets,jobs,pods", "-o", "name"];
        let none = async || self.product.kubectl(&kinds).is_empty().then_some(());
        self.product.wait("nothing of the chart is left", none).await;
        assert_eq!(self.finalizers(), Value::Null, "no operator is there to take them off");
        assert_eq!(self.product.lives(), self.pods);
        engine.go_on();
        streams.end_with(&self.golden).await;

        let (streams, engine) = self.product.held_streams(TENANTS[0], 20, 200).await;
        self.product.release("install", &chart(), &[]);
        self.are_reconciled().await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        let load = Load::new(self.product, TENANTS[1]).await;
        // The Lease was deleted with the chart: the next leader must exceed the fences of the last one.
        let follow = async || {
            let now = self.fences().await;
            now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
        };
        self.product.wait("all follow the new leader", follow).await;
        self.product.borrows(TENANTS[0], &self.product.address(TENANTS[0]), &load).await;
        assert_eq!(self.product.lives(), self.pods);
    }

    /// Returns epoch and sequence of each tenant's directive; `None` = none received yet.
    async fn fences(&self) -> Vec<Option<(u64, u64)>> {
        let operator = Credential::of_operator(self.product);
        let mut all = Vec::new();
        for name in TENANTS {
            let admin = Admin::of(self.product, name, &self.product.address(name));
            let (status, body) = admin.ask(&operator, Method::GET, "/v1/directive", None).await.unwrap();
            let directive: Value = serde_json::from_str(&body).unwrap();
            let part = |name: &str| directive[name].as_u64().expect("a directive has a place");
            all.push(status.is_success().then(|| (part("epoch"), part("sequence"))));
        }
        all
    }

    async fn a_namespace_that_is_deleted_ends_and_leaves_nothing(&self) {
        let namespace = self.product.namespace.as_str();
        self.product.kubectl(&["delete", "namespace", namespace, "--wait", "--timeout=2m"]);
        let kinds = "gpupools,modeltenants,resourceclaims";
        // Other namespaces have their own claims.
        let all = self.product.kubectl(&["get", kinds, "-A", "--no-headers"]);
        let left: Vec<&str> = all.lines().filter(|line| line.starts_with(namespace)).collect();
        assert_eq!(left, [""; 0]);
        let released = async || (self.prepared() == 0).then_some(());
        self.product.wait("the driver has given everything back", released).await;
    }

    /// Waits until an operator has reconciled the tenants: it observes the change of a spec, and no pod is
    /// replaced.
    async fn are_reconciled(&self) {
        let next = self.product.tenant(TENANTS[2])["spec"]["priority"].as_i64().unwrap_or(100) + 1;
        self.product.change("modeltenant", TENANTS[2], &serde_json::json!({"priority": next}));
        let seen = async || {
            let finalizers = serde_json::json!(["sluice.dev/tenants"]);
            (self.is_observed(TENANTS[2]) && self.finalizers() == finalizers).then_some(())
        };
        self.product.wait("an operator looks after them", seen).await;
        self.product.condition(TENANTS[2], "Ready", "True").await;
        assert_eq!(self.product.lives(), self.pods, "a pod was replaced");
    }

    /// Whether the status of a tenant is of its current spec.
    fn is_observed(&self, tenant: &str) -> bool {
        let tenant = self.product.tenant(tenant);
        tenant["status"]["observedGeneration"] == tenant["metadata"]["generation"]
    }

    fn finalizers(&self) -> Value {
        self.product.get("gpupool", "trial")["metadata"]["finalizers"].clone()
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        let found = ["-n", SYSTEM, "get", kind, name, "-o", "name", "--ignore-not-found"];
        !self.product.kubectl(&found).is_empty()
    }

    fn has_policy(&self) -> bool {
        let all = self.product.kubectl(&["get", "validatingadmissionpolicies", "-o", "name"]);
        all.contains("sluice-devices-slices")
    }

    /// Counts the claims that the driver has prepared.
    fn prepared(&self) -> usize {
        let pods = ["-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/name=sluice-devices", "-o", "json"];
        let pods: Value = serde_json::from_str(&self.product.kubectl(&pods)).unwrap();
        let driver = container(&pods["items"][0], "devices").first().expect("the driver runs");
        let folder = format!("/proc/{}/root/{PREPARED}", driver.as_raw_nonzero());
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder}: {e}")).count()
    }
}

#[test]
fn tenants_outlive_an_upgrade_and_the_chart_and_go_with_their_namespace() {
    on_node_exclusive(async |node| {
        if !node.api().is_own_cluster() {
            return skipped("a release of another owner is not replaced");
        }
        let Some(product) = Product::prepare(node, ",hooks.keepTenants=true").await else { return };
        let (folder, _) = model();
        let before = tempfile::tempdir().unwrap();
        older(before.path());
        // Other field managers own the differing fields of the current CRDs. From here on only helm owns them.
        let adopt = ["--take-ownership", "--force-conflicts"];
        product.release("install", &before.path().join("sluice"), &adopt);
        let hub = product.hub(&folder).await;
        let mut lives = PodInstances::start(&product, &hub).await;
        lives.a_tenant_comes_before_the_rule_that_it_breaks();
        lives.an_upgrade_replaces_no_pod_and_cuts_no_stream().await;
        lives.the_upgrade_brought_the_rule_and_a_field_and_shut_nobody_out().await;
        for image in IMAGES {
            node.tag(&node.image(image).unwrap(), &format!("sluice.dev/{image}:{NEXT}"));
        }
        lives.other_images_replace_every_pod_and_cut_no_stream().await;
        lives.without_the_chart_tenants_serve_and_the_next_release_adopts_them().await;
        lives.a_namespace_that_is_deleted_ends_and_leaves_nothing().await;
        product.uninstall();
        rights::end_of(Run::Releases, &product);
    });
}

//! Models from the storage of a cluster: a volume, a bucket that requires a key, an image, or a cache of a hub.

mod bucket;
pub mod image;
mod signature;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use sluice_e2e::cluster::on_node_exclusive;
use sluice_e2e::hub::{COMMIT, Hub, WEIGHTS};

use crate::installed::pod::{name, uid};
use crate::installed::{PROMPT, Product, model, pool, tenant};
use crate::rights::{self, Run};

/// The tenant whose model is cached on a volume.
const CACHED: &str = "cached";
/// Token of a private repository.
const TOKEN: &str = "hf_of_tests";
/// Name of the image with the model.
const IMAGE: &str = "models.example/story:1";

fn with_source(name: &str, source: Value) -> Value {
    let mut tenant = tenant(name, "");
    tenant["spec"]["model"]["source"] = source;
    tenant
}

/// Returns a volume of this node with the contents of `folder`, and the claim `name` on it.
fn volume(namespace: &str, name: &str, mode: &str, folder: &Path) -> [Value; 2] {
    let size = json!({"storage": "1Gi"});
    let metadata = json!({"name": format!("{name}-{namespace}")});
    let claim = json!({"namespace": namespace, "name": name});
    let spec = json!({"capacity": size, "accessModes": [mode], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder}, "claimRef": claim});
    let wanted = json!({"accessModes": [mode], "storageClassName": "", "resources": {"requests": size}});
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted}),
    ]
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Creates a folder with this mode, independent of the umask.
fn folder(path: &Path, mode: u32) {
    std::fs::create_dir(path).unwrap();
    open(path, mode);
}

impl Product<'_> {
    /// Starts two hubs: one cuts the first download of weights, and one reports a wrong digest of them.
    async fn faulty_hubs(&self, story: &Path) -> [Hub; 2] {
        let [cuts, lies] = [self.hub(story).await, self.hub(story).await];
        cuts.break_off(1);
        lies.corrupt();
        [cuts, lies]
    }

    /// Deletes the pod of a tenant's slot. The next one uses the cached model.
    async fn starts_again_without_a_download(&self, tenant: &str, hub: &Hub) {
        assert_eq!(hub.downloads(), [""], "the first pod downloads");
        let (said, before) = (self.complete(tenant, 32).await, self.pod(tenant));
        self.kubectl(&["delete", "pod", &name(&before), "--wait"]);
        self.ready_again(tenant, &|pod| uid(pod) != uid(&before)).await;
        assert_eq!(self.complete(tenant, 32).await, said);
        assert_eq!(hub.downloads(), [""], "it is in the cache");
    }

    /// Weights that differ from their source are never served, and the status reports them.
    async fn is_not_served(&self, tenant: &str) {
        let is_reported = async || {
            let conditions = self.tenant(tenant)["status"]["conditions"].take();
            let conditions = conditions.as_array()?;
            let has_message = conditions.iter().any(|one| {
                one["message"]
                    .as_str()
                    .is_some_and(|words| words.contains("but the source reports 0000000000"))
            });
            // Ready is Unknown while the container restarts.
            let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
            assert!(!conditions.iter().any(ready), "{conditions:?}");
            has_message.then_some(())
        };
        self.wait(&format!("{tenant}: a digest that is not the one of its source"), is_reported).await;
    }

    /// In a namespace with a quota of no pods, the status has the message of the API server.
    async fn quota_is_reported(&self, tenant: &Value) {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}}});
        self.apply(&[quota]);
        let counts = async || (!self.get("resourcequota", "none")["status"]["hard"].is_null()).then_some(());
        self.wait("the quota counts", counts).await;
        self.apply(std::slice::from_ref(tenant));
        let name = tenant["metadata"]["name"].as_str().unwrap();
        let is_reported = async || {
            let ready = self.condition_of(name, "Ready")?;
            ready["message"]
                .as_str()
                .is_some_and(|words| words.contains("exceeded quota: none"))
                .then_some(())
        };
        self.wait("the refusal of its pod is reported", is_reported).await;
        self.kubectl(&["delete", "modeltenant", name, "--wait"]);
        self.kubectl(&["delete", "resourcequota", "none", "--wait"]);
    }

    /// Returns the tenant of an image if Kubernetes mounts images, which it does by default from 1.36 on. Otherwise
    /// checks that its status reports that.
    async fn if_mounted(&self, tenant: Value) -> Option<Value> {
        let version = self.node.api().client().await.apiserver_version().await.unwrap();
        if version.minor.parse::<u32>().unwrap() >= 36 {
            return Some(tenant);
        }
        self.apply(std::slice::from_ref(&tenant));
        self.refused_for(tenant["metadata"]["name"].as_str().unwrap(), "ImageVolumesUnsupported").await;
        None
    }

    /// Checks that the status of a tenant has the HTTP status with which its source refused it.
    async fn is_refused(&self, tenant: &str, status: &str) {
        let words = self.refused_for(tenant, "ModelUnreadable").await;
        assert!(words.contains(status), "{words}");
    }

    /// Returns the message of a tenant that is refused for this reason.
    async fn refused_for(&self, tenant: &str, reason: &str) -> String {
        self.condition(tenant, "Accepted", "False").await;
        let accepted = self.condition_of(tenant, "Accepted").unwrap();
        assert_eq!(accepted["reason"], reason, "{accepted}");
        accepted["message"].as_str().unwrap().to_owned()
    }
}

/// Returns a Secret with these values.
fn secret(name: &str, values: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})
}

/// Returns the same tenant with another name.
fn renamed(tenant: &Value, name: &str) -> Value {
    let mut tenant = tenant.clone();
    tenant["metadata"]["name"] = name.into();
    tenant
}

/// Copies a model with read permission for every user.
fn copy(model: &Path, to: &Path) {
    open(to.parent().unwrap(), 0o755);
    folder(to, 0o755);
    for entry in std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap()) {
        let file = to.join(entry.file_name());
        std::fs::copy(entry.path(), &file).unwrap();
        open(&file, 0o644);
    }
}

#[test]
fn a_model_comes_from_a_volume_a_bucket_or_an_image() {
    on_node_exclusive(async |node| {
        // The volume and the image are on this machine.
        if !node.api().is_own_cluster() {
            return;
        }
        let Some(product) = Product::install(node).await else { return };
        let (story, golden) = model();
        let home = tempfile::tempdir().unwrap();
        copy(&story, &home.path().join("story"));
        image::write(&home.path().join("image.tar"), IMAGE, &story, "models/story");
        node.import(&home.path().join("image.tar")).expect("the node is ours");
        folder(&home.path().join("cache"), 0o777);
        let endpoint = bucket::start(&node.address_for_pods().await, &story);
        let hub = product.hub(&story).await;

        product.apply(&volume(&product.namespace, "models", "ReadOnlyMany", home.path()));
        product.apply(&volume(&product.namespace, "cache", "ReadWriteOnce", &home.path().join("cache")));
        let keys = |secret: &str| json!({"accessKeyId": bucket::READER.key, "secretAccessKey": secret});
        product.apply(&[
            secret("keys", &keys(bucket::READER.secret)),
            secret("wrong-keys", &keys("another one")),
            secret("token", &json!({"token": TOKEN})),
            secret("wrong-token", &json!({"token": "hf_another"})),
        ]);
        product.apply(&[pool(2)]);
        let of_volume = json!({"type": "PersistentVolumeClaim",
            "persistentVolumeClaim": {"claimName": "models", "path": "story"}});
        product.quota_is_reported(&with_source("crowded", of_volume.clone())).await;
        let mut of_bucket = json!({"type": "S3",
            "s3": {"bucket": "bucket", "prefix": bucket::PREFIX, "endpoint": endpoint}});
        let private = product.hub(&story).await;
        private.require(TOKEN);
        let mut of_private = tenant("private", private.endpoint());
        let [cuts, lies] = product.faulty_hubs(&story).await;
        let (resumed, lied_to) = (tenant("resumed", cuts.endpoint()), tenant("lied-to", lies.endpoint()));
        let token = |name: &str| json!({"name": name, "key": "token"});
        // Without the right key nothing can be read, and each status reports that.
        let mut refused = vec![(with_source("unsigned", of_bucket.clone()), "403")];
        of_bucket["s3"]["credentialsSecretRef"] = json!({"name": "wrong-keys"});
        refused.push((with_source("missigned", of_bucket.clone()), "403"));
        of_bucket["s3"]["credentialsSecretRef"] = json!({"name": "keys"});
        refused.push((renamed(&of_private, "unknown"), "401"));
        of_private["spec"]["model"]["source"]["huggingFace"]["tokenSecretRef"] = token("wrong-token");
        refused.push((renamed(&of_private, "mistaken"), "401"));
        of_private["spec"]["model"]["source"]["huggingFace"]["tokenSecretRef"] = token("token");
        product.apply(&refused.iter().map(|(tenant, _)| tenant.clone()).collect::<Vec<_>>());
        let of_image = json!({"type": "Image", "image": {"reference": IMAGE, "path": "models/story"}});
        let mut cached = tenant(CACHED, hub.endpoint());
        cached["spec"]["model"]["source"]["huggingFace"]["revision"] = COMMIT.into();
        cached["spec"]["cache"] = json!({"claimName": "cache"});
        let of_others = [("volume", of_volume), ("bucket", of_bucket), ("image", of_image)];
        let [volume, bucket, image] = of_others.map(|(name, source)| with_source(name, source));
        let mut tenants = vec![volume, bucket, cached, of_private, resumed];
        tenants.extend(product.if_mounted(image).await);
        product.start(&tenants).await;
        for tenant in tenants {
            let name = tenant["metadata"]["name"].as_str().unwrap();
            let said = format!("{PROMPT}{}", product.complete(name, 32).await);
            if let Some(golden) = &golden {
                assert!(golden.starts_with(&said), "{name}: {said:?} is not of {golden:?}");
            }
        }
        let rest = format!("bytes={}-", cuts.length(WEIGHTS) / 2);
        assert_eq!(cuts.downloads(), ["", &rest], "the rest alone came after the cut");
        product.apply(&[lied_to]);
        product.is_not_served("lied-to").await;
        product.starts_again_without_a_download(CACHED, &hub).await;
        for (tenant, status) in refused {
            product.is_refused(tenant["metadata"]["name"].as_str().unwrap(), status).await;
        }
        rights::end_of(Run::Sources, &product);
        product.end();
    });
}

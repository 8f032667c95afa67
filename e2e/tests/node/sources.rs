//! Models from where clusters keep them: a volume, a bucket that wants a key, an image. A hub is the product's own test.

mod bucket;
mod image;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use sluice_e2e::cluster::on_node_alone;

use crate::installed::{PROMPT, Product, model, pool, tenant};
use crate::rights::{self, Run};

/// Name of the image with the model.
const IMAGE: &str = "models.example/story:1";

fn with_source(name: &str, source: Value) -> Value {
    let mut tenant = tenant(name, "");
    tenant["spec"]["model"]["source"] = source;
    tenant
}

/// A volume of this node with the files of `folder`, and a claim on it.
fn volume(namespace: &str, folder: &Path) -> [Value; 2] {
    let size = json!({"storage": "1Gi"});
    let metadata = json!({"name": format!("models-{namespace}")});
    let claim = json!({"namespace": namespace, "name": "models"});
    let spec = json!({"capacity": size, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder}, "claimRef": claim});
    let wanted =
        json!({"accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": size}});
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": wanted}),
    ]
}

/// A copy of a model that every user may read.
fn copy(model: &Path, to: &Path) {
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(to.parent().unwrap(), 0o755);
    std::fs::create_dir(to).unwrap();
    open(to, 0o755);
    for entry in std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap()) {
        let file = to.join(entry.file_name());
        std::fs::copy(entry.path(), &file).unwrap();
        open(&file, 0o644);
    }
}

#[test]
fn a_model_comes_from_a_volume_a_bucket_or_an_image() {
    on_node_alone(async |node| {
        let Some(product) = Product::install(node).await else { return };
        let (folder, golden) = model();
        let home = tempfile::tempdir().unwrap();
        copy(&folder, &home.path().join("story"));
        image::write(&home.path().join("image.tar"), IMAGE, &folder, "models/story");
        node.import(&home.path().join("image.tar"));
        let endpoint = bucket::start("10.244.0.1", &folder);

        product.apply(&volume(&product.namespace, home.path()));
        let keys = json!({"accessKeyId": bucket::KEY, "secretAccessKey": "of no matter here"});
        product.apply(&[
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": keys}),
        ]);
        product.apply(&[pool(1)]);
        let of_volume = json!({"type": "PersistentVolumeClaim",
            "persistentVolumeClaim": {"claimName": "models", "path": "story"}});
        let mut of_bucket = json!({"type": "S3",
            "s3": {"bucket": "bucket", "prefix": bucket::PREFIX, "endpoint": endpoint}});
        // Without the key nothing can be read, and the tenant says so.
        product.apply(&[with_source("refused", of_bucket.clone())]);
        of_bucket["s3"]["credentialsSecretRef"] = json!({"name": "keys"});
        let of_image = json!({"type": "Image", "image": {"reference": IMAGE, "path": "models/story"}});
        let tenants = [("volume", of_volume), ("bucket", of_bucket), ("image", of_image)];
        product.start(&tenants.clone().map(|(name, source)| with_source(name, source))).await;
        for (name, _) in tenants {
            let said = format!("{PROMPT}{}", product.complete(name, 32).await);
            if let Some(golden) = &golden {
                assert!(golden.starts_with(&said), "{name}: {said:?} is not of {golden:?}");
            }
        }
        product.condition("refused", "Accepted", "False").await;
        let status = product.tenant("refused")["status"]["conditions"].clone();
        let accepted = status.as_array().unwrap().iter().find(|one| one["type"] == "Accepted").unwrap();
        assert_eq!(accepted["reason"], "ModelUnreadable", "{accepted}");
        assert!(accepted["message"].as_str().unwrap().contains("403"), "{accepted}");
        rights::end_of(Run::Sources, &product);
        product.end();
    });
}

//! Applies the CRDs of this tree to a server.

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};

use super::wait::eventually;

/// Folder of the generated CRDs.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/generated")
}

/// Reads the committed CRDs.
///
/// # Panics
/// If they cannot be read.
pub fn committed() -> Vec<CustomResourceDefinition> {
    let entries = std::fs::read_dir(folder()).expect("crds/generated is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

fn read(file: &Path) -> CustomResourceDefinition {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_yaml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Applies the committed CRDs and waits until the server serves them.
pub async fn establish(client: &Client) {
    for crd in committed() {
        apply(client, &crd).await;
    }
}

/// Applies one CRD and waits until the server serves it.
pub async fn apply(client: &Client, crd: &CustomResourceDefinition) {
    let (all, name) = (Api::<CustomResourceDefinition>::all(client.clone()), crd.name_any());
    let applied = all.patch(&name, &PatchParams::apply("sluice-e2e").force(), &Patch::Apply(crd)).await;
    applied.unwrap_or_else(|e| panic!("{name}: {e}"));
    eventually(&format!("{name} established"), async || {
        let seen = all.get(&name).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let conditions = seen.status?.conditions.unwrap_or_default();
        let broken = conditions.iter().find(|condition| condition.type_ == "NonStructuralSchema");
        assert!(broken.is_none(), "{name}: {broken:?}");
        conditions.iter().any(|one| one.type_ == "Established" && one.status == "True").then_some(())
    })
    .await;
}

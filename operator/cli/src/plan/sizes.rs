//! Sizes of models that lie in local folders, as `sluice-sidecar inspect` tells them: what a Job tells in a cluster.

use std::path::{Path, PathBuf};

use sluice_types::tenant::WeightType;
use sluice_wire::geometry::{Geometry, Obstacle, Refusal, Report};

use super::scene::Scene;
use crate::siblings;

/// Reads the sizes of every tenant with a folder whose sizes nobody has told; `named` are folders of tenants of that name in
/// every namespace.
pub async fn read(scene: &mut Scene, named: &[(String, PathBuf)]) {
    for key in scene.unknown() {
        let named = named.iter().rev().find(|(tenant, _)| *tenant == key.1).map(|(_, folder)| folder);
        let Some(folder) = named.or_else(|| scene.folders.get(&key)).cloned() else { continue };
        let dtype = scene.tenant(&key).map_or(WeightType::Auto, |tenant| tenant.spec.model.dtype);
        let said = inspect(&folder, dtype).await;
        scene.inspections.insert(key, said);
    }
}

async fn inspect(folder: &Path, dtype: WeightType) -> Result<Geometry, Refusal> {
    let unavailable = |message: String| Refusal { reason: Obstacle::Unavailable, message };
    let sidecar = siblings::find("sluice-sidecar").map_err(|error| unavailable(format!("{error:#}")))?;
    let mut command = tokio::process::Command::new(&sidecar);
    command.args(["inspect", "--dtype", &format!("{dtype:?}"), "folder"]).arg(folder);
    let output = command.output().await;
    let output = output.map_err(|error| unavailable(format!("{}: {error}", sidecar.display())))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Report::from_json(said.trim().as_bytes()).unwrap_or_else(|error| {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(unavailable(format!("{} ended with {}: {error}\n{complaint}", sidecar.display(), output.status)))
    })
}

//! Sizes of models in local folders, from `sluice-sidecar inspect`, which a Job runs in a cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use sluice_types::tenant::WeightType;

use super::inputs::PlanInputs;
use crate::inspect::{ModelLocation, inspect};

/// Checks that each of `named` is a tenant of a scene.
///
/// # Errors
/// A name matches no tenant, so that its folder would be ignored silently.
pub fn check_names(named: &[(String, PathBuf)], scenes: &[Option<&PlanInputs>]) -> anyhow::Result<()> {
    let tenants: BTreeSet<&str> = scenes.iter().copied().flatten().flat_map(PlanInputs::tenants).collect();
    let Some((tenant, folder)) = named.iter().find(|(tenant, _)| !tenants.contains(tenant.as_str())) else {
        return Ok(());
    };
    let there = match tenants.into_iter().collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "there is none".to_owned(),
        names => format!("the tenants are: {names}"),
    };
    bail!("--model {tenant}={}: no tenant is called `{tenant}`; {there}", folder.display());
}

/// Reads the sizes of every tenant that has a folder and unknown sizes; `named` are folders of tenants of that name
/// in every namespace.
pub async fn read_sizes(scene: &mut PlanInputs, named: &[(String, PathBuf)]) {
    for key in scene.unknown_sizes() {
        let named = named.iter().rev().find(|(tenant, _)| *tenant == key.1).map(|(_, folder)| folder);
        let Some(folder) = named.or_else(|| scene.folders.get(&key)).cloned() else { continue };
        let dtype = scene.tenant(&key).map_or(WeightType::Auto, |tenant| tenant.spec.model.dtype);
        let said = inspect(ModelLocation::Folder(&folder), dtype).await;
        scene.inspections.insert(key, said);
    }
}

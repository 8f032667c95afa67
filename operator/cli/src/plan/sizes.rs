//! Sizes of models in local folders, from `sluice-sidecar inspect`, which a Job runs in a cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use futures_util::future::join_all;
use sluice_types::tenant::WeightType;

use super::inputs::{ObjectKey, PlanInputs};
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
    bail!("--model {tenant}={}: no tenant has the name `{tenant}`; {there}", folder.display());
}

/// Reads the sizes of every tenant that has a folder and unknown sizes; `named` are folders of tenants of that name
/// in every namespace.
pub async fn read_sizes(scene: &mut PlanInputs, named: &[(String, PathBuf)]) {
    let folder = |key: ObjectKey| {
        let named = named.iter().rev().find(|(tenant, _)| *tenant == key.1).map(|(_, folder)| folder);
        let folder = named.or_else(|| scene.folders.get(&key))?.clone();
        let dtype = scene.tenant(&key).map_or(WeightType::Auto, |tenant| tenant.spec.model.dtype);
        Some((key, folder, dtype))
    };
    let unknown: Vec<_> = scene.unknown_sizes().into_iter().filter_map(folder).collect();
    let read = unknown.iter().map(|(_, folder, dtype)| inspect(ModelLocation::Folder(folder), *dtype));
    let said = join_all(read).await;
    scene.inspections.extend(unknown.into_iter().map(|(key, ..)| key).zip(said));
}

//! Sizes of models in local folders, from `sluice-sidecar inspect`, which a Job runs in a cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use futures_util::future::join_all;

use super::inputs::{ObjectKey, PlanInputs};
use crate::cluster::{ambiguous_name, is_named};
use crate::inspect::{ModelLocation, inspect};

/// Whether `target`, NAME or NAMESPACE/NAME, names the tenant.
fn names(target: &str, (namespace, name): &ObjectKey) -> bool {
    let target = target.split_once('/').map_or((None, target), |(namespace, name)| (Some(namespace), name));
    is_named((namespace, name), target.0, target.1)
}

/// Checks that each of `named` is one tenant of the scenes.
///
/// # Errors
/// A name matches no tenant, so that its folder would be ignored silently, or tenants of several namespaces.
pub fn check_names(named: &[(String, PathBuf)], scenes: &[Option<&PlanInputs>]) -> anyhow::Result<()> {
    let tenants: BTreeSet<&ObjectKey> =
        scenes.iter().copied().flatten().flat_map(PlanInputs::tenants).collect();
    for (target, folder) in named {
        let option = format!("--model {target}={}", folder.display());
        let found: Vec<_> = tenants.iter().filter(|key| names(target, key)).collect();
        match found.len() {
            0 => bail!("{option}: no tenant has the name `{target}`; {}", known_names(&tenants)),
            1 => {}
            _ => {
                let titles: Vec<_> =
                    found.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
                bail!("{option}: {}", ambiguous_name(target, &titles))
            }
        }
    }
    Ok(())
}

fn known_names(tenants: &BTreeSet<&ObjectKey>) -> String {
    let names: BTreeSet<&str> = tenants.iter().map(|(_, name)| name.as_str()).collect();
    match names.into_iter().collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "there is none".to_owned(),
        names => format!("the tenants are: {names}"),
    }
}

/// Reads the sizes of every tenant that has a folder and unknown sizes; `named` are folders of tenants, checked by
/// [`check_names`].
pub async fn read_sizes(scene: &mut PlanInputs, named: &[(String, PathBuf)]) {
    let folder = |key: ObjectKey| {
        let named = named.iter().rev().find(|(target, _)| names(target, &key)).map(|(_, folder)| folder);
        let folder = named.or_else(|| scene.folders.get(&key))?.clone();
        let options = scene.size_options(&key);
        Some((key, folder, options))
    };
    let unknown: Vec<_> = scene.unknown_sizes().into_iter().filter_map(folder).collect();
    let read = unknown.iter().map(|(_, folder, options)| inspect(ModelLocation::Folder(folder), options));
    let said = join_all(read).await;
    scene.inspections.extend(unknown.into_iter().map(|(key, ..)| key).zip(said));
}

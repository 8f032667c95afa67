//! From names on the command line to models in folders and a memory plan. Whatever can be refused is refused before weights are
//! downloaded.

use std::path::PathBuf;

use anyhow::bail;
use sluice_wire::geometry::Geometry;

use super::RunArgs;
use super::download::{download, sizes_in_folder, sizes_on_hub};
use super::machine::{available_memory_bytes, check_disk};
use super::manifest::{self, RunModel};
use super::memory::{self, MemoryPlan, Sized, Wishes};
use super::reference::Reference;
use crate::Misconfigured;
use crate::models::cache::{HeldModel, ModelCache};
use crate::up::speak::note;

/// What is to be served.
#[derive(Debug)]
pub struct Prepared {
    /// In the order of the command line.
    pub models: Vec<RunModel>,
    /// Memory and contexts.
    pub plan: MemoryPlan,
    /// What is run.
    pub yaml: String,
    /// While they live, no `sluice models rm` removes the models.
    _held: Vec<HeldModel>,
}

/// Looks at all models, plans the memory, and downloads what is missing unless the YAML alone is wanted.
///
/// # Errors
/// The first error that was found.
pub async fn prepare(args: &RunArgs) -> anyhow::Result<Prepared> {
    let cache = ModelCache::open(args.cache.folder.as_deref())?;
    let models = RunModel::name_all(resolve(args, &cache)?);
    let mut held = Vec::new();
    let mut sized = Vec::new();
    for model in &models {
        let geometry = sizes(model, &cache, &mut held, args.print_yaml).await?;
        sized.push(Sized { name: model.served.clone(), geometry, spec: model.spec()? });
    }
    let wishes = Wishes {
        memory_bytes: args.memory,
        context_tokens: args.context,
        threads: args.threads,
        policy: args.policy,
    };
    let available = available_memory_bytes()?;
    let plan = memory::plan(&sized, &wishes, available).map_err(|short| Misconfigured(short.to_string()))?;
    let yaml = manifest::yaml(&models, &plan, args.policy, &models[0].tenant)?;
    if args.print_yaml {
        models.iter().for_each(|model| warn_of_missing(model, &cache));
    } else {
        held.extend(bring(&models, &sized, &cache).await?);
    }
    Ok(Prepared { models, plan, yaml, _held: held })
}

/// Each MODEL with the folder where its files are or will be.
fn resolve(args: &RunArgs, cache: &ModelCache) -> Result<Vec<(Reference, PathBuf)>, Misconfigured> {
    let mut all: Vec<(Reference, PathBuf)> = Vec::new();
    for argument in &args.models {
        let reference = Reference::resolve(argument, &args.endpoint)?;
        if all.iter().any(|(other, _)| *other == reference) {
            return Err(Misconfigured(format!(
                "MODEL `{argument}`: named twice; once is enough, it serves several requests at a time"
            )));
        }
        let folder = match &reference {
            Reference::Folder(folder) => folder.clone(),
            Reference::Hub(model) => cache.folder(model),
        };
        all.push((reference, folder));
    }
    Ok(all)
}

/// Sizes of a model, of the hub only where it is not whole in the cache.
async fn sizes(
    model: &RunModel,
    cache: &ModelCache,
    held: &mut Vec<HeldModel>,
    print_only: bool,
) -> anyhow::Result<Geometry> {
    let Reference::Hub(hub) = &model.reference else {
        return sizes_in_folder(&model.served, &model.folder).await;
    };
    if !cache.is_whole(hub) {
        return sizes_on_hub(hub).await;
    }
    if !print_only {
        held.push(cache.hold(hub)?);
    }
    sizes_in_folder(&hub.to_string(), &model.folder).await
}

/// Downloads all models that are not whole.
async fn bring(models: &[RunModel], sized: &[Sized], cache: &ModelCache) -> anyhow::Result<Vec<HeldModel>> {
    let missing = models.iter().zip(sized).filter_map(|(model, sized)| match &model.reference {
        Reference::Hub(hub) if !cache.is_whole(hub) => {
            Some((hub, sized.geometry.download_bytes.unwrap_or(0)))
        }
        _ => None,
    });
    let missing: Vec<_> = missing.collect();
    let bytes = missing.iter().map(|(hub, bytes)| bytes.saturating_sub(cache.present_bytes(hub)));
    check_disk(cache.root(), bytes.sum())?;
    let mut held = Vec::new();
    for (hub, _) in missing {
        let model = cache.hold(hub)?;
        download(hub, &model).await?;
        if !model.is_whole() {
            bail!("{hub}: the download ended well and files are missing in {}", model.folder().display());
        }
        held.push(model);
    }
    Ok(held)
}

fn warn_of_missing(model: &RunModel, cache: &ModelCache) {
    if let Reference::Hub(hub) = &model.reference
        && !cache.is_whole(hub)
    {
        note(format_args!("{hub} is not downloaded yet: `sluice run` does that, and `sluice up` does not"));
    }
}

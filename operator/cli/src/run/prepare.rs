//! Turns names on the command line into models in folders and a memory plan. All refusals occur before weights are
//! downloaded.

use std::path::PathBuf;

use anyhow::bail;
use sluice_wire::geometry::Geometry;

use super::args::RunArgs;
use super::download::{download, sizes_in_folder, sizes_on_hub};
use super::machine::{available_memory_bytes, check_disk};
use super::manifest::{self, RunModel};
use super::memory::{self, MemoryOptions, MemoryPlan, ModelSize};
use super::model_ref::ModelRef;
use crate::Misconfigured;
use crate::models::cache::{ModelCache, ModelGuard};
use crate::up::output::eprint_note;

/// The models to serve, and how.
#[derive(Debug)]
pub struct Prepared {
    /// In the order of the command line.
    pub models: Vec<RunModel>,
    /// Memory and contexts.
    pub plan: MemoryPlan,
    /// The YAML that is run.
    pub yaml: String,
    /// While these guards exist, no `sluice models rm` removes the models.
    _guards: Vec<ModelGuard>,
}

/// Inspects all models, plans the memory, and downloads missing files unless only the YAML is wanted.
///
/// # Errors
/// The first error.
pub async fn prepare(args: &RunArgs) -> anyhow::Result<Prepared> {
    let cache = ModelCache::open(args.cache.folder.as_deref())?;
    let models = RunModel::assign_names(resolve(args, &cache)?);
    let mut held = Vec::new();
    let mut sized = Vec::new();
    for model in &models {
        let geometry = sizes(model, &cache, &mut held, args.print_yaml).await?;
        sized.push(ModelSize { name: model.served_name.clone(), geometry, spec: model.spec()? });
    }
    let wishes = MemoryOptions {
        memory_bytes: args.memory,
        context_tokens: args.context,
        threads: args.threads,
        policy: args.policy,
    };
    let available = available_memory_bytes()?;
    let plan = memory::plan(&sized, &wishes, available).map_err(|short| Misconfigured(short.to_string()))?;
    let yaml = manifest::to_yaml(&models, &plan, args.policy, &models[0].tenant)?;
    if args.print_yaml {
        models.iter().for_each(|model| warn_of_missing(model, &cache));
    } else {
        held.extend(download_missing(&models, &sized, &cache).await?);
    }
    Ok(Prepared { models, plan, yaml, _guards: held })
}

/// Resolves each MODEL and the folder of its files.
fn resolve(args: &RunArgs, cache: &ModelCache) -> Result<Vec<(ModelRef, PathBuf)>, Misconfigured> {
    let mut all: Vec<(ModelRef, PathBuf)> = Vec::new();
    for argument in &args.models {
        let reference = ModelRef::resolve(argument, &args.endpoint)?;
        if all.iter().any(|(other, _)| *other == reference) {
            return Err(Misconfigured(format!(
                "MODEL `{argument}` is named twice; name it once: it serves several requests at the same time"
            )));
        }
        let folder = match &reference {
            ModelRef::Folder(folder) => folder.clone(),
            ModelRef::Hub(model) => cache.folder(model),
        };
        all.push((reference, folder));
    }
    Ok(all)
}

/// Returns the sizes of a model, from the hub only if the cached one is incomplete.
async fn sizes(
    model: &RunModel,
    cache: &ModelCache,
    held: &mut Vec<ModelGuard>,
    print_only: bool,
) -> anyhow::Result<Geometry> {
    let ModelRef::Hub(hub) = &model.reference else {
        return sizes_in_folder(&model.served_name, &model.folder).await;
    };
    if !cache.is_complete(hub) {
        return sizes_on_hub(hub).await;
    }
    if !print_only {
        held.push(cache.acquire(hub)?);
    }
    sizes_in_folder(&hub.to_string(), &model.folder).await
}

/// Downloads all incomplete models.
async fn download_missing(
    models: &[RunModel],
    sized: &[ModelSize],
    cache: &ModelCache,
) -> anyhow::Result<Vec<ModelGuard>> {
    let missing = models.iter().zip(sized).filter_map(|(model, sized)| match &model.reference {
        ModelRef::Hub(hub) if !cache.is_complete(hub) => {
            Some((hub, sized.geometry.download_bytes.unwrap_or(0)))
        }
        _ => None,
    });
    let missing: Vec<_> = missing.collect();
    let bytes = missing.iter().map(|(hub, bytes)| bytes.saturating_sub(cache.present_bytes(hub)));
    check_disk(cache.root(), bytes.sum())?;
    let mut held = Vec::new();
    for (hub, _) in missing {
        let model = cache.acquire(hub)?;
        download(hub, &model).await?;
        if !model.is_complete() {
            bail!("{hub}: the download succeeded, but files are missing in {}", model.folder().display());
        }
        held.push(model);
    }
    Ok(held)
}

fn warn_of_missing(model: &RunModel, cache: &ModelCache) {
    if let ModelRef::Hub(hub) = &model.reference
        && !cache.is_complete(hub)
    {
        eprint_note(format_args!(
            "{hub} is not downloaded yet; download it with `sluice run`, because `sluice up` does not download models"
        ));
    }
}

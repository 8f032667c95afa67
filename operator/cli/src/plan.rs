//! `sluice plan`: shows the decisions that the operator would make about the objects of files, before they are applied.
//!
//! The decisions are the operator's own ([`sluice_plan`]), as those of `sluice up` are. Its inputs differ: sizes of models are from local
//! folders ([`sizes`]), or all statuses are from a cluster. Compared with an earlier version of the files or that
//! cluster, it also lists the tenants whose pods a change replaces.

mod change;
pub(crate) mod inputs;
mod render;
pub(crate) mod sizes;

use std::path::PathBuf;

use anyhow::bail;
use sluice_common::text::counted;
use sluice_plan::observed::ObservedPool;
use sluice_plan::pool_plan::{PoolPlan, plan};

use self::change::{observed_after, slot_templates};
use self::inputs::{PlanInputs, PoolInputs};
use self::render::RenderedPool;
use crate::cluster::ClusterArgs;
use crate::{Misconfigured, manifests, print};

/// Options of `sluice plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// YAML file with GpuPools and ModelTenants; may be given more than once.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The files as they are now: shows which pods the change replaces. May be given more than once.
    #[arg(long, value_name = "FILE")]
    pub before: Vec<PathBuf>,
    /// Folder with the model of a tenant, NAME or NAMESPACE/NAME, from which its sizes are read, as they are from
    /// `File` sources. May be given more than once.
    #[arg(long = "model", value_name = "TENANT=FOLDER", value_parser = parse_model)]
    pub models: Vec<(String, PathBuf)>,
    /// Where else objects and sizes are.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

fn parse_model(text: &str) -> Result<(String, PathBuf), String> {
    let parsed = text.split_once('=').filter(|(tenant, folder)| !tenant.is_empty() && !folder.is_empty());
    parsed
        .map(|(tenant, folder)| (tenant.to_owned(), folder.into()))
        .ok_or_else(|| format!("`{text}` is not TENANT=FOLDER, such as chat=./models/chat"))
}

/// Prints the plan.
///
/// # Errors
/// A file that cannot be read or is wrong, a model of no tenant, a cluster that does not answer, or a slot that
/// would have no GPU.
pub async fn run(args: PlanArgs) -> anyhow::Result<()> {
    if args.cluster.is_cluster() && !args.before.is_empty() {
        bail!(
            "--before and a cluster cannot be combined: compare with one of them (outside kubectl: sluice plan)"
        );
    }
    let connected = match args.cluster.is_cluster() {
        true => Some(args.cluster.connect().await?),
        false => None,
    };
    let namespace = connected.as_ref().map(|cluster| cluster.namespace.as_str());
    let (mut after, earlier) = load_inputs(&args, namespace)?;
    let mut before = match &connected {
        Some(cluster) => Some(PlanInputs::from_cluster(cluster, &after.namespaces()).await?),
        None => earlier,
    };
    if connected.is_some()
        && let Some(there) = &before
    {
        after = there.clone().overlay(after);
    }
    sizes::check_names(&args.models, &[Some(&after), before.as_ref()])?;
    sizes::read_sizes(&mut after, &args.models).await;
    if let Some(before) = &mut before {
        before.copy_sizes_from(&after);
        // Includes tenants that the change removes.
        sizes::read_sizes(before, &args.models).await;
    }
    let mut printed = Ok(());
    let mut tell = |line: String| {
        if printed.is_ok() {
            printed = print(line);
        }
    };
    let outcome = print_plan(&mut tell, &after, before.as_ref());
    // A plan that could not be printed is worse than one that does not fit.
    printed.and(outcome)
}

/// Loads the files and those of `--before`, and reports the mistakes of both at once.
fn load_inputs(
    args: &PlanArgs,
    namespace: Option<&str>,
) -> Result<(PlanInputs, Option<PlanInputs>), Misconfigured> {
    let after = PlanInputs::from_files(&args.files, namespace);
    let before =
        (!args.before.is_empty()).then(|| PlanInputs::from_files(&args.before, namespace)).transpose();
    match (after, before) {
        (Ok(after), Ok(before)) => Ok((after, before)),
        (Err(after), Err(before)) => {
            Err(manifests::to_misconfigured(&after.into_iter().chain(before).collect()))
        }
        (Err(errors), _) | (_, Err(errors)) => Err(manifests::to_misconfigured(&errors)),
    }
}

/// Prints the plan of each pool, and the tenants without one.
fn print_plan(
    print: &mut dyn FnMut(String),
    after: &PlanInputs,
    before: Option<&PlanInputs>,
) -> anyhow::Result<()> {
    let (mut slots, mut unplaced) = (0, 0);
    for key in after.pools() {
        let pool = after.pool(&key);
        let there = before.map(|before| before.pool(&key));
        let rendered = render_pool(&pool, there.as_ref());
        rendered.lines.into_iter().for_each(&mut *print);
        (slots, unplaced) = (slots + rendered.slots, unplaced + rendered.unplaced);
    }
    match unplaced {
        0 => Ok(()),
        _ => bail!("{unplaced} of {} would not be served", counted(slots, "slot")),
    }
}

/// Renders the plan of a pool, compared with its previous state.
fn render_pool(pool: &PoolInputs<'_>, before: Option<&PoolInputs<'_>>) -> RenderedPool {
    let Some(before) = before else {
        let seen = pool.observed();
        let given = pool.context(&seen);
        return render::render(pool, &plan(&given), None);
    };
    let there = before.observed();
    let given_before = before.context(&there);
    let planned_before = plan(&given_before);
    let earlier = slot_templates(before, &planned_before);
    let seen =
        ObservedPool { inspections: pool.observed().inspections, ..observed_after(before, &planned_before) };
    let given_after = pool.context(&seen);
    let planned: PoolPlan<'_> = plan(&given_after);
    render::render(pool, &planned, Some(&earlier))
}

#[cfg(test)]
mod tests;

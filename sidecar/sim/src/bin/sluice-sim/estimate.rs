//! The command `estimate`.

use anyhow::{Context as _, Result, anyhow};
use sluice_sim::estimate::Estimate;
use sluice_sim::profiles::cost::BatchShape;
use sluice_sim::profiles::hardware::{self, Hardware};
use sluice_sim::profiles::measured::MachineProfile;
use sluice_sim::profiles::model::{self, ModelProfile};

use crate::args::EstimateArgs;
use crate::output::print;
use crate::table;

/// Prints one line, or JSON object, for each model on each machine.
pub fn estimate(args: &EstimateArgs) -> Result<bool> {
    let machines = match &args.profile {
        None => hardware::ALL.to_vec(),
        Some(name) => vec![find_machine(name)?],
    };
    let models = select(args.model.as_deref(), &model::ALL, |model| model.name, "model")?;
    let batch = BatchShape::decode(args.batch, args.context);
    let pairs = machines.iter().flat_map(|machine| models.iter().map(move |model| (*machine, *model)));
    let found: Vec<_> = pairs
        .map(|(machine, model)| (machine, model, Estimate::new(&machine, &model, &batch, args.launch.into())))
        .collect();
    if args.json {
        let found: Vec<_> = found.iter().map(|found| json(found, &batch)).collect();
        print(&serde_json::to_string_pretty(&found)?)?;
        return Ok(true);
    }
    let rows: Vec<_> = found.iter().map(|found| row(found, &batch)).collect();
    let heading = ["PROFILE", "LINK", "MODEL", "FITS", "STEP MS", "R", "ALPHA", "OF", "FREED GB"];
    print(&format!(
        "decoding {} sequences of {} tokens; alpha: layers whose memory KV can use without a stall\n\n{}",
        args.batch,
        args.context,
        table::text(heading, &rows)
    ))?;
    Ok(true)
}

/// Returns the item of this name, or all items.
fn select<T: Copy>(
    name: Option<&str>,
    all: &[T],
    name_of: fn(&T) -> &'static str,
    kind: &str,
) -> Result<Vec<T>> {
    match name {
        None => Ok(all.to_vec()),
        Some(name) => Ok(vec![find_by_name(name, all, name_of, kind)?]),
    }
}

/// Returns the published machine of this name, or the measured one of this file.
pub fn find_machine(name: &str) -> Result<Hardware> {
    if !name.ends_with(".json") {
        return find_by_name(name, &hardware::ALL, |machine| machine.name, "profile");
    }
    let read =
        || -> Result<Hardware> { Ok(MachineProfile::parse(&std::fs::read_to_string(name)?)?.hardware()?) };
    read().with_context(|| name.to_owned())
}

/// Returns the item of this name.
pub fn find_by_name<T: Copy>(
    name: &str,
    all: &[T],
    name_of: fn(&T) -> &'static str,
    kind: &str,
) -> Result<T> {
    let found = all.iter().find(|one| name_of(one).eq_ignore_ascii_case(name));
    let names = || all.iter().map(name_of).collect::<Vec<_>>().join(", ");
    found.copied().ok_or_else(|| anyhow!("no {kind} has the name {name:?}; the names are {}", names()))
}

/// Whether the weights and the KV of the batch are smaller than the machine's memory.
fn fits(machine: &Hardware, model: &ModelProfile, batch: &BatchShape) -> bool {
    let kv_bytes = batch.context.saturating_mul(model.kv_token_bytes());
    model.weight_bytes().saturating_add(kv_bytes) < machine.memory_bytes
}

fn row((machine, model, estimate): &(Hardware, ModelProfile, Estimate), batch: &BatchShape) -> [String; 9] {
    let freed_bytes = u64::from(estimate.alpha()) * model.layer_bytes();
    [
        machine.name.to_owned(),
        machine.class.name().to_owned(),
        model.name.to_owned(),
        if fits(machine, model, batch) { "yes" } else { "no" }.to_owned(),
        format!("{:.1}", estimate.step_ns as f64 / 1e6),
        format!("{:.1}", estimate.r_permille() as f64 / 1e3),
        estimate.alpha().to_string(),
        model.layers.to_string(),
        format!("{:.1}", freed_bytes as f64 / 1e9),
    ]
}

fn json(
    (machine, model, estimate): &(Hardware, ModelProfile, Estimate),
    batch: &BatchShape,
) -> serde_json::Value {
    serde_json::json!({
        "profile": machine.name,
        "link": machine.class.name(),
        "model": model.name,
        "fits": fits(machine, model, batch),
        "layers": model.layers,
        "layer_bytes": model.layer_bytes(),
        "compute_ns": estimate.compute_ns,
        "transfer_ns": estimate.transfer_ns,
        "step_ns": estimate.step_ns,
        "r_permille": estimate.r_permille(),
        "largest_alpha_one_slot": estimate.largest_alpha[0],
        "largest_alpha_two_slots": estimate.largest_alpha[1],
    })
}

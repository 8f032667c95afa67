//! The commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sluice_link::vocabulary::{Address, ChunkId, LayerId, MapOp};

use crate::copier::Copier;
use crate::state::{Sidecar, print};

/// Runs one line and prints its result.
pub(crate) fn run(sidecar: &Arc<Sidecar>, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let Some((name, arguments)) = words.split_first() else { return };
    let begun = Instant::now();
    let result = execute(sidecar, name, arguments);
    let micros = begun.elapsed().as_micros() as u64;
    print(&match result {
        Ok(value) => json!({"command": line, "ok": true, "us": micros, "result": value}),
        Err(error) => json!({"command": line, "ok": false, "us": micros, "error": format!("{error:#}")}),
    });
}

fn execute(sidecar: &Arc<Sidecar>, name: &str, arguments: &[&str]) -> anyhow::Result<Value> {
    match (name, arguments) {
        ("status", []) => sidecar.lock().describe(&sidecar.control),
        ("hold", []) => Ok(json!(sidecar.hold()?)),
        ("resume", []) => sidecar.resume().map(|()| Value::Null),
        ("retire", [count]) => held(sidecar, |sidecar| Ok(json!(sidecar.retire(count.parse()?)?))),
        ("withdraw", [count]) => held(sidecar, |sidecar| Ok(json!(sidecar.withdraw(count.parse()?)?))),
        ("grow", [count]) => held(sidecar, |sidecar| grow(sidecar, count.parse()?)),
        ("remap", layers) => {
            let moving: Result<Vec<_>, _> = layers.iter().map(|layer| layer.parse().map(LayerId)).collect();
            let moving = moving?;
            held(sidecar, |sidecar| remap(sidecar, moving))
        }
        ("revert", []) => held(sidecar, revert),
        ("verify", []) => verify(sidecar),
        ("nonzero", [extent]) => nonzero(sidecar, extent.parse()?),
        ("passes", []) => Ok(passes(sidecar)),
        ("poison", [on @ ("on" | "off")]) => {
            sidecar.lock().poison = *on == "on";
            Ok(Value::Null)
        }
        ("copy_delay_us", [micros]) => {
            sidecar.lock().copy_delay = Duration::from_micros(micros.parse()?);
            Ok(Value::Null)
        }
        ("refuse_next", reason) => {
            sidecar.lock().refusal = Some(reason.join(" "));
            Ok(Value::Null)
        }
        ("cut", [which]) => cut(sidecar, which),
        _ => bail!("unknown command or wrong arguments"),
    }
}

/// Runs `change` while the scheduler is held, and resumes it if it was not held before. Without a scheduler the caller
/// ensures that no pass runs.
fn held(
    sidecar: &Arc<Sidecar>,
    change: impl FnOnce(&Arc<Sidecar>) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let (has_scheduler, is_held) = {
        let state = sidecar.lock();
        (state.scheduler.is_some(), state.is_held)
    };
    if !has_scheduler || is_held {
        return change(sidecar);
    }
    sidecar.hold()?;
    let result = change(sidecar);
    sidecar.resume()?;
    result
}

fn grow(sidecar: &Sidecar, count: usize) -> anyhow::Result<Value> {
    let new = sidecar.map_extents(count)?;
    sidecar.change(|state| state.granted.extend(&new));
    Ok(json!(new))
}

/// Lets layers share the chunks of the first of them, and frees the others' chunks.
fn remap(sidecar: &Arc<Sidecar>, moving: Vec<LayerId>) -> anyhow::Result<Value> {
    let mut ops = Vec::new();
    {
        let state = sidecar.lock();
        ensure!(state.moving.is_empty(), "layers move already");
        ensure!(moving.len() > 1, "at least two layers share a slot");
        ensure!(!state.master.is_empty(), "the worker has not loaded yet");
        let chunks = |layer: &LayerId| state.layers.get(layer.index()).context("no such layer");
        let slot = chunks(&moving[0])?;
        for layer in &moving[1..] {
            let own = chunks(layer)?;
            ensure!(own.len() == slot.len(), "layers of a slot have equal sizes");
            for (part, (from, to)) in (0..).zip(own.iter().zip(slot)) {
                let address = Address::Layer(*layer, part);
                ops.extend([MapOp::Unmap(address, ChunkId(*from)), MapOp::Map(address, ChunkId(*to))]);
            }
        }
    }
    sidecar.order(|worker, id| worker.send_remap(id, &ops))?;
    let freed = {
        let mut state = sidecar.lock();
        let freed: Vec<u32> =
            moving[1..].iter().flat_map(|layer| std::mem::take(&mut state.layers[layer.index()])).collect();
        let poison = state.poison;
        state.pool.give_back(&freed, poison)?;
        state.moving = moving.clone();
        freed.len()
    };
    let first_pass = sidecar.announce_moving(&moving)?;
    let copier = Copier::start(sidecar, moving, first_pass);
    sidecar.lock().copier = Some(copier);
    Ok(json!({"freed_chunks": freed, "first_pass": first_pass}))
}

/// Gives each moving layer chunks of its own with its weights.
fn revert(sidecar: &Arc<Sidecar>) -> anyhow::Result<Value> {
    let copier = sidecar.lock().copier.take().context("no layer moves")?;
    let copies = copier.copies();
    copier.stop();
    let mut ops = Vec::new();
    {
        let mut state = sidecar.lock();
        let moving = state.moving.clone();
        let slot = state.layers[moving[0].index()].clone();
        for layer in &moving[1..] {
            let own = state.pool.take(slot.len())?;
            for (part, (from, to)) in (0..).zip(slot.iter().zip(&own)) {
                let address = Address::Layer(*layer, part);
                ops.extend([MapOp::Unmap(address, ChunkId(*from)), MapOp::Map(address, ChunkId(*to))]);
            }
            state.layers[layer.index()] = own;
        }
        for layer in &moving {
            state.pool.write_all(&state.layers[layer.index()], &state.master[layer.index()])?;
        }
        state.moving.clear();
    }
    sidecar.order(|worker, id| worker.send_remap(id, &ops))?;
    sidecar.announce_moving(&[])?;
    Ok(json!({"copies": copies}))
}

/// Compares the bytes behind layers that do not move with the master copies.
fn verify(sidecar: &Sidecar) -> anyhow::Result<Value> {
    let state = sidecar.lock();
    let mut differing = Vec::new();
    for (layer, master) in (0..).zip(&state.master) {
        let is_moving = state.moving.contains(&LayerId(layer));
        if !is_moving && state.pool.read(&state.layers[usize::from(layer)])? != *master {
            differing.push(layer);
        }
    }
    Ok(json!({"layers": state.master.len(), "differing": differing}))
}

/// Counts the bytes of an extent that are not zero.
fn nonzero(sidecar: &Sidecar, extent: u32) -> anyhow::Result<Value> {
    let state = sidecar.lock();
    let chunks = state.extents.get(&extent).context("the extent has no memory")?;
    Ok(json!(state.pool.read(chunks)?.into_iter().filter(|byte| *byte != 0).count()))
}

/// Returns the records of passes since the last call.
fn passes(sidecar: &Sidecar) -> Value {
    let mut records = Vec::new();
    let lost = sidecar.control.read_passes(&mut sidecar.lock().passes, &mut records);
    let record = |record: &sluice_link::control::PassRecord| {
        json!({
            "pass": record.pass, "total_ns": record.total_ns, "stall_ns": record.stall_ns,
            "tokens": record.tokens, "sequences": record.sequences,
        })
    };
    json!({"lost": lost, "records": records.iter().map(record).collect::<Vec<_>>()})
}

fn cut(sidecar: &Sidecar, which: &str) -> anyhow::Result<Value> {
    let state = sidecar.lock();
    match which {
        "worker" => state.worker.as_ref().context("no worker is connected")?.shutdown(),
        "scheduler" => state.scheduler.as_ref().context("no scheduler is connected")?.shutdown(),
        _ => bail!("worker or scheduler"),
    }
    Ok(Value::Null)
}

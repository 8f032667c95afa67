//! Accepts workers and schedulers, starts them, and receives their messages.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluice_link::message::{KvLayout, Loaded, RefusalReason, SchedulerSetup};
use sluice_link::server::scheduler::{SchedulerEvent, SchedulerHandshake, SchedulerLink};
use sluice_link::server::worker::{WorkerEvent, WorkerHandshake, WorkerLink, WorkerMemory};
use sluice_link::server::{FirstMessage, Listener};
use sluice_link::vocabulary::{Address, ChunkId, LayerId, MapOp};

use crate::state::{Sidecar, print};

/// Time in which a process whose link has ended must have exited.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// Listens, and accepts in a thread of its own.
pub(crate) fn start(sidecar: &Arc<Sidecar>) -> anyhow::Result<()> {
    let listener = Listener::bind(&sidecar.options.socket)?;
    print(&json!({"event": "listening", "socket": sidecar.options.socket}));
    let sidecar = sidecar.clone();
    std::thread::spawn(move || {
        loop {
            let accepted = listener.accept(Duration::from_secs(3600));
            let Ok(Some(connection)) = accepted else { continue };
            let sidecar = sidecar.clone();
            std::thread::spawn(move || {
                let served = connection.recv_first().map_err(Into::into).and_then(|first| match first {
                    FirstMessage::Worker(worker) => serve_worker(&sidecar, worker),
                    FirstMessage::Scheduler(scheduler) => serve_scheduler(&sidecar, scheduler),
                    FirstMessage::Engine(_) => anyhow::bail!("an engine that runs steps"),
                });
                if let Err(error) = served {
                    print(&json!({"event": "error", "error": format!("{error:#}")}));
                }
            });
        }
    });
    Ok(())
}

fn serve_worker(sidecar: &Arc<Sidecar>, worker: WorkerHandshake) -> anyhow::Result<()> {
    print(&json!({"event": "worker", "hello": worker.hello()}));
    if let Some(message) = sidecar.lock().refusal.take() {
        return Ok(worker.refuse(RefusalReason::Other, message)?);
    }
    sidecar.wait_for("end of the last worker", |state| (!state.is_ending).then_some(()))?;
    if sidecar.lock().worker.is_some() {
        return Ok(worker.refuse(RefusalReason::Occupied, "a worker is connected")?);
    }
    let pool = sidecar.lock().pool.file().try_clone_to_owned()?;
    let memory =
        WorkerMemory { pool: Some(pool.as_fd()), control: &sidecar.control, lifetime_lock: pool.as_fd() };
    let WorkerLink { sender, mut receiver, process, .. } = worker.send_setup(&sidecar.setup(), memory)?;
    sidecar.change(|state| state.worker = Some(sender));
    let starting = sidecar.clone();
    std::thread::spawn(move || report("map_layers", map_layers(&starting)));
    let error = loop {
        match receiver.recv() {
            Ok(WorkerEvent::Applied { id }) => sidecar.change(|state| drop(state.replies.insert(id, Ok(())))),
            Ok(WorkerEvent::Refused { id, message }) => {
                sidecar.change(|state| drop(state.replies.insert(id, Err(message))));
            }
            Ok(WorkerEvent::Loaded(loaded)) => on_loaded(sidecar, &loaded)?,
            Ok(WorkerEvent::KvLayout(layout)) => {
                let sidecar = sidecar.clone();
                std::thread::spawn(move || report("kv", on_layout(&sidecar, layout)));
            }
            Ok(WorkerEvent::Bye) => print(&json!({"event": "worker_bye"})),
            Err(error) => break error,
        }
    };
    sidecar.change(|state| (state.worker, state.is_ending) = (None, true));
    let has_exited = process.wait_exit(EXIT_LIMIT)?;
    end_worker(sidecar)?;
    sidecar.change(|state| state.is_ending = false);
    print(&json!({"event": "worker_gone", "exited": has_exited, "error": error.to_string()}));
    Ok(())
}

fn report(what: &str, done: anyhow::Result<()>) {
    if let Err(error) = done {
        print(&json!({"event": "error", "what": what, "error": format!("{error:#}")}));
    }
}

/// Maps the chunks of all layers. Those of moving layers are their own again, because a worker loads each once.
fn map_layers(sidecar: &Sidecar) -> anyhow::Result<()> {
    let ops: Vec<MapOp> = {
        let state = sidecar.lock();
        let layers = (0..).zip(&state.layers);
        let parts = layers.flat_map(|(layer, chunks)| (0..).zip(chunks).map(move |part| (layer, part)));
        parts
            .map(|(layer, (part, chunk))| MapOp::Map(Address::Layer(LayerId(layer), part), ChunkId(*chunk)))
            .collect()
    };
    sidecar.order(|worker, id| worker.send_remap(id, &ops))?;
    print(&json!({"event": "layers_mapped", "chunks": ops.len()}));
    Ok(())
}

fn on_loaded(sidecar: &Sidecar, loaded: &Loaded) -> anyhow::Result<()> {
    let mut state = sidecar.lock();
    let master: anyhow::Result<Vec<Vec<u8>>> =
        state.layers.iter().map(|chunks| state.pool.read(chunks)).collect();
    state.master = master?;
    if let Some(worker) = &state.worker {
        worker.send_captured()?;
    }
    print(&json!({"event": "loaded", "layer_bytes": loaded.layer_bytes}));
    Ok(())
}

fn on_layout(sidecar: &Sidecar, layout: KvLayout) -> anyhow::Result<()> {
    let worker = sidecar.lock().worker.clone();
    let Some(worker) = worker else { return Ok(()) };
    print(&json!({"event": "kv_layout", "layout": layout}));
    let extents = match layout.extents(sidecar.options.chunk_bytes, sidecar.options.kv_chunks) {
        Ok(extents) => extents,
        Err(error) => return Ok(worker.refuse_layout(error.to_string())?),
    };
    worker.send_kv_accepted(extents)?;
    sidecar.change(|state| state.layout = Some((layout, extents)));
    let first = sidecar.options.extents.min(extents.extents);
    sidecar.map_extents(first as usize)?;
    sidecar.change(|state| state.has_kv = true);
    print(&json!({"event": "kv", "extents": extents, "granted": first}));
    Ok(())
}

/// Takes the KV of a worker that has exited. Its weights stay where they are for the next one.
fn end_worker(sidecar: &Sidecar) -> anyhow::Result<()> {
    let copier = sidecar.lock().copier.take();
    if let Some(copier) = copier {
        copier.stop();
    }
    let mut state = sidecar.lock();
    let extents = std::mem::take(&mut state.extents);
    let poison = state.poison;
    for chunks in extents.values() {
        state.pool.give_back(chunks, poison)?;
    }
    let moving = std::mem::take(&mut state.moving);
    for layer in moving.iter().skip(1) {
        let count = sidecar.options.layer_chunks[layer.index()];
        state.layers[layer.index()] = state.pool.take(count as usize)?;
    }
    // The next worker loads again, and no layer moves before.
    state.master.clear();
    (state.layout, state.has_kv, state.is_held) = (None, false, false);
    state.replies.clear();
    Ok(())
}

fn serve_scheduler(sidecar: &Arc<Sidecar>, scheduler: SchedulerHandshake) -> anyhow::Result<()> {
    print(&json!({"event": "scheduler", "hello": scheduler.hello()}));
    if let Some(message) = sidecar.lock().refusal.take() {
        return Ok(scheduler.refuse(RefusalReason::Other, message)?);
    }
    if sidecar.lock().scheduler.is_some() {
        return Ok(scheduler.refuse(RefusalReason::Occupied, "a scheduler is connected")?);
    }
    let setup = sidecar.wait_for("KV layout", |state| {
        let (_, extents) = state.layout.filter(|_| state.has_kv)?;
        let granted = state.extents.keys().copied().collect();
        Some(SchedulerSetup { extent_blocks: extents.extent_blocks, extents: extents.extents, granted })
    })?;
    let pool = sidecar.lock().pool.file().try_clone_to_owned()?;
    let SchedulerLink { sender, mut receiver, process, .. } = scheduler.send_setup(&setup, pool.as_fd())?;
    sidecar.change(|state| {
        state.scheduler = Some(sender);
        state.is_held = false;
        (state.granted, state.withdrawn) = (Vec::new(), Vec::new());
    });
    print(&json!({"event": "scheduler_started", "setup": setup}));
    let error = loop {
        match receiver.recv() {
            Ok(SchedulerEvent::Held(held)) => sidecar.change(|state| state.held = Some(held)),
            Ok(SchedulerEvent::Retired(retired)) => sidecar.change(|state| state.retired = Some(retired)),
            Ok(SchedulerEvent::Demand(demand)) => print(&json!({"event": "demand", "demand": demand})),
            Ok(SchedulerEvent::Bye) => print(&json!({"event": "scheduler_bye"})),
            Err(error) => break error,
        }
    };
    sidecar.change(|state| (state.scheduler, state.is_held) = (None, false));
    let has_exited = process.wait_exit(EXIT_LIMIT)?;
    print(&json!({"event": "scheduler_gone", "exited": has_exited, "error": error.to_string()}));
    Ok(())
}

//! Changes of mappings on their way to the worker.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_link::error::LinkError;
use sluice_link::server::worker::WorkerSender;
use sluice_memory::EngineConnection;
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::{ActionId, ChunkId};

use super::extent_map::ExtentMap;
use crate::engine_loop::backend::{EngineHandle, MappingCommands};

impl MappingCommands for WorkerSender {
    fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError> {
        WorkerSender::send_remap(self, id, ops)
    }

    fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        WorkerSender::send_chunks(self, chunks)
    }

    fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError> {
        WorkerSender::send_release(self, id, chunks)
    }

    fn shutdown(&self) {
        WorkerSender::shutdown(self);
    }
}

/// The worker as device memory sees it. Device memory knows the KV chunks of the memory manager; the worker has the
/// addresses of its own layout.
#[derive(Clone, Debug, Default)]
pub struct WorkerConnection {
    handle: EngineHandle<WorkerSender>,
    /// `None` until the worker has laid its KV out.
    map: Arc<Mutex<Option<ExtentMap>>>,
}

impl WorkerConnection {
    /// Returns the worker's handle.
    pub fn handle(&self) -> &EngineHandle<WorkerSender> {
        &self.handle
    }

    /// Returns the worker's KV, if it is laid out.
    pub fn map(&self) -> MutexGuard<'_, Option<ExtentMap>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends changes at the worker's addresses. Returns false if no worker is attached.
    pub fn remap_at_worker(&mut self, id: ActionId, ops: &[MapOp]) -> bool {
        self.handle.remap(id, ops)
    }
}

impl EngineConnection for WorkerConnection {
    fn remap(&mut self, id: ActionId, ops: &[MapOp]) -> bool {
        let translated = match &mut *self.map() {
            Some(map) => map.translate(ops),
            None => of_layers(ops),
        };
        !translated.is_empty() && self.handle.remap(id, &translated)
    }

    fn release(&mut self, id: ActionId, chunks: &[ChunkId]) -> bool {
        self.handle.release(id, chunks)
    }
}

/// Returns the changes of decoder layers. The worker keeps its other parameters in memory of its own.
pub fn of_layers(ops: &[MapOp]) -> Vec<MapOp> {
    let is_layer =
        |op: &MapOp| matches!(op, MapOp::Map(Address::Layer(..), _) | MapOp::Unmap(Address::Layer(..), _));
    ops.iter().filter(|op| is_layer(op)).copied().collect()
}

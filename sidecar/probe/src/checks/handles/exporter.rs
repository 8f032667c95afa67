//! The child process of check 3: allocates memory and releases it or passes it on.

use std::os::fd::AsFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{Chunk, Range};

use super::chunks::{CHUNK, CHUNKS, handles, remap_all, unmap_all};
use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::checks::role::Role;
use crate::child_process::ParentPipe;

/// The role's name and function.
pub const ROLE: (&str, Role) = ("peer", run);

/// Commands of the parent. The process replies to each when it is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ExporterCommand {
    /// Create and map 100 chunks.
    Fill,
    /// Unmap and release them.
    Release,
    /// Unmap them, send their descriptors and release them.
    HandOver,
}

fn run(setup: ProbeOptions, parent: &ParentPipe) -> Result<(), Error> {
    let bench = Bench::open(setup)?;
    let mut range = Range::reserve(&bench.context, CHUNKS * CHUNK)?;
    let mut held: Vec<Arc<Chunk>> = Vec::new();
    while let Some((order, _)) = parent.recv_or_exit()? {
        match order {
            ExporterCommand::Fill => {
                held = handles(&bench)?;
                remap_all(&mut range, &held)?;
                parent.send(&(), &[])?;
            }
            ExporterCommand::Release => {
                unmap_all(&mut range)?;
                held.drain(..).try_for_each(Chunk::release)?;
                parent.send(&(), &[])?;
            }
            ExporterCommand::HandOver => {
                unmap_all(&mut range)?;
                let fds = held.iter().map(|chunk| chunk.export()).collect::<Result<Vec<_>, _>>()?;
                let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                parent.send(&(), &borrowed)?;
                held.drain(..).try_for_each(Chunk::release)?;
            }
        }
    }
    Ok(())
}

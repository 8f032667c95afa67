//! The second process of row 3: has memory and gives it up.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use super::{CHUNK, CHUNKS, back_all, handles, unmap_all};
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::cuda::{Handle, Range};
use crate::peer::Parent;
use crate::rows::Role;

/// Its role.
pub const ROLE: (&str, Role) = ("neighbour", run);

/// What it is told. It answers each when it is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Create and map 100 chunks.
    Fill,
    /// Unmap and release them.
    Release,
    /// Unmap them, send their descriptors and release them.
    HandOver,
}

fn run(setup: Setup, parent: &Parent) -> Result<(), Error> {
    let bench = Bench::open(setup)?;
    let mut range = Range::reserve(&bench.context, CHUNKS * CHUNK)?;
    let mut held: Vec<Handle> = Vec::new();
    while let Some((order, _)) = parent.hear_or_end()? {
        match order {
            Order::Fill => {
                held = handles(&bench)?;
                back_all(&mut range, &held)?;
                parent.tell(&(), &[])?;
            }
            Order::Release => {
                unmap_all(&mut range)?;
                held.drain(..).try_for_each(Handle::release)?;
                parent.tell(&(), &[])?;
            }
            Order::HandOver => {
                unmap_all(&mut range)?;
                let fds = held.iter().map(Handle::export).collect::<Result<Vec<_>, _>>()?;
                let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                parent.tell(&(), &borrowed)?;
                held.drain(..).try_for_each(Handle::release)?;
            }
        }
    }
    Ok(())
}

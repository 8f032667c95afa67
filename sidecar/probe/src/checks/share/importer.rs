//! The child process of check 2: imports the handles that the parent sends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{Chunk, Range, Stream};

use super::wrong_words::wrong_words;
use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::checks::role::Role;
use crate::child_process::ParentPipe;
use crate::kernels::Kernels;
use crate::statistics::timed;

/// The role's name and function.
pub const ROLE: (&str, Role) = ("importer", run);

/// Commands of the parent. The first three have a descriptor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ImporterCommand {
    /// Compare with `ours`, then write `theirs`.
    Check {
        /// Size of the handle.
        bytes: u64,
        /// Pattern that the parent wrote.
        ours: u64,
        /// Pattern to write.
        theirs: u64,
    },
    /// Import, map, unmap and release repeatedly.
    Time {
        /// Size of the handle.
        bytes: u64,
        /// Number of rounds.
        rounds: u32,
    },
    /// Import, map and keep both, and the descriptor.
    Hold {
        /// Size of the handle.
        bytes: u64,
    },
    /// Drop one of these references.
    Drop(HeldReference),
}

/// A reference that holds a handle's memory in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldReference {
    /// The mapping.
    Mapping,
    /// The import.
    Import,
    /// The descriptor.
    Descriptor,
    /// The process itself; it is killed.
    Process,
}

impl HeldReference {
    /// The references that a process can drop while it runs.
    pub const WITHOUT_PROCESS: [HeldReference; 3] =
        [HeldReference::Mapping, HeldReference::Import, HeldReference::Descriptor];

    /// Returns the reference's name.
    pub fn words(self) -> &'static str {
        match self {
            HeldReference::Mapping => "mapping",
            HeldReference::Import => "import",
            HeldReference::Descriptor => "descriptor",
            HeldReference::Process => "process (killed)",
        }
    }
}

/// Replies to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ImporterReply {
    /// Number of wrong words.
    Wrong(u64),
    /// Times of the calls.
    Costs(Costs),
    /// The command is done.
    Done,
}

impl ImporterReply {
    /// Accepts only [`ImporterReply::Done`].
    pub fn done(self) -> Result<(), Error> {
        if let ImporterReply::Done = self { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Returns the error for a reply that does not match the command.
    pub fn unexpected(&self) -> Error {
        Error::Peer { role: ROLE.0.into(), what: format!("answered {self:?}") }
    }
}

/// Microseconds per call, by round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Costs {
    /// `cuMemImportFromShareableHandle`.
    pub import: Vec<f64>,
    /// `cuMemMap`.
    pub map: Vec<f64>,
    /// `cuMemSetAccess`.
    pub allow: Vec<f64>,
    /// `cuMemUnmap`.
    pub unmap: Vec<f64>,
    /// `cuMemRelease`.
    pub release: Vec<f64>,
}

/// The references kept between commands.
#[derive(Default)]
struct HeldImport {
    range: Option<Range>,
    handle: Option<Arc<Chunk>>,
    descriptor: Option<OwnedFd>,
}

/// Executes commands until the parent closes the channel.
fn run(setup: ProbeOptions, parent: &ParentPipe) -> Result<(), Error> {
    let bench = Bench::open(setup)?;
    let mut held = HeldImport::default();
    while let Some((order, fds)) = parent.recv_or_exit()? {
        let reply = execute(&bench, order, fds, &mut held)?;
        parent.send(&reply, &[])?;
    }
    Ok(())
}

fn execute(
    bench: &Bench,
    order: ImporterCommand,
    mut fds: Vec<OwnedFd>,
    held: &mut HeldImport,
) -> Result<ImporterReply, Error> {
    let mut descriptor = || {
        let lost = || Error::Peer { role: "parent".into(), what: "sent no descriptor".into() };
        fds.pop().ok_or_else(lost)
    };
    match order {
        ImporterCommand::Check { bytes, ours, theirs } => {
            check(bench, &descriptor()?, bytes, (ours, theirs)).map(ImporterReply::Wrong)
        }
        ImporterCommand::Time { bytes, rounds } => {
            time(bench, &descriptor()?, bytes, rounds).map(ImporterReply::Costs)
        }
        ImporterCommand::Hold { bytes } => {
            *held = hold(bench, descriptor()?, bytes)?;
            Ok(ImporterReply::Done)
        }
        ImporterCommand::Drop(part) => {
            match part {
                HeldReference::Mapping => drop(held.range.take()),
                HeldReference::Import => drop(held.handle.take()),
                HeldReference::Descriptor | HeldReference::Process => drop(held.descriptor.take()),
            }
            Ok(ImporterReply::Done)
        }
    }
}

fn check(bench: &Bench, fd: &OwnedFd, bytes: u64, (ours, theirs): (u64, u64)) -> Result<u64, Error> {
    let (stream, kernels) = (Stream::new(&bench.context)?, Kernels::load(&bench.context)?);
    let handle = Chunk::import(&bench.context, fd.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.map_with_access(0, &handle)?;
    let wrong = wrong_words(bench, &kernels, &range, bytes, ours)?;
    kernels.write(&stream, range.at(0), bytes / 8, theirs)?;
    stream.finish()?;
    Ok(wrong)
}

fn time(bench: &Bench, fd: &OwnedFd, bytes: u64, rounds: u32) -> Result<Costs, Error> {
    let mut costs = Costs::default();
    let mut range = Range::reserve(&bench.context, bytes)?;
    for _ in 0..rounds {
        let handle = timed(&mut costs.import, || Chunk::import(&bench.context, fd.as_fd(), bytes))?;
        timed(&mut costs.map, || range.map(0, &handle))?;
        timed(&mut costs.allow, || range.set_access(0, bytes))?;
        timed(&mut costs.unmap, || range.unmap(0))?;
        timed(&mut costs.release, || handle.release())?;
    }
    Ok(costs)
}

fn hold(bench: &Bench, descriptor: OwnedFd, bytes: u64) -> Result<HeldImport, Error> {
    let handle = Chunk::import(&bench.context, descriptor.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.map_with_access(0, &handle)?;
    Ok(HeldImport { range: Some(range), handle: Some(handle), descriptor: Some(descriptor) })
}

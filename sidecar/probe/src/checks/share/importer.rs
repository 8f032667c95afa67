//! The second process of row 2: imports what it is sent.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::wrong_words;
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::checks::Role;
use crate::child_process::ParentPipe;
use crate::cuda::{Handle, Kernels, Range, Stream};
use crate::statistics::timed;

/// Its role.
pub const ROLE: (&str, Role) = ("importer", run);

/// What it is told. The first three come with a descriptor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ImporterCommand {
    /// Compare with `ours`, then write `theirs`.
    Check {
        /// Size of the handle.
        bytes: u64,
        /// What is written there.
        ours: u64,
        /// What to write.
        theirs: u64,
    },
    /// Import, map, unmap and release, again and again.
    Time {
        /// Size of the handle.
        bytes: u64,
        /// How often.
        rounds: u32,
    },
    /// Import, map and keep, the descriptor too.
    Hold {
        /// Size of the handle.
        bytes: u64,
    },
    /// Let go of one part of that.
    Drop(HeldReference),
}

/// What holds a handle's memory in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldReference {
    /// A mapping.
    Mapping,
    /// The import.
    Import,
    /// The descriptor.
    Descriptor,
    /// The process itself, which is killed.
    Process,
}

impl HeldReference {
    /// All that a process can let go of without ending.
    pub const WITHOUT_PROCESS: [HeldReference; 3] =
        [HeldReference::Mapping, HeldReference::Import, HeldReference::Descriptor];

    /// Its name.
    pub fn words(self) -> &'static str {
        match self {
            HeldReference::Mapping => "mapping",
            HeldReference::Import => "import",
            HeldReference::Descriptor => "descriptor",
            HeldReference::Process => "process (killed)",
        }
    }
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ImporterReply {
    /// Words that were not as expected.
    Wrong(u64),
    /// Microseconds of each call.
    Costs(Costs),
    /// Done.
    Done,
}

impl ImporterReply {
    /// Nothing but "done".
    pub fn done(self) -> Result<(), Error> {
        if let ImporterReply::Done = self { Ok(()) } else { Err(self.unexpected()) }
    }

    /// What to say of an answer that fits no order.
    pub fn unexpected(&self) -> Error {
        Error::Peer { role: ROLE.0.into(), what: format!("answered {self:?}") }
    }
}

/// Microseconds of each call, by round.
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

/// What is kept between orders.
#[derive(Default)]
struct HeldImport {
    range: Option<Range>,
    handle: Option<Handle>,
    descriptor: Option<OwnedFd>,
}

/// Does what it is told until it is told nothing more.
fn run(setup: Setup, parent: &ParentPipe) -> Result<(), Error> {
    let bench = Bench::open(setup)?;
    let mut held = HeldImport::default();
    while let Some((order, fds)) = parent.recv_or_exit()? {
        let heard = execute(&bench, order, fds, &mut held)?;
        parent.send(&heard, &[])?;
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
    let handle = Handle::import(&bench.context, fd.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.remap(0, &handle)?;
    let wrong = wrong_words(bench, &kernels, &range, bytes, ours)?;
    kernels.write(&stream, range.at(0), bytes / 8, theirs)?;
    stream.finish()?;
    Ok(wrong)
}

fn time(bench: &Bench, fd: &OwnedFd, bytes: u64, rounds: u32) -> Result<Costs, Error> {
    let mut costs = Costs::default();
    let mut range = Range::reserve(&bench.context, bytes)?;
    for _ in 0..rounds {
        let handle = timed(&mut costs.import, || Handle::import(&bench.context, fd.as_fd(), bytes))?;
        timed(&mut costs.map, || range.map(0, &handle))?;
        timed(&mut costs.allow, || range.allow(0, bytes))?;
        timed(&mut costs.unmap, || range.unmap(0))?;
        timed(&mut costs.release, || handle.release())?;
    }
    Ok(costs)
}

fn hold(bench: &Bench, descriptor: OwnedFd, bytes: u64) -> Result<HeldImport, Error> {
    let handle = Handle::import(&bench.context, descriptor.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.remap(0, &handle)?;
    Ok(HeldImport { range: Some(range), handle: Some(handle), descriptor: Some(descriptor) })
}

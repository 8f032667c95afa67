//! The second process of row 2: imports what it is sent.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::wrong_words;
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::cuda::{Handle, Kernels, Range, Stream};
use crate::peer::Parent;
use crate::rows::Role;
use crate::statistics::timed;

/// Its role.
pub const ROLE: (&str, Role) = ("importer", run);

/// What it is told. The first three come with a descriptor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
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
    Drop(Part),
}

/// What holds a handle's memory in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// A mapping.
    Mapping,
    /// The import.
    Import,
    /// The descriptor.
    Descriptor,
    /// The process itself, which is killed.
    Process,
}

impl Part {
    /// All that a process can let go of without ending.
    pub const BUT_PROCESS: [Part; 3] = [Part::Mapping, Part::Import, Part::Descriptor];

    /// Its name.
    pub fn words(self) -> &'static str {
        match self {
            Part::Mapping => "mapping",
            Part::Import => "import",
            Part::Descriptor => "descriptor",
            Part::Process => "process (killed)",
        }
    }
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Heard {
    /// Words that were not as expected.
    Wrong(u64),
    /// Microseconds of each call.
    Costs(Costs),
    /// Done.
    Done,
}

impl Heard {
    /// Nothing but "done".
    pub fn done(self) -> Result<(), Error> {
        if let Heard::Done = self { Ok(()) } else { Err(self.unexpected()) }
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
struct Held {
    range: Option<Range>,
    handle: Option<Handle>,
    descriptor: Option<OwnedFd>,
}

/// Does what it is told until it is told nothing more.
fn run(setup: Setup, parent: &Parent) -> Result<(), Error> {
    let bench = Bench::open(setup)?;
    let mut held = Held::default();
    while let Some((order, fds)) = parent.hear_or_end()? {
        let heard = obey(&bench, order, fds, &mut held)?;
        parent.tell(&heard, &[])?;
    }
    Ok(())
}

fn obey(bench: &Bench, order: Order, mut fds: Vec<OwnedFd>, held: &mut Held) -> Result<Heard, Error> {
    let mut descriptor = || {
        let lost = || Error::Peer { role: "parent".into(), what: "sent no descriptor".into() };
        fds.pop().ok_or_else(lost)
    };
    match order {
        Order::Check { bytes, ours, theirs } => {
            check(bench, &descriptor()?, bytes, (ours, theirs)).map(Heard::Wrong)
        }
        Order::Time { bytes, rounds } => time(bench, &descriptor()?, bytes, rounds).map(Heard::Costs),
        Order::Hold { bytes } => {
            *held = hold(bench, descriptor()?, bytes)?;
            Ok(Heard::Done)
        }
        Order::Drop(part) => {
            match part {
                Part::Mapping => drop(held.range.take()),
                Part::Import => drop(held.handle.take()),
                Part::Descriptor | Part::Process => drop(held.descriptor.take()),
            }
            Ok(Heard::Done)
        }
    }
}

fn check(bench: &Bench, fd: &OwnedFd, bytes: u64, (ours, theirs): (u64, u64)) -> Result<u64, Error> {
    let (stream, kernels) = (Stream::new(&bench.context)?, Kernels::load(&bench.context)?);
    let handle = Handle::import(&bench.context, fd.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.back(0, &handle)?;
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

fn hold(bench: &Bench, descriptor: OwnedFd, bytes: u64) -> Result<Held, Error> {
    let handle = Handle::import(&bench.context, descriptor.as_fd(), bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.back(0, &handle)?;
    Ok(Held { range: Some(range), handle: Some(handle), descriptor: Some(descriptor) })
}

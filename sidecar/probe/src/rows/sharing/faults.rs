//! Who goes on when one of two engines dies: the other one, the owner of the memory, a new engine.

use std::os::fd::AsFd;

use super::worker::{self, Order, Reply};
use super::{Environment, WORKER};
use crate::Error;
use crate::bench::Bench;
use crate::cuda::memory::granularity;
use crate::cuda::{Handle, Kernels, Range, Stream};
use crate::peer::Peer;

/// What is written into the memory before the deaths.
const VALUE: u64 = 0x5111_ce00_0000_0000;

/// How an engine dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    Killed,
    Fault,
}

/// One note for each kind of death. The asking process owns memory; the engines map it.
pub fn study(bench: &Bench, engines: Environment<'_>) -> Result<Vec<String>, Error> {
    let owner = Owner::new(bench)?;
    [Death::Killed, Death::Fault].into_iter().map(|death| owner.note(engines, death)).collect()
}

struct Owner<'a> {
    bench: &'a Bench,
    // Dropped first: unmapped before the handle is released.
    range: Range,
    handle: Handle,
}

impl<'a> Owner<'a> {
    fn new(bench: &'a Bench) -> Result<Owner<'a>, Error> {
        let context = &bench.context;
        let handle = Handle::create(context, granularity(bench.device)?)?;
        let mut range = Range::reserve(context, handle.bytes())?;
        range.back(0, &handle)?;
        let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
        kernels.write(&stream, range.at(0), handle.bytes() / 8, VALUE)?;
        stream.finish()?;
        Ok(Owner { bench, range, handle })
    }

    /// Lets one of two engines die and says who goes on.
    fn note(&self, engines: Environment<'_>, death: Death) -> Result<String, Error> {
        let (mut victim, mut other) = (self.engine(engines)?, self.engine(engines)?);
        let how = match death {
            Death::Killed => {
                victim.kill();
                "after SIGKILL of an engine".to_owned()
            }
            Death::Fault => match worker::order(&mut victim, &Order::Fault, &[]) {
                Err(error) => format!("after an illegal access of an engine ({error})"),
                Ok(_) => "after an illegal access that nobody noticed".to_owned(),
            },
        };
        let other = worker::order(&mut other, &Order::Check { value: VALUE }, &[]);
        let bytes = self.handle.bytes();
        let owner = worker::check(&self.bench.context, self.range.at(0), bytes, VALUE);
        let newcomer = self.engine(engines);
        let said = [
            ("the other engine", other.map(|_| ())),
            ("the owner of the memory", owner),
            ("a new engine that maps it", newcomer.map(|_| ())),
        ];
        let said = said.map(|(who, result)| match result {
            Ok(()) => format!("{who} goes on"),
            Err(error) => format!("{who} fails ({error})"),
        });
        Ok(format!("{how}: {}", said.join("; ")))
    }

    /// An engine that has mapped the memory and seen what is in it.
    fn engine(&self, environment: Environment<'_>) -> Result<Peer, Error> {
        let mut peer = Peer::start_with(self.bench.setup, WORKER, environment)?;
        let (fd, bytes) = (self.handle.export()?, self.handle.bytes());
        worker::order(&mut peer, &Order::Import { bytes }, &[fd.as_fd()])?;
        match worker::order(&mut peer, &Order::Check { value: VALUE }, &[])? {
            Reply::Done => Ok(peer),
            Reply::Ran(_) => Err(worker::gone("answered another question")),
        }
    }
}

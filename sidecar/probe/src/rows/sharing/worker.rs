//! A process that works beside others, and maps what others export.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::work::{Load, Track, Work};
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::cuda::{Buffer, Context, Event, Handle, HostMemory, Kernels, Range, Stream};
use crate::peer::{PATIENCE, Parent, Peer};

/// What it is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Take what these loads need.
    Prepare(Vec<Load>),
    /// Work on these at once.
    Run { loads: Vec<Load>, start_ns: u64, window_ns: u64 },
    /// Map the memory whose descriptor comes with this.
    Import { bytes: u64 },
    /// Compare that memory with what its owner wrote.
    Check { value: u64 },
    /// Let a kernel run for so long, and answer when it has begun. What comes after it waits for it.
    Spin { ns: u64 },
    /// Let a kernel write where nothing is.
    Fault,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// How the work went, one track for each load.
    Ran(Vec<Track>),
}

/// An error of the other process.
pub fn gone(what: &str) -> Error {
    Error::Peer { role: super::WORKER.into(), what: what.into() }
}

/// Gives an order and waits for the answer.
pub fn order(peer: &mut Peer, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Reply, Error> {
    order_within(peer, PATIENCE, order, fds)
}

/// As [`order`], with an answer within `limit`.
pub fn order_within(
    peer: &mut Peer,
    limit: Duration,
    order: &Order,
    fds: &[BorrowedFd<'_>],
) -> Result<Reply, Error> {
    peer.tell(order, fds)?;
    heard_within(peer, limit)
}

/// The next answer; the other's own error is one of the peer.
pub fn heard(peer: &mut Peer) -> Result<Reply, Error> {
    heard_within(peer, PATIENCE)
}

fn heard_within(peer: &mut Peer, limit: Duration) -> Result<Reply, Error> {
    let (reply, _) = peer.hear_within::<Result<Reply, String>>(limit)?;
    reply.map_err(|what| gone(&format!("says: {what}")))
}

/// The whole process.
pub fn part(setup: Setup, parent: &Parent) -> Result<(), Error> {
    // What goes wrong at the start is the answer to the first order.
    let mut worker =
        Bench::open(setup).map(|bench| Worker { import: None, spin: None, crew: Vec::new(), bench });
    while let Some((order, fds)) = parent.hear_or_end::<Order>()? {
        let reply = match &mut worker {
            Ok(worker) => worker.carry_out(order, fds).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        parent.tell(&reply, &[])?;
    }
    Ok(())
}

struct Worker {
    import: Option<Import>,
    spin: Option<Spin>,
    crew: Vec<Hand>,
    bench: Bench,
}

impl Worker {
    fn carry_out(&mut self, order: Order, fds: Vec<OwnedFd>) -> Result<Reply, Error> {
        match order {
            Order::Prepare(loads) => {
                let hands = loads.into_iter().map(|load| Hand::hire(&self.bench, load));
                self.crew = hands.collect::<Result<_, _>>()?;
            }
            Order::Run { loads, start_ns, window_ns } => {
                return self.run(&loads, (start_ns, window_ns)).map(Reply::Ran);
            }
            Order::Import { bytes } => {
                let fd = fds.into_iter().next().ok_or_else(|| gone("was sent no memory"))?;
                self.import = Some(Import::new(&self.bench.context, fd, bytes)?);
            }
            Order::Spin { ns } => self.spin = Some(Spin::start(&self.bench.context, ns)?),
            Order::Check { value } => {
                self.spin.take().map_or(Ok(()), |spin| spin.stream.finish())?;
                let import = self.import.as_ref().ok_or_else(|| gone("has no memory to check"))?;
                check(&self.bench.context, import.range.at(0), import.range.bytes(), value)?;
            }
            Order::Fault => {
                let (kernels, stream) =
                    (Kernels::load(&self.bench.context)?, Stream::new(&self.bench.context)?);
                // Never mapped: the lowest page of the device's addresses.
                kernels.mark(&stream, 64, 1)?;
                stream.finish()?;
            }
        }
        Ok(Reply::Done)
    }

    /// Lets hands work at once.
    fn run(&self, loads: &[Load], shift: (u64, u64)) -> Result<Vec<Track>, Error> {
        let hands = || self.crew.iter().filter(|hand| loads.contains(&hand.load));
        for hand in hands() {
            hand.orders.send(shift).map_err(|_| gone("lost a thread"))?;
        }
        hands().map(|hand| hand.results.recv().map_err(|_| gone("lost a thread"))?).collect()
    }
}

/// Whether memory of `bytes` at `from` is what its owner wrote.
pub fn check(context: &Context, from: u64, bytes: u64, value: u64) -> Result<(), Error> {
    let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
    let (wrong, host) = (Buffer::new(context, 8)?, HostMemory::registered(context, 4096)?);
    stream.fill(wrong.at(0), 0, 8)?;
    kernels.compare(&stream, from, (bytes / 8, value), wrong.at(0))?;
    stream.download(&host, 0, wrong.at(0), 8)?;
    stream.finish()?;
    match host.word(0).load(std::sync::atomic::Ordering::SeqCst) {
        0 => Ok(()),
        wrong => Err(gone(&format!("sees {wrong} wrong words"))),
    }
}

/// Memory of another process.
struct Import {
    // Dropped first: unmapped before the handle is released.
    range: Range,
    _handle: Handle,
}

impl Import {
    fn new(context: &Context, fd: OwnedFd, bytes: u64) -> Result<Import, Error> {
        let handle = Handle::import(context, std::os::fd::AsFd::as_fd(&fd), bytes)?;
        let mut range = Range::reserve(context, bytes)?;
        range.back(0, &handle)?;
        Ok(Import { range, _handle: handle })
    }
}

/// A kernel that runs for a while.
struct Spin {
    stream: Stream,
    // Not unloaded while its kernel runs.
    _kernels: Kernels,
}

impl Spin {
    fn start(context: &Context, ns: u64) -> Result<Spin, Error> {
        let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
        // The first one loads it; the second one is next when the event is reached.
        kernels.spin(&stream, 1)?;
        let begun = Event::after(&stream)?;
        kernels.spin(&stream, ns)?;
        begun.finish()?;
        Ok(Spin { stream, _kernels: kernels })
    }
}

/// A thread with work of one kind. It ends when it is dropped.
struct Hand {
    load: Load,
    orders: Sender<(u64, u64)>,
    results: Receiver<Result<Track, Error>>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    fn hire(bench: &Bench, load: Load) -> Result<Hand, Error> {
        let (orders, inbox) = channel();
        let (outbox, results) = channel();
        let (ready, prepared) = channel();
        let (setup, context) = (bench.setup, bench.context.clone());
        let thread = thread::spawn(move || {
            let work = context.enter().and_then(|()| Work::new(setup, &context, load));
            let (work, answer) = match work {
                Ok(work) => (Some(work), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // The other end waits for the one answer.
            let _ = ready.send(answer);
            let Some(work) = work else { return };
            for (start_ns, window_ns) in inbox {
                let _ = outbox.send(work.run(start_ns, window_ns));
            }
        });
        let hand = Hand { load, orders, results, thread: Some(thread) };
        prepared.recv().map_err(|_| gone("lost a thread"))??;
        Ok(hand)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // Without a sender the thread's list of orders ends.
        self.orders = channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

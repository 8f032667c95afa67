//! A process that works beside others, and maps what others export.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::work::{Load, Track, Work};
use crate::Error;
use crate::bench::{Bench, Setup};
use crate::child_process::{ChildProcess, ParentPipe, REPLY_LIMIT};
use crate::cuda::{Buffer, Context, Event, Handle, HostMemory, Kernels, Range, Stream};

/// What it is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerCommand {
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
pub enum WorkerReply {
    /// It is done.
    Done,
    /// How the work went, one track for each load.
    Ran(Vec<Track>),
}

/// An error of the other process.
pub fn unexpected_reply(what: &str) -> Error {
    Error::Peer { role: super::WORKER.into(), what: what.into() }
}

/// Gives an request and waits for the answer.
pub fn request(
    peer: &mut ChildProcess,
    request: &WorkerCommand,
    fds: &[BorrowedFd<'_>],
) -> Result<WorkerReply, Error> {
    request_within(peer, REPLY_LIMIT, request, fds)
}

/// As [`request`], with an answer within `limit`.
pub fn request_within(
    peer: &mut ChildProcess,
    limit: Duration,
    request: &WorkerCommand,
    fds: &[BorrowedFd<'_>],
) -> Result<WorkerReply, Error> {
    peer.send(request, fds)?;
    recv_reply_within(peer, limit)
}

/// The next answer; the other's own error is one of the peer.
pub fn recv_reply(peer: &mut ChildProcess) -> Result<WorkerReply, Error> {
    recv_reply_within(peer, REPLY_LIMIT)
}

fn recv_reply_within(peer: &mut ChildProcess, limit: Duration) -> Result<WorkerReply, Error> {
    let (reply, _) = peer.recv_within::<Result<WorkerReply, String>>(limit)?;
    reply.map_err(|what| unexpected_reply(&format!("says: {what}")))
}

/// The whole process.
pub fn run_worker(setup: Setup, parent: &ParentPipe) -> Result<(), Error> {
    // What goes wrong at the start is the answer to the first request.
    let mut worker =
        Bench::open(setup).map(|bench| Worker { import: None, spin: None, threads: Vec::new(), bench });
    while let Some((request, fds)) = parent.recv_or_exit::<WorkerCommand>()? {
        let reply = match &mut worker {
            Ok(worker) => worker.execute(request, fds).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        parent.send(&reply, &[])?;
    }
    Ok(())
}

struct Worker {
    import: Option<Import>,
    spin: Option<Spin>,
    threads: Vec<LoadThread>,
    bench: Bench,
}

impl Worker {
    fn execute(&mut self, request: WorkerCommand, fds: Vec<OwnedFd>) -> Result<WorkerReply, Error> {
        match request {
            WorkerCommand::Prepare(loads) => {
                let hands = loads.into_iter().map(|load| LoadThread::start_thread(&self.bench, load));
                self.threads = hands.collect::<Result<_, _>>()?;
            }
            WorkerCommand::Run { loads, start_ns, window_ns } => {
                return self.run(&loads, (start_ns, window_ns)).map(WorkerReply::Ran);
            }
            WorkerCommand::Import { bytes } => {
                let fd = fds.into_iter().next().ok_or_else(|| unexpected_reply("was sent no memory"))?;
                self.import = Some(Import::new(&self.bench.context, fd, bytes)?);
            }
            WorkerCommand::Spin { ns } => self.spin = Some(Spin::start(&self.bench.context, ns)?),
            WorkerCommand::Check { value } => {
                self.spin.take().map_or(Ok(()), |spin| spin.stream.finish())?;
                let import =
                    self.import.as_ref().ok_or_else(|| unexpected_reply("has no memory to check"))?;
                check(&self.bench.context, import.range.at(0), import.range.bytes(), value)?;
            }
            WorkerCommand::Fault => {
                let (kernels, stream) =
                    (Kernels::load(&self.bench.context)?, Stream::new(&self.bench.context)?);
                // Never mapped: the lowest page of the device's addresses.
                kernels.mark(&stream, 64, 1)?;
                stream.finish()?;
            }
        }
        Ok(WorkerReply::Done)
    }

    /// Lets hands work at once.
    fn run(&self, loads: &[Load], shift: (u64, u64)) -> Result<Vec<Track>, Error> {
        let hands = || self.threads.iter().filter(|hand| loads.contains(&hand.load));
        for hand in hands() {
            hand.orders.send(shift).map_err(|_| unexpected_reply("lost a thread"))?;
        }
        hands().map(|hand| hand.results.recv().map_err(|_| unexpected_reply("lost a thread"))?).collect()
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
        wrong => Err(unexpected_reply(&format!("sees {wrong} wrong words"))),
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
        range.remap(0, &handle)?;
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
struct LoadThread {
    load: Load,
    orders: Sender<(u64, u64)>,
    results: Receiver<Result<Track, Error>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadThread {
    fn start_thread(bench: &Bench, load: Load) -> Result<LoadThread, Error> {
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
        let hand = LoadThread { load, orders, results, thread: Some(thread) };
        prepared.recv().map_err(|_| unexpected_reply("lost a thread"))??;
        Ok(hand)
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        // Without a sender the thread's list of orders ends.
        self.orders = channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! The child process of check 5: works concurrently with others and maps memory that others export.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{Buffer, Chunk, Context, Event, PinnedMemory, Range, Stream};

use super::work::{Load, RunningLoad, Track};
use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::child_process::{ChildProcess, ParentPipe, REPLY_LIMIT};
use crate::kernels::Kernels;

/// Role of the process.
pub const WORKER: &str = "worker";
/// Time between a start command and the start, so that every process has read the command.
pub const LEAD: Duration = Duration::from_millis(30);

/// Commands of the parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerCommand {
    /// Allocate the resources of these loads.
    Prepare(Vec<Load>),
    /// Run these loads at the same time.
    Run { loads: Vec<Load>, start_ns: u64, window_ns: u64 },
    /// Start these loads at the same time, and reply at once. They end with the window, or with the process.
    Start { loads: Vec<Load>, start_ns: u64, window_ns: u64 },
    /// Reply with an error if a started load has ended.
    StillRuns,
    /// Map the memory whose descriptor is sent with this command.
    Import { bytes: u64 },
    /// Compare that memory with the owner's pattern.
    Check { value: u64 },
    /// Run a kernel for `ns` nanoseconds, and reply when it starts. A later check waits for it.
    Spin { ns: u64 },
    /// Run a kernel that writes to an unmapped address.
    Fault,
}

/// Replies to the parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerReply {
    /// The command is done.
    Done,
    /// Results, one track per load.
    Ran(Vec<Track>),
}

/// Returns an error of the worker process.
pub fn unexpected_reply(what: &str) -> Error {
    Error::Peer { role: WORKER.into(), what: what.into() }
}

/// Sends a request and waits for the reply.
pub fn request(
    peer: &mut ChildProcess,
    request: &WorkerCommand,
    fds: &[BorrowedFd<'_>],
) -> Result<WorkerReply, Error> {
    request_within(peer, REPLY_LIMIT, request, fds)
}

/// Like [`request`], with a reply within `limit`.
pub fn request_within(
    peer: &mut ChildProcess,
    limit: Duration,
    request: &WorkerCommand,
    fds: &[BorrowedFd<'_>],
) -> Result<WorkerReply, Error> {
    peer.send(request, fds)?;
    recv_reply_within(peer, limit)
}

/// Receives the next reply; an error that it reports becomes an error of the peer.
pub fn recv_reply(peer: &mut ChildProcess) -> Result<WorkerReply, Error> {
    recv_reply_within(peer, REPLY_LIMIT)
}

fn recv_reply_within(peer: &mut ChildProcess, limit: Duration) -> Result<WorkerReply, Error> {
    let (reply, _) = peer.recv_within::<Result<WorkerReply, String>>(limit)?;
    reply.map_err(|what| unexpected_reply(&format!("says: {what}")))
}

/// The main function of the process.
pub fn run_worker(setup: ProbeOptions, parent: &ParentPipe) -> Result<(), Error> {
    // An error at the start is the reply to each request.
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
            WorkerCommand::Start { loads, start_ns, window_ns } => {
                self.start_loads(&loads, (start_ns, window_ns))?;
            }
            WorkerCommand::StillRuns => self.threads.iter().try_for_each(LoadThread::check_running)?,
            WorkerCommand::Import { bytes } => {
                let fd = fds.into_iter().next().ok_or_else(|| unexpected_reply("received no memory"))?;
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
                // Address 64 is in the lowest page of the device's addresses, which is never mapped.
                kernels.mark(&stream, 64, 1)?;
                stream.finish()?;
            }
        }
        Ok(WorkerReply::Done)
    }

    /// Runs the threads of these loads at the same time.
    fn run(&self, loads: &[Load], shift: (u64, u64)) -> Result<Vec<Track>, Error> {
        self.start_loads(loads, shift)?;
        let results = self.hands(loads).map(|hand| hand.results.recv());
        results.map(|result| result.map_err(|_| unexpected_reply("lost a thread"))?).collect()
    }

    fn start_loads(&self, loads: &[Load], shift: (u64, u64)) -> Result<(), Error> {
        let mut sent = self.hands(loads).map(|hand| hand.orders.send(shift));
        sent.try_for_each(|sent| sent.map_err(|_| unexpected_reply("lost a thread")))
    }

    fn hands(&self, loads: &[Load]) -> impl Iterator<Item = &LoadThread> {
        self.threads.iter().filter(|hand| loads.contains(&hand.load))
    }
}

/// Checks that `bytes` of memory at `from` hold the owner's pattern.
pub fn check(context: &Context, from: u64, bytes: u64, value: u64) -> Result<(), Error> {
    let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
    let (wrong, host) = (Buffer::new(context, 8)?, PinnedMemory::registered(context, 4096)?);
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
    range: Range,
}

impl Import {
    fn new(context: &Context, fd: OwnedFd, bytes: u64) -> Result<Import, Error> {
        let handle = Chunk::import(context, std::os::fd::AsFd::as_fd(&fd), bytes)?;
        let mut range = Range::reserve(context, bytes)?;
        range.map_with_access(0, &handle)?;
        Ok(Import { range })
    }
}

/// A kernel that runs for a given time.
struct Spin {
    stream: Stream,
    // Kept, because a running kernel must not be unloaded.
    _kernels: Kernels,
}

impl Spin {
    fn start(context: &Context, ns: u64) -> Result<Spin, Error> {
        let (kernels, stream) = (Kernels::load(context)?, Stream::new(context)?);
        // The first kernel loads the code; the second one starts right after the event.
        kernels.spin(&stream, 1)?;
        let begun = Event::after(&stream)?;
        kernels.spin(&stream, ns)?;
        begun.finish()?;
        Ok(Spin { stream, _kernels: kernels })
    }
}

/// A thread with one kind of load; its work is ended and it is joined on drop.
struct LoadThread {
    load: Load,
    orders: Sender<(u64, u64)>,
    results: Receiver<Result<Track, Error>>,
    /// Set to end the work before its window has passed.
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadThread {
    fn start_thread(bench: &Bench, load: Load) -> Result<LoadThread, Error> {
        let (orders, inbox) = channel();
        let (outbox, results) = channel();
        let (ready, prepared) = channel();
        let (setup, context) = (bench.setup, bench.context.clone());
        let ends = Arc::new(AtomicBool::new(false));
        let thread_ends = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let work =
                context.enter().map_err(Error::from).and_then(|()| RunningLoad::new(setup, &context, load));
            let (work, answer) = match work {
                Ok(work) => (Some(work), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // The other end waits for this one reply.
            let _ = ready.send(answer);
            let Some(work) = work else { return };
            for (start_ns, window_ns) in inbox {
                let _ = outbox.send(work.run((start_ns, window_ns), &thread_ends));
            }
        });
        let hand = LoadThread { load, orders, results, ends, thread: Some(thread) };
        prepared.recv().map_err(|_| unexpected_reply("lost a thread"))??;
        Ok(hand)
    }

    /// Fails if the started work has ended.
    fn check_running(&self) -> Result<(), Error> {
        match self.results.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(unexpected_reply("lost a thread")),
            Ok(result) => result.and(Err(unexpected_reply("ended its work too early"))),
        }
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread ends when its channel has no sender.
        self.orders = channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

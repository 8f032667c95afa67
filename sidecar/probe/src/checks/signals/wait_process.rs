//! The child process of check 6: waits like an engine for its sidecar.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{
    self, Address, Buffer, Event, ExecGraph, GraphBuilder, PinnedMemory, Stream,
    graph::{GraphNode, MemOp},
};

use super::page::{ARMED, FLAG, GATE, GO, LAYER, SEEN, SignalPage};
use super::signal_path::SignalPath;
use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::child_process::{ChildProcess, ParentPipe};
use crate::kernels::FlagWait;
use crate::kernels::Kernels;

/// Role of the process.
pub const WAIT_PROCESS: &str = "waiter";
/// Layers of the graph whose cost is measured.
pub const LAYERS: u64 = 32;
/// Time limit of a waiting kernel. Longer than the limit for the kernel's result.
const KERNEL_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for work in this process.
const LIMIT: Duration = Duration::from_secs(2);

/// Commands of the parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum WaitCommand {
    /// Queue a wait for step `value` and a kernel on a stream, and reply when the stream reaches the wait.
    Arm { way: SignalPath, value: u64 },
    /// Measure graphs whose words are all written.
    Cost { way: SignalPath, steps: u64 },
}

/// Replies to the parent.
#[derive(Debug, Serialize, Deserialize)]
pub enum WaitReply {
    /// The command is done.
    Done,
    /// The measured costs.
    Costs(Costs),
}

/// Costs of steps of a graph in microseconds, one value per step.
#[derive(Debug, Serialize, Deserialize)]
pub struct Costs {
    /// CPU time from the first change of a node to the end of the launch.
    pub host_us: Vec<f64>,
    /// Device time from the first node to the last.
    pub device_us: Vec<f64>,
    /// Device time in a graph without waits.
    pub bare_us: Vec<f64>,
}

/// Receives the next reply of a waiting process; an error that it reports becomes an error of the peer.
pub fn recv_reply(peer: &mut ChildProcess) -> Result<WaitReply, Error> {
    let (reply, _) = peer.recv::<Result<WaitReply, String>>()?;
    reply.map_err(|what| Error::Peer { role: WAIT_PROCESS.into(), what: format!("says: {what}") })
}

/// The main function of the process.
pub fn run_wait_process(setup: ProbeOptions, parent: &ParentPipe) -> Result<(), Error> {
    let ((), mut fds) = parent.recv()?;
    let file = fds.pop().ok_or(Error::Peer { role: "parent".into(), what: "sent no page".into() })?;
    let bench = Bench::open(setup)?;
    let mut process = WaitProcess::new(&bench, SignalPage::from_file(&bench.context, file)?)?;
    send_reply(parent, Ok(WaitReply::Done))?;
    while let Some((order, _)) = parent.recv_or_exit()? {
        match order {
            WaitCommand::Arm { way, value } => {
                send_reply(parent, process.arm(way, value).map(|()| WaitReply::Done))?
            }
            WaitCommand::Cost { way, steps } => {
                send_reply(parent, process.cost(way, steps).map(WaitReply::Costs))?
            }
        }
    }
    Ok(())
}

fn send_reply(parent: &ParentPipe, reply: Result<WaitReply, Error>) -> Result<(), Error> {
    parent.send(&reply.map_err(|error| error.to_string()), &[])
}

struct WaitProcess<'a> {
    bench: &'a Bench,
    // Dropped before the memory that its work uses.
    stream: Stream,
    graph: Option<Graph>,
    kernels: Kernels,
    page: SignalPage,
    /// Words: counter, number of kernels that timed out, a word that the layers write, and the counter of the gate.
    words: Buffer,
}

/// A graph and the nodes that change before a launch.
struct Graph {
    ready: ExecGraph,
    waits: Vec<GraphNode>,
}

impl<'a> WaitProcess<'a> {
    fn new(bench: &'a Bench, page: SignalPage) -> Result<WaitProcess<'a>, Error> {
        let kernels = Kernels::load(&bench.context)?;
        let (stream, words) = (Stream::new(&bench.context)?, Buffer::new(&bench.context, 4096)?);
        stream.fill(words.at(0), 0, 4096)?;
        let process = WaitProcess { bench, stream, graph: None, kernels, page, words };
        // Run each kernel once while nothing waits, so that its code is loaded.
        process.kernels.await_flag(&process.stream, process.wait(process.words.at(0), true))?;
        let mark = || process.kernels.mark(&process.stream, process.counter(), 0);
        bench.warm_up(|| mark().and_then(|()| process.stream.finish()))?;
        Ok(process)
    }

    fn arm(&mut self, way: SignalPath, value: u64) -> Result<(), Error> {
        if way != SignalPath::Stream && self.graph.is_none() {
            self.kernels.mark(&self.stream, self.counter(), value)?;
            self.graph = Some(self.graph(Some(way), 1, GO, FLAG, Some(SEEN))?);
        }
        self.stream.write_value(self.page.address(ARMED), value)?;
        match &self.graph {
            Some(graph) => {
                self.prepare(way, graph, GO, value)?;
                graph.ready.launch(&self.stream)?;
            }
            None => {
                self.stream.wait_value(self.page.address(GO), value)?;
                self.kernels.mark(&self.stream, self.page.address(SEEN), 1)?;
            }
        }
        self.page.wait_for(ARMED, value, LIMIT)
    }

    fn cost(&mut self, way: SignalPath, steps: u64) -> Result<Costs, Error> {
        let bare = self.graph(None, LAYERS, LAYER, LAYER, None)?;
        let graph = self.graph(Some(way), LAYERS, LAYER, LAYER, None)?;
        self.kernels.mark(&self.stream, self.counter(), 1)?;
        self.kernels.mark(&self.stream, self.gate(), 1)?;
        let (mut host_us, mut device_us, mut bare_us) = (Vec::new(), Vec::new(), Vec::new());
        // The first step is not counted: it loads code.
        for step in 0..=steps {
            let (_, bare) = self.timed(2 * step + 1, || bare.ready.launch(&self.stream))?;
            (0..LAYERS).for_each(|layer| self.page.set(LAYER + layer, step + 1));
            let (host, device) = self.timed(2 * step + 2, || {
                self.prepare(way, &graph, LAYER, step + 1)?;
                graph.ready.launch(&self.stream)
            })?;
            if step > 0 {
                host_us.push(host);
                device_us.push(device);
                bare_us.push(bare);
            }
        }
        self.check_no_timeout()?;
        Ok(Costs { host_us, device_us, bare_us })
    }

    /// Returns the microseconds of the CPU in `launch`, and of the device for the launched work. A gate, a kernel that
    /// waits for `step`, holds the device until all work is queued; otherwise the result would be the CPU's time.
    fn timed(
        &self,
        step: u64,
        launch: impl FnOnce() -> Result<(), cuda::Error>,
    ) -> Result<(f64, f64), Error> {
        // At first launches the gate is open: loading code may wait for all streams.
        if step <= 2 {
            self.page.set(GATE, step);
        }
        let gate = FlagWait { counter: self.gate(), bump: 1, ..self.wait(self.page.address(GATE), true) };
        self.kernels.await_flag(&self.stream, gate)?;
        let before = Event::after(&self.stream)?;
        let start = Instant::now();
        let launched = launch();
        let host = start.elapsed().as_secs_f64() * 1e6;
        let after = launched.and_then(|()| Event::after(&self.stream));
        self.page.set(GATE, step);
        let after = after?;
        self.stream.finish_within(LIMIT)?;
        Ok((host, after.since_ns(&before)? / 1e3))
    }

    /// Builds a graph of `layers`: each waits for its own word, from `first` on (flags: from `flags` on), then runs a
    /// kernel that writes `seen`, or a word on the device.
    fn graph(
        &self,
        way: Option<SignalPath>,
        layers: u64,
        first: u64,
        flags: u64,
        seen: Option<u64>,
    ) -> Result<Graph, Error> {
        let mut chain = GraphBuilder::new(&self.bench.context)?;
        let mut waits = Vec::new();
        let target = seen.map_or(self.words.at(16), |word| self.page.address(word));
        for layer in 0..layers {
            let word = self.page.address(first + layer);
            let flag = self.page.address(flags + layer);
            match way {
                Some(SignalPath::Parameters) => waits.push(chain.words(&[MemOp::AtLeast(word, 0)])?),
                Some(SignalPath::Flags) => {
                    chain.words(&[MemOp::AtLeast(flag, 1), MemOp::Write(flag, 0)])?;
                }
                Some(SignalPath::Counter) => {
                    chain.kernel(&self.kernels.await_node(self.wait(word, layer + 1 == layers)))?;
                }
                Some(SignalPath::Stream) | None => {}
            }
            chain.kernel(&self.kernels.mark_node(target, 1))?;
        }
        Ok(Graph { ready: chain.instantiate()?, waits })
    }

    /// Does the work that is needed before each launch.
    fn prepare(&self, way: SignalPath, graph: &Graph, first: u64, value: u64) -> Result<(), cuda::Error> {
        if way != SignalPath::Parameters {
            return Ok(());
        }
        let words = (first..).map(|word| self.page.address(word));
        graph
            .waits
            .iter()
            .zip(words)
            .try_for_each(|(node, word)| graph.ready.set_node(*node, &[MemOp::AtLeast(word, value)]))
    }

    /// Returns a wait for the counter's value; the last wait of a step increments the counter.
    fn wait(&self, flag: Address, last: bool) -> FlagWait {
        let limit_ns = KERNEL_LIMIT.as_nanos() as u64;
        FlagWait { flag, counter: self.counter(), bump: last.into(), limit_ns, timed_out: self.words.at(8) }
    }

    fn counter(&self) -> Address {
        self.words.at(0)
    }

    /// Returns the address of the gate's counter, which is the number of openings plus one.
    fn gate(&self) -> Address {
        self.words.at(24)
    }

    fn check_no_timeout(&self) -> Result<(), Error> {
        let host = PinnedMemory::registered(&self.bench.context, 4096)?;
        self.stream.download(&host, 0, self.words.at(8), 8)?;
        self.stream.finish_within(LIMIT)?;
        match host.word(0).load(std::sync::atomic::Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Error::Timeout { what: "a kernel that waits for a word".into(), limit: KERNEL_LIMIT }),
        }
    }
}

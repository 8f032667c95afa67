//! How long a step takes when layers of many objects come in over one link.
//!
//! The link serves the transfer whose layer is computed soonest; among equals in a fixed order of objects. What arrived in
//! part stays; what is missing when a layer is about to start is waited for. An object has as many layers fetched and not
//! used up as it has buffers, the layer that is being computed included: with one buffer its stream rests while its own
//! absent layer is computed, as OrbitFlow has it. Fetches for the next step follow this step's, so progress is carried over.
//!
//! Source: OrbitFlow Fig. 3 and Algorithm 1 in the reading that reproduces the figure's numbers; setup, quantum and coupling
//! of directions are ours (DESIGN 6).

use alloc::vec::Vec;

use super::link::{Link, done_within, ends_at};
use super::problem::Problem;

/// One absent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fetch {
    /// The layer, counted from 0.
    pub layer: u16,
    /// Time of its transfer on a link that does nothing else, nanoseconds.
    pub ns: u64,
}

/// The absent layers of one object.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    /// Front first, each layer once.
    pub fetches: &'a [Fetch],
    /// Layers that may be fetched and not used up. At least 1.
    pub buffers: u16,
}

/// A step's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// From its first layer's turn to the end of its last, nanoseconds.
    pub total_ns: u64,
    /// The part in which compute waited for a transfer, nanoseconds.
    pub stall_ns: u64,
}

/// An object's absent layers and how far its transfers have come. A search asks for the most urgent one thousands of times in a
/// plan: positions are kept where one would otherwise divide.
#[derive(Debug)]
struct Lane<'a> {
    fetches: &'a [Fetch],
    /// Layers that it may have fetched and not used up.
    most: usize,
    /// Layers that are fetched and not used up.
    held: usize,
    /// When the layer that is fetched next is computed: in which round of its fetches, and which layer it is.
    due: (u32, u16),
    /// The position of the layer that is fetched next.
    next: usize,
    /// The position of the layer that is used up next.
    used: usize,
    /// Of the transfer under way, nanoseconds of work.
    partial_ns: u64,
    /// When the last whole transfer ended.
    arrived_ns: u64,
}

impl<'a> Lane<'a> {
    fn new(stream: Stream<'a>) -> Self {
        assert!(stream.buffers > 0, "what is fetched lies in a buffer");
        let (fetches, most) = (stream.fetches, usize::from(stream.buffers).min(stream.fetches.len()));
        let due = (0, fetches[0].layer);
        Lane { fetches, most, held: 0, due, next: 0, used: 0, partial_ns: 0, arrived_ns: 0 }
    }

    /// The transfer under way has ended.
    fn arrived(&mut self, now_ns: u64) {
        (self.held, self.partial_ns, self.arrived_ns) = (self.held + 1, 0, now_ns);
        self.next += 1;
        if self.next == self.fetches.len() {
            (self.next, self.due.0) = (0, self.due.0 + 1);
        }
        self.due.1 = self.fetches[self.next].layer;
    }

    /// Whether this is the next absent layer that the object computes.
    fn computes_next(&self, layer: usize) -> bool {
        usize::from(self.fetches[self.used].layer) == layer
    }

    fn lacks(&self, layer: usize) -> bool {
        self.held == 0 && self.computes_next(layer)
    }

    fn use_up(&mut self, layer: usize) {
        if self.computes_next(layer) {
            self.held -= 1;
            self.used = if self.used + 1 == self.fetches.len() { 0 } else { self.used + 1 };
        }
    }
}

/// Steps of a batch, one after another, from empty buffers on.
#[derive(Debug)]
pub struct Steps<'a> {
    link: &'a Link,
    compute_ns: &'a [u64],
    lanes: Vec<Lane<'a>>,
    now_ns: u64,
    link_free_ns: u64,
    /// Bytes go out until then.
    writing_until_ns: u64,
}

impl<'a> Steps<'a> {
    /// A batch that has fetched nothing. Objects without absent layers may be left out, and their order is of no account.
    ///
    /// # Panics
    /// If an object with absent layers has no buffer.
    pub fn new(link: &'a Link, compute_ns: &'a [u64], streams: impl Iterator<Item = Stream<'a>>) -> Self {
        let mut streams: Vec<_> = streams.filter(|stream| !stream.fetches.is_empty()).collect();
        // Ties go to what comes first: it must not depend on how a caller numbers its objects.
        streams.sort_by_key(|stream| (stream.fetches, stream.buffers));
        let lanes = streams.into_iter().map(Lane::new).collect();
        Steps { link, compute_ns, lanes, now_ns: 0, link_free_ns: 0, writing_until_ns: 0 }
    }

    /// The next step, in which `write_bytes` also go out.
    pub fn step(&mut self, write_bytes: u64) -> StepTime {
        let start_ns = self.now_ns;
        let write_ns = self.link.out_ns(write_bytes);
        let slowed_ns = write_ns.saturating_mul(1000) / u64::from(self.link.coupled_permille);
        self.writing_until_ns = self.writing_until_ns.max(start_ns) + slowed_ns;
        let mut stall_ns = 0;
        for (layer, &compute_ns) in self.compute_ns.iter().enumerate() {
            stall_ns += self.wait_for(layer);
            let end_ns = self.now_ns + compute_ns;
            self.serve_until(end_ns);
            self.now_ns = end_ns;
            self.lanes.iter_mut().for_each(|lane| lane.use_up(layer));
        }
        StepTime { total_ns: self.now_ns - start_ns, stall_ns }
    }

    /// Waits until every object has this layer; how long, nanoseconds.
    fn wait_for(&mut self, layer: usize) -> u64 {
        let start_ns = self.now_ns;
        while self.lanes.iter().any(|lane| lane.lacks(layer)) {
            let next = self.most_urgent().expect("what is lacked can be fetched");
            self.serve(next, None);
            self.now_ns = self.now_ns.max(self.link_free_ns);
        }
        // A piece that could not be interrupted may end after the layer before this one did.
        let arriving = self.lanes.iter().filter(|lane| lane.held == 1 && lane.computes_next(layer));
        let arrived_ns = arriving.map(|lane| lane.arrived_ns).max().unwrap_or(0);
        self.now_ns = self.now_ns.max(arrived_ns);
        self.now_ns - start_ns
    }

    fn serve_until(&mut self, end_ns: u64) {
        while self.link_free_ns.max(self.now_ns) < end_ns {
            let Some(next) = self.most_urgent() else { return };
            self.serve(next, Some(end_ns));
        }
    }

    /// Moves the transfer of one object on: to its end, by a quantum, or to `end_ns` when it may be interrupted at any time.
    fn serve(&mut self, next: usize, end_ns: Option<u64>) {
        let from_ns = self.link_free_ns.max(self.now_ns);
        let lane = &mut self.lanes[next];
        let whole_ns = lane.fetches[lane.next].ns;
        let left_ns = whole_ns - lane.partial_ns;
        let (until_ns, coupled) = (self.writing_until_ns, self.link.coupled_permille);
        let piece_ns = match (self.link.quantum_ns, end_ns) {
            (0, Some(end_ns)) => left_ns.min(done_within(from_ns, end_ns, until_ns, coupled)),
            (0, None) => left_ns,
            (quantum_ns, _) => left_ns.min(quantum_ns),
        };
        self.link_free_ns = match end_ns {
            // Work is counted in whole nanoseconds: a slowed remnant below one must not be served for ever.
            Some(end_ns) if piece_ns == 0 && left_ns > 0 => end_ns,
            _ => ends_at(from_ns, piece_ns, until_ns, coupled),
        };
        lane.partial_ns += piece_ns;
        if lane.partial_ns == whole_ns {
            lane.arrived(self.link_free_ns);
        }
    }

    /// The object whose next transfer is computed soonest, if any may fetch.
    fn most_urgent(&self) -> Option<usize> {
        let waiting = self.lanes.iter().enumerate().filter(|(_, lane)| lane.held < lane.most);
        waiting.min_by_key(|(_, lane)| lane.due).map(|(index, _)| index)
    }
}

/// Mean time of a step over the problem's window with these choices, nanoseconds, rounded up.
pub fn mean_ns(problem: &Problem, chosen: &[u16]) -> u64 {
    assert!(problem.window > 0, "a window has steps");
    let streams =
        problem.choices_of(chosen).map(|choice| Stream { fetches: &choice.fetches, buffers: choice.buffers });
    let mut steps = Steps::new(&problem.link, &problem.compute_ns, streams);
    let total_ns: u64 = (0..problem.window).map(|_| steps.step(problem.write_bytes).total_ns).sum();
    total_ns.div_ceil(u64::from(problem.window))
}

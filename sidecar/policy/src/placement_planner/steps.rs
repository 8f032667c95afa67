//! Predicts the time of a step in which layers of many objects are loaded over one link.
//!
//! The link serves the transfer whose layer is computed soonest, ties in a fixed order of objects. Partial transfers
//! are kept; compute waits for what is missing when a layer starts. An object may have as many fetched and unused
//! layers as it has buffers, including the layer being computed: with one buffer its stream pauses while its own
//! offloaded layer is computed, as in OrbitFlow. Fetches for the next step follow those of this step, so progress
//! carries over.
//!
//! Source: OrbitFlow Fig. 3 and Algorithm 1 in the reading that reproduces the figure's numbers; setup, quantum and
//! coupling of directions are ours.

use alloc::vec::Vec;

use super::link::{Link, done_within, ends_at};

/// One offloaded layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fetch {
    /// The layer, from 0.
    pub layer: u16,
    /// Time of its transfer on an otherwise idle link, nanoseconds.
    pub ns: u64,
}

/// The offloaded layers of one object.
#[derive(Clone, Copy, Debug)]
pub struct FetchStream<'a> {
    /// Front first, each layer once.
    pub fetches: &'a [Fetch],
    /// Layers that may be fetched and not yet used. At least 1.
    pub buffers: u16,
}

/// Duration of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// From the start of its first layer to the end of its last, nanoseconds.
    pub total_ns: u64,
    /// The part in which compute waited for a transfer, nanoseconds.
    pub stall_ns: u64,
}

/// An object's offloaded layers and the progress of their transfers. A search asks for the most urgent lane thousands
/// of times per plan, so positions are stored to avoid divisions.
#[derive(Debug)]
struct Lane<'a> {
    fetches: &'a [Fetch],
    /// Maximum number of fetched and unused layers.
    max: usize,
    /// Fetched and unused layers.
    held: usize,
    /// When the next layer to fetch is computed: its round of fetches, and its index.
    due: (u32, u16),
    /// Position of the next layer to fetch.
    next: usize,
    /// Position of the next layer to use.
    used: usize,
    /// Completed work of the transfer in progress, nanoseconds.
    partial_ns: u64,
    /// When the last complete transfer ended, nanoseconds.
    arrived_ns: u64,
}

impl<'a> Lane<'a> {
    fn new(stream: FetchStream<'a>) -> Self {
        assert!(stream.buffers > 0, "a stream of fetches has a buffer");
        let (fetches, max) = (stream.fetches, usize::from(stream.buffers).min(stream.fetches.len()));
        let due = (0, fetches[0].layer);
        Lane { fetches, max, held: 0, due, next: 0, used: 0, partial_ns: 0, arrived_ns: 0 }
    }

    /// Records the end of the transfer in progress.
    fn arrived(&mut self, now_ns: u64) {
        (self.held, self.partial_ns, self.arrived_ns) = (self.held + 1, 0, now_ns);
        self.next += 1;
        if self.next == self.fetches.len() {
            (self.next, self.due.0) = (0, self.due.0 + 1);
        }
        self.due.1 = self.fetches[self.next].layer;
    }

    /// Whether this is the next offloaded layer that the object computes.
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

/// Consecutive steps of a batch, starting with empty buffers.
#[derive(Debug)]
pub struct Steps<'a> {
    link: &'a Link,
    compute_ns: &'a [u64],
    lanes: Vec<Lane<'a>>,
    now_ns: u64,
    link_free_ns: u64,
    /// When the current writes end, nanoseconds.
    writing_until_ns: u64,
}

impl<'a> Steps<'a> {
    /// Returns a batch that has fetched nothing. Objects without offloaded layers may be omitted, and their order does
    /// not matter.
    ///
    /// # Panics
    /// If an object with offloaded layers has no buffer.
    pub fn new(
        link: &'a Link,
        compute_ns: &'a [u64],
        streams: impl Iterator<Item = FetchStream<'a>>,
    ) -> Self {
        let mut streams: Vec<_> = streams.filter(|stream| !stream.fetches.is_empty()).collect();
        // The first of equal streams is served first; sorting makes that independent of the caller's numbering.
        streams.sort_by_key(|stream| (stream.fetches, stream.buffers));
        let lanes = streams.into_iter().map(Lane::new).collect();
        Steps { link, compute_ns, lanes, now_ns: 0, link_free_ns: 0, writing_until_ns: 0 }
    }

    /// Runs the next step, which also writes `write_bytes` to the host.
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

    /// Waits until this layer of every object has arrived; returns the wait, nanoseconds.
    fn wait_for(&mut self, layer: usize) -> u64 {
        let start_ns = self.now_ns;
        while self.lanes.iter().any(|lane| lane.lacks(layer)) {
            let next = self.most_urgent().expect("a missing layer can be fetched");
            self.serve(next, None);
            self.now_ns = self.now_ns.max(self.link_free_ns);
        }
        // A non-preemptible piece may end after the previous layer's compute did.
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

    /// Advances the transfer of one object: to its end, by a quantum, or to `end_ns` if it is preemptible at any time.
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
            // Work is counted in whole nanoseconds: without this case, a slowed remainder below one would never end.
            Some(end_ns) if piece_ns == 0 && left_ns > 0 => end_ns,
            _ => ends_at(from_ns, piece_ns, until_ns, coupled),
        };
        lane.partial_ns += piece_ns;
        if lane.partial_ns == whole_ns {
            lane.arrived(self.link_free_ns);
        }
    }

    /// Returns the object whose next transfer is computed soonest, if any may fetch.
    fn most_urgent(&self) -> Option<usize> {
        let waiting = self.lanes.iter().enumerate().filter(|(_, lane)| lane.held < lane.max);
        waiting.min_by_key(|(_, lane)| lane.due).map(|(index, _)| index)
    }
}

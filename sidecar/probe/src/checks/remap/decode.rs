//! The decode loop: for every layer a kernel that reads its bytes, for every moving layer first a copy into its slot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_memory::cuda::{
    Address, Buffer, Chunk, Error, Event, PinnedMemory, Range, Stream, granularity,
    stream::{WAIT_LIMIT, poll_until},
};
use sluice_policy::ids::LayerId;
use sluice_policy::step_model::Layout;

use super::copy_loop::CopyLoop;
use crate::bench::Bench;
use crate::kernels::Kernels;

/// A model's layers, represented by their bytes.
pub struct Decode {
    layers: u16,
    bytes: u64,
    /// Maximum of timed tokens.
    tokens: usize,
    /// Number of timed copies of one layer.
    isolated_copy_count: usize,
    kernels: Kernels,
    compute: Stream,
    copies: Stream,
    resident: Buffer,
    /// One address per layer. A moving layer's address is backed by its slot, so no pointer changes.
    addresses: Range,
    slots: [Slot; 2],
    /// All layers' bytes on the host: layer `i` starts at page `i`, so its content is unique.
    master: PinnedMemory,
    /// Counter of tags that do not belong to the layer.
    wrong: Buffer,
}

/// A part of the work of a token.
#[derive(Clone, Copy, Debug)]
pub enum TokenPart {
    /// Before the first layer.
    Begin,
    /// A layer.
    Layer {
        /// Which one.
        layer: LayerId,
        /// Address of its weights.
        at: Address,
        /// Whether a copy has brought them there for this token.
        moves: bool,
    },
    /// After the last layer.
    End,
}

/// Memory that moving layers share.
struct Slot {
    memory: Arc<Chunk>,
    /// Its last fill is complete.
    ready: Event,
    /// The last reader of its contents is done.
    read: Event,
}

/// The first word of a page of the master copy is this plus the page's number.
const TAG: u64 = 0x5AFE_0000_0000_0000;
const PAGE: u64 = 4096;
/// Tokens before the first timed one: fills run ahead, and the loop must reach a steady state.
const WARMUP_TOKENS: usize = 3;
/// Maximum time for one layout in nanoseconds, unless three tokens take longer.
const TIMED_NS: f64 = 1e9;
/// The layer whose bytes are copied when no layer moves.
const COPIED: LayerId = LayerId(1);

/// Times with all layers resident, next to other copies, in nanoseconds.
pub struct WhileCopying {
    /// Each token.
    pub tokens: Vec<f64>,
    /// Each copy of a layer.
    pub copies: Vec<f64>,
    /// Number of wrong tags of the copied bytes.
    pub wrong: u64,
}

impl Decode {
    /// Allocates memory for three layers on the device and a little more than one layer on the host. `bytes` must be
    /// whole pages.
    pub fn new(bench: &Bench, layers: u16, bytes: u64) -> Result<Decode, Error> {
        assert!(bytes.is_multiple_of(PAGE), "a layer is whole pages");
        let context = &bench.context;
        let backed = bytes.next_multiple_of(granularity(bench.device)?);
        let slot = || -> Result<Slot, Error> {
            let memory = Chunk::create(context, backed)?;
            Ok(Slot { memory, ready: Event::new(context)?, read: Event::new(context)? })
        };
        let decode = Decode {
            layers,
            bytes,
            tokens: bench.setup.pick(3, 10),
            isolated_copy_count: bench.setup.pick(5, 20),
            kernels: Kernels::load(context)?,
            compute: Stream::new(context)?,
            copies: Stream::new(context)?,
            resident: Buffer::new(context, bytes)?,
            addresses: Range::reserve(context, backed * u64::from(layers))?,
            slots: [slot()?, slot()?],
            master: master(bench, layers, bytes)?,
            wrong: Buffer::new(context, 8)?,
        };
        decode.compute.fill(decode.resident.at(0), 0, bytes / 4 * 4)?;
        let resident = decode.resident.at(0);
        bench.warm_up(|| decode.read(resident, 1).and_then(|()| decode.compute.finish()))?;
        Ok(decode)
    }

    /// Returns the times of copies of one layer without other work, in nanoseconds.
    pub fn isolated_copies(&mut self) -> Result<Vec<f64>, Error> {
        self.addresses.map_with_access(0, &self.slots[0].memory)?;
        let once = |_| -> Result<f64, Error> {
            let start = Event::after(&self.copies)?;
            self.copies.upload(self.addresses.at(0), &self.master, 0, self.bytes)?;
            let end = Event::after(&self.copies)?;
            end.finish()?;
            Ok(end.since_ns(&start)?.max(500.0))
        };
        (0..3).try_for_each(|round| once(round).map(drop))?;
        let times = (0..self.isolated_copy_count).map(once).collect();
        self.addresses.unmap(0)?;
        times
    }

    /// Decodes some tokens, fewer if one takes long (`about` nanoseconds), with every layer read `reads` times. Returns
    /// the nanoseconds of each token in the steady state.
    pub fn run(&mut self, layout: &Layout, reads: u32, about: f64) -> Result<Vec<f64>, Error> {
        self.mapped(layout, |decode| {
            let ends = decode.queue_tokens(layout, about, &of_layers(|at, _| decode.read(at, reads)))?;
            decode.finish()?;
            token_times(&ends)
        })
    }

    /// Like [`Decode::run`], with other work in place of reads. It gets the stream of the tokens.
    pub fn run_parts(
        &mut self,
        layout: &Layout,
        about: f64,
        work: &dyn Fn(&Stream, TokenPart) -> Result<(), Error>,
    ) -> Result<Vec<f64>, Error> {
        self.mapped(layout, |decode| {
            let ends = decode.queue_tokens(layout, about, &|part| work(&decode.compute, part))?;
            decode.finish()?;
            token_times(&ends)
        })
    }

    /// Returns the address of a layer's weights with this layout.
    pub fn address(&self, layout: &Layout, layer: LayerId) -> Address {
        let moves = layout.slot_of(layer).is_some();
        if moves { self.addresses.at(self.offset(layer)) } else { self.resident.at(0) }
    }

    /// Like [`Decode::run`] with all layers resident, while copies of a layer to the device run back to back. They go to
    /// memory that the tokens do not use.
    pub fn run_while_copying(&mut self, reads: u32, about: f64) -> Result<WhileCopying, Error> {
        self.addresses.map_with_access(0, &self.slots[0].memory)?;
        let at = self.addresses.at(0);
        self.compute.fill(self.wrong.at(0), 0, 8)?;
        // No tag is there unless a copy brings it.
        self.compute.fill(at, 0, self.bytes)?;
        self.compute.finish()?;
        let copies = CopyLoop::start(|| {
            self.copies.upload(at, &self.master, u64::from(COPIED.0) * PAGE, self.bytes)?;
            Event::after(&self.copies)
        })?;
        let ends = {
            let read = of_layers(|from, _| copies.top_up().and_then(|()| self.read(from, reads)));
            self.queue_tokens(&Layout::resident(), about, &read)?
        };
        poll_until(WAIT_LIMIT, "tokens next to copies", || {
            copies.top_up()?;
            ends.last().map_or(Ok(true), Event::is_reached)
        })?;
        let copies = copies.into_times_ns();
        self.finish()?;
        self.compare(at, Some(COPIED))?;
        let wrong = self.count()?;
        self.addresses.unmap(0)?;
        Ok(WhileCopying { tokens: token_times(&ends)?, copies, wrong })
    }

    /// Queues some tokens, fewer if one takes long (`about` nanoseconds). Returns the end of each one.
    fn queue_tokens(
        &self,
        layout: &Layout,
        about: f64,
        work: &dyn Fn(TokenPart) -> Result<(), Error>,
    ) -> Result<Vec<Event>, Error> {
        let tokens = ((TIMED_NS / about) as usize).clamp(3, self.tokens);
        let one = |_| {
            self.token(layout, work)?;
            Event::after(&self.compute)
        };
        (0..WARMUP_TOKENS + tokens).map(one).collect()
    }

    /// Decodes some tokens and compares, before and after each read of a moving layer, the content at its address with
    /// the layer's tags. This detects a fill that is too early, too late or in the wrong slot. Returns the number of
    /// wrong tags.
    pub fn verify(&mut self, layout: &Layout) -> Result<u64, Error> {
        self.mapped(layout, |decode| {
            decode.compute.fill(decode.wrong.at(0), 0, 8)?;
            for _ in 0..WARMUP_TOKENS {
                let read = of_layers(|at, layer| {
                    decode.compare(at, layer)?;
                    decode.read(at, 1)?;
                    decode.compare(at, layer)
                });
                decode.token(layout, &read)?;
            }
            decode.finish()?;
            // The count overwrites the master's first word, which is not needed now and which `count` restores.
            decode.count()
        })
    }

    /// Runs `work` while every moving layer's address is backed by its slot.
    fn mapped<T>(
        &mut self,
        layout: &Layout,
        work: impl FnOnce(&Decode) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for layer in &layout.moving {
            let slot = layout.slot_of(*layer).expect("a moving layer has a slot");
            self.addresses.map_with_access(self.offset(*layer), &self.slots[usize::from(slot.0)].memory)?;
        }
        let done = work(self)?;
        layout.moving.iter().try_for_each(|layer| self.addresses.unmap(self.offset(*layer)))?;
        Ok(done)
    }

    fn offset(&self, layer: LayerId) -> u64 {
        u64::from(layer.0) * self.slots[0].memory.bytes()
    }

    fn finish(&self) -> Result<(), Error> {
        self.copies.finish()?;
        self.compute.finish()
    }

    /// Queues one token. The queues run far ahead of the device, so a fill starts as soon as its slot's last reader is
    /// done and the link is free.
    fn token(&self, layout: &Layout, work: &dyn Fn(TokenPart) -> Result<(), Error>) -> Result<(), Error> {
        work(TokenPart::Begin)?;
        for layer in (0..self.layers).map(LayerId) {
            let Some(slot) = layout.slot_of(layer) else {
                work(TokenPart::Layer { layer, at: self.resident.at(0), moves: false })?;
                continue;
            };
            let (slot, at) = (&self.slots[usize::from(slot.0)], self.addresses.at(self.offset(layer)));
            self.copies.wait(&slot.read)?;
            self.copies.upload(at, &self.master, u64::from(layer.0) * PAGE, self.bytes)?;
            slot.ready.record(&self.copies)?;
            self.compute.wait(&slot.ready)?;
            work(TokenPart::Layer { layer, at, moves: true })?;
            slot.read.record(&self.compute)?;
        }
        work(TokenPart::End)
    }

    fn read(&self, from: Address, reads: u32) -> Result<(), Error> {
        (0..reads).try_for_each(|_| self.kernels.read(&self.compute, from, self.bytes / 16 * 16))
    }

    /// Counts the tags of a moving layer's first and last page that are wrong.
    fn compare(&self, at: Address, layer: Option<LayerId>) -> Result<(), Error> {
        let Some(LayerId(layer)) = layer else { return Ok(()) };
        let last = self.bytes / PAGE - 1;
        [0, last].into_iter().try_for_each(|page| {
            let tag = TAG + u64::from(layer) + page;
            self.kernels.compare(&self.compute, at + page * PAGE, (1, tag), self.wrong.at(0))
        })
    }

    fn count(&self) -> Result<u64, Error> {
        self.compute.download(&self.master, 0, self.wrong.at(0), 8)?;
        self.compute.finish()?;
        Ok(self.master.word(0).swap(TAG, Ordering::AcqRel))
    }
}

/// Returns the work of a token that consists of its layers alone. `work` gets a layer's address, and which layer it is if
/// it moves.
fn of_layers(
    work: impl Fn(Address, Option<LayerId>) -> Result<(), Error>,
) -> impl Fn(TokenPart) -> Result<(), Error> {
    move |part| match part {
        TokenPart::Layer { layer, at, moves } => work(at, moves.then_some(layer)),
        TokenPart::Begin | TokenPart::End => Ok(()),
    }
}

/// Returns the nanoseconds of each token in the steady state, from the ends of all tokens.
fn token_times(ends: &[Event]) -> Result<Vec<f64>, Error> {
    ends[WARMUP_TOKENS - 1..].windows(2).map(|pair| pair[1].since_ns(&pair[0])).collect()
}

/// Returns the host's bytes, with a tag at the start of every page.
fn master(bench: &Bench, layers: u16, bytes: u64) -> Result<PinnedMemory, Error> {
    let master = PinnedMemory::registered(&bench.context, bytes + u64::from(layers) * PAGE)?;
    let pages = master.bytes() / PAGE;
    (0..pages).for_each(|page| master.word(page * PAGE / 8).store(TAG + page, Ordering::Release));
    Ok(master)
}

//! The loop that decodes: for every layer a kernel that reads its bytes, for every moving layer a copy into its slot before.

use sluice_policy::ids::LayerId;
use sluice_policy::step_model::Layout;

use crate::Error;
use crate::bench::Bench;
use crate::cuda::{Buffer, Event, HostMemory, Kernels, Stream};

/// A model's layers as far as their bytes matter.
pub struct Decode {
    layers: u16,
    bytes: u64,
    /// Tokens that are timed at most.
    tokens: usize,
    kernels: Kernels,
    compute: Stream,
    copies: Stream,
    resident: Buffer,
    slots: [Slot; 2],
    master: HostMemory,
}

/// Memory that moving layers share.
struct Slot {
    memory: Buffer,
    /// Its last fill has arrived.
    ready: Event,
    /// The last reader of its contents is done.
    read: Event,
}

/// Tokens before the first one that is timed: fills run ahead, and a steady state has to be reached.
const BEFORE: usize = 3;
/// Time that one layout may take, nanoseconds, unless three tokens take longer.
const TIMED_NS: f64 = 1e9;

impl Decode {
    /// Takes memory for three layers on the device and one on the host.
    pub fn new(bench: &Bench, layers: u16, bytes: u64) -> Result<Decode, Error> {
        let context = &bench.context;
        let slot = || -> Result<Slot, Error> {
            let memory = Buffer::new(context, bytes)?;
            Ok(Slot { memory, ready: Event::new(context)?, read: Event::new(context)? })
        };
        let decode = Decode {
            layers,
            bytes,
            tokens: bench.setup.pick(3, 10),
            kernels: Kernels::load(context)?,
            compute: Stream::new(context)?,
            copies: Stream::new(context)?,
            resident: Buffer::new(context, bytes)?,
            slots: [slot()?, slot()?],
            master: HostMemory::registered(context, bytes)?,
        };
        decode.compute.fill(decode.resident.at(0), 0, bytes / 4 * 4)?;
        bench.warm_up(|| decode.read(&decode.resident, 1).and_then(|()| decode.compute.finish()))?;
        Ok(decode)
    }

    /// Copies of a layer with nothing beside them, nanoseconds.
    pub fn lone_copies(&self) -> Result<Vec<f64>, Error> {
        let once = |_| -> Result<f64, Error> {
            let start = Event::after(&self.copies)?;
            self.copies.upload(self.slots[0].memory.at(0), &self.master, 0, self.bytes)?;
            let end = Event::after(&self.copies)?;
            end.finish()?;
            Ok(end.since_ns(&start)?.max(500.0))
        };
        (0..3).try_for_each(|round| once(round).map(drop))?;
        (0..5).map(once).collect()
    }

    /// Decodes some tokens, fewer if one takes long (`about` nanoseconds), with every layer read `reads` times; nanoseconds of
    /// each in the steady state.
    pub fn run(&self, layout: &Layout, reads: u32, about: f64) -> Result<Vec<f64>, Error> {
        let tokens = ((TIMED_NS / about) as usize).clamp(3, self.tokens);
        let mut ends = Vec::with_capacity(BEFORE + tokens);
        for _ in 0..BEFORE + tokens {
            (0..self.layers).try_for_each(|layer| self.layer(LayerId(layer), layout, reads))?;
            ends.push(Event::after(&self.compute)?);
        }
        self.copies.finish()?;
        self.compute.finish()?;
        let timed = &ends[BEFORE - 1..];
        timed.windows(2).map(|pair| pair[1].since_ns(&pair[0])).collect()
    }

    /// Queues one layer. The queues run far ahead of the device, so a fill begins as soon as its slot's last reader is done and
    /// the link is free.
    fn layer(&self, layer: LayerId, layout: &Layout, reads: u32) -> Result<(), Error> {
        let Some(slot) = layout.slot_of(layer) else { return self.read(&self.resident, reads) };
        let slot = &self.slots[usize::from(slot.0)];
        self.copies.wait(&slot.read)?;
        self.copies.upload(slot.memory.at(0), &self.master, 0, self.bytes)?;
        slot.ready.record(&self.copies)?;
        self.compute.wait(&slot.ready)?;
        self.read(&slot.memory, reads)?;
        slot.read.record(&self.compute)
    }

    fn read(&self, memory: &Buffer, reads: u32) -> Result<(), Error> {
        (0..reads).try_for_each(|_| self.kernels.read(&self.compute, memory.at(0), self.bytes / 16 * 16))
    }
}

//! Check 1: one physical handle mapped at several addresses of one process.

use std::time::Duration;

use sluice_memory::cuda::{Address, Buffer, Chunk, Event, PinnedMemory, Range, Stream, granularity};

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::kernels::Kernels;
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::Figure;

/// Check 1.
pub const CHECK: Check = Check {
    id: 1,
    name: "aliases",
    text: "Is one physical handle, mapped at several addresses of one process, seen alike through all of them, \
           ordered by stream and by event?",
    mib: 64,
    quick_mib: 64,
    limit: Duration::from_secs(30),
    ask,
};

/// Number of addresses: more than the layers that share a slot in any model.
const ADDRESSES: u64 = 80;

/// Counts of reads and of stale reads, and the first stale read.
#[derive(Debug, Default)]
struct Tally {
    reads: u64,
    stale: u64,
    first: Option<String>,
}

impl Tally {
    fn count(&mut self, seen: u64, expected: u64, how: impl FnOnce() -> String) {
        self.reads += 1;
        if seen != expected {
            self.stale += 1;
            self.first.get_or_insert_with(|| format!("{}: read {seen:#x}, expected {expected:#x}", how()));
        }
    }
}

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let context = &bench.context;
    let chunk = granularity(bench.device)?;
    let handle = Chunk::create(context, chunk)?;
    let mut range = Range::reserve(context, chunk * ADDRESSES)?;
    (0..ADDRESSES).try_for_each(|place| range.map_with_access(place * chunk, &handle))?;
    let (host, kernels) = (PinnedMemory::registered(context, 4096)?, Kernels::load(context)?);
    let world = AliasSetup { chunk, range, host, kernels, wrong: Buffer::new(context, 16)? };
    let mut tally = Tally::default();
    let rounds = bench.setup.pick(1, 8);
    let (one, other) = (Stream::new(context)?, Stream::new(context)?);
    for round in 0..rounds {
        world.by_stream(&one, round, &mut tally)?;
        world.by_event(&one, &other, round, &mut tally)?;
        world.by_kernels(&one, &other, round, &mut tally)?;
    }
    Ok(answer(&tally, findings))
}

struct AliasSetup {
    chunk: u64,
    range: Range,
    host: PinnedMemory,
    kernels: Kernels,
    wrong: Buffer,
}

impl AliasSetup {
    /// Returns the address of a word in the last 4 KiB of the chunk, through mapping `place`.
    fn alias_address(&self, place: u64) -> Address {
        self.range.at(place * self.chunk + self.chunk - 4096)
    }

    /// Writes through each address and reads through another one, in one stream.
    fn by_stream(&self, stream: &Stream, round: u64, tally: &mut Tally) -> Result<(), Error> {
        for writer in 0..ADDRESSES {
            let word = pattern(round, writer);
            stream.fill(self.alias_address(writer), word, 8)?;
            let reader = (writer + 1 + round) % ADDRESSES;
            stream.download(&self.host, 0, self.alias_address(reader), 8)?;
            stream.finish()?;
            tally.count(self.read(), twice(word), || format!("by stream, from {writer} to {reader}"));
        }
        Ok(())
    }

    /// Writes in one stream and reads in another one that waits for an event.
    fn by_event(&self, one: &Stream, other: &Stream, round: u64, tally: &mut Tally) -> Result<(), Error> {
        for writer in 0..ADDRESSES {
            let word = pattern(round + 1000, writer);
            // Queue a large write first: a reader that did not wait would read too early.
            one.fill(self.range.at(writer * self.chunk), word, self.chunk)?;
            other.wait(&Event::after(one)?)?;
            let reader = (writer + ADDRESSES / 2) % ADDRESSES;
            other.download(&self.host, 0, self.alias_address(reader), 8)?;
            other.finish()?;
            tally.count(self.read(), twice(word), || format!("by event, from {writer} to {reader}"));
        }
        Ok(())
    }

    /// Writes the whole chunk with a kernel and reads it with another kernel through another address, in the same
    /// stream or in one that waits for an event.
    fn by_kernels(&self, one: &Stream, other: &Stream, round: u64, tally: &mut Tally) -> Result<(), Error> {
        let words = self.chunk / 8;
        for writer in 0..ADDRESSES {
            let value = u64::from(pattern(round + 2000, writer)) << 32;
            let reader = (writer + 1 + round) % ADDRESSES;
            let (to, from) = (self.range.at(writer * self.chunk), self.range.at(reader * self.chunk));
            let reading = if writer % 2 == 0 { one } else { other };
            // Load the reader's lines into the caches before the write, so that a stale line would show. The result of
            // this read is ignored.
            self.kernels.compare(reading, from, (words, value), self.wrong.at(8))?;
            one.wait(&Event::after(reading)?)?;
            one.fill(self.wrong.at(0), 0, 8)?;
            self.kernels.write(one, to, words, value)?;
            reading.wait(&Event::after(one)?)?;
            self.kernels.compare(reading, from, (words, value), self.wrong.at(0))?;
            reading.download(&self.host, 0, self.wrong.at(0), 8)?;
            reading.finish()?;
            tally.count(self.read(), 0, || format!("wrong words by kernels, from {writer} to {reader}"));
        }
        Ok(())
    }

    fn read(&self) -> u64 {
        self.host.word(0).load(std::sync::atomic::Ordering::Acquire)
    }
}

fn pattern(round: u64, writer: u64) -> u32 {
    0x5100_0000 | (round as u32) << 8 | writer as u32
}

fn twice(word: u32) -> u64 {
    u64::from(word) << 32 | u64::from(word)
}

fn answer(tally: &Tally, findings: &mut Findings<'_>) -> Answer {
    let reason = || format!("{} of {} reads were stale; first {:?}", tally.stale, tally.reads, tally.first);
    findings.figures.extend([
        Figure::single("addresses of one handle", "addresses", ADDRESSES as f64),
        Figure::single("reads through another address", "reads", tally.reads as f64),
        Figure::single("stale reads", "reads", tally.stale as f64),
    ]);
    Answer::of(tally.stale == 0, reason)
}

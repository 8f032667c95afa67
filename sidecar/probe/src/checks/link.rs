//! Check 4: copies between host and device, and the device's own memory reads.

use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
use sluice_memory::cuda::{self, Buffer, Event, PinnedMemory, Stream};

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::kernels::Kernels;
use crate::numa;
use crate::report::Answer;
use crate::results::{EventSink, Findings};
use crate::statistics::{Figure, median_of};

/// Check 4.
pub const CHECK: Check = Check {
    id: 4,
    name: "link",
    text: "Do registered pages of a memfd copy as fast as the driver's own memory (95 %), each way? What are the peaks, \
           which size reaches 95 % of them, and how much do the directions slow each other?",
    mib: 2064,
    quick_mib: 288,
    limit: Duration::from_secs(90),
    ask,
};

/// Name of the figure that fitness uses as the link's bandwidth to the device, in GB/s.
pub const TO_DEVICE: &str = "to device, registered: peak";
/// Name of the figure that fitness uses as the device memory's bandwidth, in GB/s.
pub const DEVICE: &str = "device memory, read by a kernel";
/// The size, one of [`sizes`], at which the slowdown by the other direction is reported.
const COUPLED: u64 = 64 << 20;
/// Fraction of a reference rate that counts as reaching it: the driver's own rate, or the peak.
const MIN_REGISTERED_SHARE: f64 = 0.95;

/// A direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDevice,
    ToHost,
}

impl Direction {
    const BOTH: [Direction; 2] = [Direction::ToDevice, Direction::ToHost];

    fn words(self) -> &'static str {
        match self {
            Direction::ToDevice => "to device",
            Direction::ToHost => "to host",
        }
    }
}

fn sizes(bench: &Bench) -> &'static [u64] {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    bench.setup.pick(
        &[64 * KIB, MIB, 16 * MIB, 64 * MIB],
        &[64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB],
    )
}

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    numa::pin_to_device_node(bench, findings)?;
    if bench.device.attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)? != 0 {
        let words = "registering locks no pages here: the device reads host memory by the host's page tables";
        findings.notes.push(words.into());
    }
    findings.figures.push(device_memory(bench)?);
    let registered = Lanes::new(bench, "registered", PinnedMemory::registered)?;
    let ours = registered.measure(bench, &mut findings.figures)?;
    registered.together(bench, ours, &mut findings.figures)?;
    // Freed before the driver's memory is allocated: only one kind of host memory at a time.
    drop(registered);
    let pinned = Lanes::new(bench, "cuMemHostAlloc", PinnedMemory::allocate)?;
    let theirs = pinned.measure(bench, &mut findings.figures)?;
    Ok(verdict(ours, theirs))
}

/// Whether registered memory copies as fast as the driver's own, from the peaks to device and to host in GB/s.
fn verdict(ours: [f64; 2], theirs: [f64; 2]) -> Answer {
    let slower = |way: usize| ours[way] < MIN_REGISTERED_SHARE * theirs[way];
    Answer::of(!slower(0) && !slower(1), || {
        let [(a, b), (c, d)] = [(ours[0], theirs[0]), (ours[1], theirs[1])];
        format!("registered {a:.1} to device and {c:.1} to host, the driver's {b:.1} and {d:.1} GB/s")
    })
}

/// Measures how fast a kernel reads device memory, in GB/s.
fn device_memory(bench: &Bench) -> Result<Figure, Error> {
    let bytes = bench.setup.pick(256_u64, 1024) << 20;
    let (stream, kernels) = (Stream::new(&bench.context)?, Kernels::load(&bench.context)?);
    let memory = Buffer::new(&bench.context, bytes)?;
    stream.fill(memory.at(0), 0, bytes)?;
    bench.warm_up(|| kernels.read(&stream, memory.at(0), bytes).and_then(|()| stream.finish()))?;
    let mut samples = Vec::new();
    for _ in 0..bench.setup.pick(3, 20) {
        let start = Event::after(&stream)?;
        kernels.read(&stream, memory.at(0), bytes)?;
        samples.push(gigabytes(bytes, ends(&stream, &start)?));
    }
    Ok(Figure::of(DEVICE, "GB/s", &samples))
}

/// Waits for the end of the stream's work and returns the nanoseconds since `start`.
fn ends(stream: &Stream, start: &Event) -> Result<f64, Error> {
    let end = Event::after(stream)?;
    end.finish()?;
    // The clock's resolution is half a microsecond.
    Ok(end.since_ns(start)?.max(500.0))
}

fn gigabytes(bytes: u64, ns: f64) -> f64 {
    bytes as f64 / ns
}

/// Host and device memory for each direction, with one kind of host memory.
struct Lanes {
    kind: &'static str,
    lanes: [Lane; 2],
}

struct Lane {
    direction: Direction,
    host: PinnedMemory,
    device: Buffer,
    stream: Stream,
}

type AllocateHost = fn(&cuda::Context, u64) -> Result<PinnedMemory, cuda::Error>;

impl Lanes {
    fn new(bench: &Bench, kind: &'static str, take: AllocateHost) -> Result<Lanes, Error> {
        bench.progress(&format!("host memory: {kind}"));
        let bytes = *sizes(bench).last().expect("there are sizes");
        let lane = |way| -> Result<Lane, Error> {
            let (host, device) = (take(&bench.context, bytes)?, Buffer::new(&bench.context, bytes)?);
            Ok(Lane { direction: way, host, device, stream: Stream::new(&bench.context)? })
        };
        Ok(Lanes { kind, lanes: [lane(Direction::ToDevice)?, lane(Direction::ToHost)?] })
    }

    /// Measures each direction alone, by size. Returns the peaks in GB/s.
    fn measure(&self, bench: &Bench, figures: &mut EventSink<'_, Figure>) -> Result<[f64; 2], Error> {
        let mut peaks = [0.0; 2];
        for (lane, peak) in self.lanes.iter().zip(&mut peaks) {
            let (way, kind) = (lane.direction.words(), self.kind);
            bench.warm_up(|| lane.copy(lane.host.bytes()).and_then(|()| lane.stream.finish()))?;
            let mut by_size = Vec::new();
            for bytes in sizes(bench) {
                let samples = lane.samples(bench, *bytes)?;
                by_size.push((*bytes, median_of(&samples), samples));
            }
            let best = by_size.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are sizes");
            *peak = best.1;
            figures.push(Figure::of(format!("{way}, {kind}: peak"), "GB/s", &best.2));
            let enough = by_size.iter().find(|(_, median, _)| *median >= MIN_REGISTERED_SHARE * *peak);
            let kib = enough.expect("the peak reaches itself").0 >> 10;
            figures.push(Figure::single(format!("{way}, {kind}: size of 95 %"), "KiB", kib as f64));
            let of_size = |(bytes, _, samples): &(u64, f64, Vec<f64>)| {
                Figure::of(format!("{way}, {kind}: {} KiB", bytes >> 10), "GB/s", samples)
            };
            figures.extend(by_size.iter().map(of_size));
            figures.push(Figure::of(format!("{way}, {kind}: one of 64 KiB"), "us", &lane.isolated(bench)?));
        }
        Ok(peaks)
    }

    /// Measures both directions at once, by size, and the remaining share of the peaks.
    fn together(
        &self,
        bench: &Bench,
        one_way: [f64; 2],
        figures: &mut EventSink<'_, Figure>,
    ) -> Result<(), Error> {
        for bytes in sizes(bench) {
            let mut samples = [Vec::new(), Vec::new()];
            for _ in 0..bench.setup.pick(2, 5) {
                let rates = self.both(bench, *bytes)?;
                samples.iter_mut().zip(rates).for_each(|(of_way, rate)| of_way.push(rate));
            }
            for ((way, samples), one_way) in Direction::BOTH.iter().zip(&samples).zip(one_way) {
                let way = way.words();
                figures.push(Figure::of(format!("{way}, both ways: {} KiB", bytes >> 10), "GB/s", samples));
                if *bytes == COUPLED {
                    let left: Vec<f64> = samples.iter().map(|rate| rate / one_way * 1000.0).collect();
                    figures.push(Figure::of(format!("{way}, what the other way leaves"), "permille", &left));
                }
            }
        }
        Ok(())
    }

    /// Returns the GB/s of each direction while both have work.
    fn both(&self, bench: &Bench, bytes: u64) -> Result<[f64; 2], Error> {
        let whole = bench.setup.pick(256_u64, 2048) << 20;
        let copies = (whole / bytes).clamp(4, 64);
        let mut marks = [Vec::new(), Vec::new()];
        // An event costs as much as a small copy, so not every copy gets one.
        let stride = copies.div_ceil(16);
        for _ in 0..copies / stride {
            for (lane, marks) in self.lanes.iter().zip(&mut marks) {
                (0..stride).try_for_each(|_| lane.copy(bytes))?;
                marks.push(Event::after(&lane.stream)?);
            }
        }
        self.lanes.iter().try_for_each(|lane| lane.stream.finish())?;
        let base = &marks[0][0];
        let ends =
            |way: usize| marks[way].iter().map(|mark| mark.since_ns(base)).collect::<Result<Vec<_>, _>>();
        Ok(overlapping(&[ends(0)?, ends(1)?]).map(|ns| gigabytes(stride * bytes, ns)))
    }
}

/// Returns the nanoseconds between marks in each direction, from the time when both have reached their first mark until
/// one of them reaches its last. The time in which only the slower direction copies does not count.
fn overlapping(ends: &[Vec<f64>; 2]) -> [f64; 2] {
    let ([one, other], last) = (ends, |ends: &Vec<f64>| *ends.last().expect("there are copies"));
    let (from, to) = (one[0].max(other[0]), last(one).min(last(other)));
    [one, other].map(|ends| {
        let inside: Vec<f64> = ends.iter().copied().filter(|end| (from..=to).contains(end)).collect();
        // If one direction is so slow that fewer than two of its marks are inside, all of its marks count.
        let counted = if inside.len() > 1 { &inside } else { ends };
        ((last(counted) - counted[0]) / (counted.len() - 1) as f64).max(1.0)
    })
}

impl Lane {
    fn copy(&self, bytes: u64) -> Result<(), cuda::Error> {
        match self.direction {
            Direction::ToDevice => self.stream.upload(self.device.at(0), &self.host, 0, bytes),
            Direction::ToHost => self.stream.download(&self.host, 0, self.device.at(0), bytes),
        }
    }

    /// Returns the GB/s of consecutive copies of this size, by round.
    fn samples(&self, bench: &Bench, bytes: u64) -> Result<Vec<f64>, Error> {
        let whole = bench.setup.pick(64_u64, 1024) << 20;
        let copies = (whole / bytes).clamp(1, bench.setup.pick(32, 128));
        self.copy(bytes)?;
        let round = |_| -> Result<f64, Error> {
            let start = Event::after(&self.stream)?;
            (0..copies).try_for_each(|_| self.copy(bytes))?;
            Ok(gigabytes(copies * bytes, ends(&self.stream, &start)?))
        };
        (0..bench.setup.pick(3, 7)).map(round).collect()
    }

    /// Returns the microseconds from the call for one small copy until this thread sees it done: the cost of a copy
    /// apart from its bytes.
    fn isolated(&self, bench: &Bench) -> Result<Vec<f64>, Error> {
        let mut us = Vec::new();
        for _ in 0..bench.setup.pick(5, 50) {
            crate::statistics::timed(&mut us, || self.copy(64 << 10).and_then(|()| self.stream.finish()))?;
        }
        Ok(us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_has_to_reach_95_percent_each_way() {
        assert_eq!(verdict([53.0, 54.0], [55.0, 55.0]), Answer::Yes);
        let reason = "registered 53.0 to device and 40.0 to host, the driver's 55.0 and 55.0 GB/s".to_owned();
        assert_eq!(verdict([53.0, 40.0], [55.0, 55.0]), Answer::No { reason });
        assert!(matches!(verdict([40.0, 54.0], [55.0, 55.0]), Answer::No { .. }));
    }

    #[test]
    fn both_ways_count_while_both_have_work() {
        let even = [vec![0.0, 10.0, 20.0, 30.0], vec![5.0, 15.0, 25.0, 35.0]];
        assert_eq!(overlapping(&even), [10.0, 10.0]);
        // The second direction is slower until the first one has ended, then twice as fast.
        let uneven = [vec![0.0, 10.0, 20.0, 30.0], vec![0.0, 15.0, 30.0, 37.5]];
        assert_eq!(overlapping(&uneven), [10.0, 15.0]);
        let apart = [vec![0.0, 1.0, 2.0], vec![100.0, 200.0, 300.0]];
        assert_eq!(overlapping(&apart), [1.0, 100.0]);
    }
}

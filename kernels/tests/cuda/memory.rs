//! Copies of layer-blocks, fills, waits for generations and their check.

use sluice_kernels::cuda::Address;
use sluice_kernels::cuda::memory::{CheckReady, Fill, KvCopy, WaitReady};
use sluice_link::model::Dtype;

use super::device::Device;
use super::paged::{Heads, Paged};
use super::values::Random;

pub fn copies(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let heads =
        Heads { heads: 2, kv_heads: random.below(1..3) as usize, dim: 8 * random.below(1..9) as usize };
    let dtype = random.choose(&[Dtype::Bf16, Dtype::F32]);
    let length = random.below(17..90) as usize;
    let paged = Paged::new(device, &mut random, dtype, heads, &[length]);
    let bytes = heads.block_bytes(dtype);
    let read = |id: u32| device.download::<u8>(paged.arena.address(id), bytes);
    let ids = &paged.ids[0];
    let buffer = device.reserve::<u8>(ids.len() * bytes);
    let copy = KvCopy { arena: paged.arena, ids: device.upload(ids), buffer };
    device.run(&copy.gather(ids.len() as u32).unwrap());
    let gathered = device.download::<u8>(buffer, ids.len() * bytes);
    let expected: Vec<u8> = ids.iter().flat_map(|id| read(*id)).collect();
    assert_eq!(gathered, expected, "seed {seed}");
    // Back into other blocks: the first and the last change places.
    let mut moved = ids.clone();
    moved.swap(0, ids.len() - 1);
    let copy = KvCopy { ids: device.upload(&moved), ..copy };
    device.run(&copy.scatter(ids.len() as u32).unwrap());
    assert_eq!(read(moved[0]), expected[..bytes], "seed {seed}");
    assert_eq!(read(ids[0]), expected[expected.len() - bytes..], "seed {seed}");
}

#[test]
fn blocks_are_gathered_and_scattered_by_their_ids() {
    (0..20).for_each(|seed| copies(&Device::fast(), seed));
}

#[test]
fn a_fill_covers_its_range_and_nothing_beyond() {
    fill(&Device::checked(), 0);
}

pub fn fill(device: &Device, _seed: u64) {
    for count in [1usize, 255, 256, 1000] {
        let to = device.upload(&vec![7u32; 4 * count + 4]);
        device.run(&Fill { to, count: count as u64, pattern: 0x7fc0_7fc0, unused: 0 }.plan());
        let got: Vec<u32> = device.download(to, 4 * count + 4);
        assert!(got[..4 * count].iter().all(|word| *word == 0x7fc0_7fc0));
        assert_eq!(got[4 * count..], [7; 4]);
    }
}

/// A fill of random length.
pub fn some_fill(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let (count, pattern) = (random.below(1..3000) as usize, random.bits() as u32);
    let to = device.upload(&vec![!pattern; 4 * count + 4]);
    device.run(&Fill { to, count: count as u64, pattern, unused: 0 }.plan());
    let got: Vec<u32> = device.download(to, 4 * count + 4);
    assert!(got[..4 * count].iter().all(|word| *word == pattern), "seed {seed}");
    assert_eq!(got[4 * count..], [!pattern; 4], "seed {seed}");
}

/// Words of the control page from one generation to the next.
const STRIDE: u32 = 8;

fn page(device: &Device, published: [u64; 2]) -> Address {
    let mut page = vec![0u64; 16];
    (page[0], page[8]) = (published[0], published[1]);
    device.upload(&page)
}

#[test]
fn a_later_or_earlier_generation_is_overtaken_and_the_expected_one_is_not() {
    generations(&Device::checked(), 0);
}

pub fn generations(device: &Device, _seed: u64) {
    // Whether each is overtaken, whether the step is stopped, and whether the layer has passed.
    let check_in = |stopped: u32, published: [u64; 2], expected: [u64; 2]| {
        let (overtaken, passed) = (device.upload(&[0u64; 2]), device.upload(&[0u64]));
        let (ready, expected) = (page(device, published), device.upload(&expected));
        let stopped = device.upload(&[stopped]);
        device.run(
            &CheckReady { ready, expected, overtaken, passed, stopped, count: 2, stride: STRIDE }.plan(),
        );
        let passed = device.download::<u64>(passed, 1) != [0];
        (device.download::<u64>(overtaken, 2), device.download::<u32>(stopped, 1)[0], passed)
    };
    let check = |published, expected| check_in(0, published, expected);
    assert_eq!(check([5, 9], [5, 9]), (vec![0, 0], 0, true));
    assert_eq!(check([5, 9], [5, 0]), (vec![0, 0], 0, true), "no expectation");
    assert_eq!(check([5, 10], [5, 9]), (vec![0, 1], 1, false), "filled again");
    assert_eq!(check([4, 9], [5, 9]), (vec![1, 0], 1, false), "read too early");
    assert_eq!(check([6, 10], [5, 9]), (vec![1, 1], 1, false), "two at once");
    assert_eq!(check([5 + (1 << 32), 9], [5, 9]), (vec![1, 0], 1, false), "all 64 bits count");
    assert_eq!(check_in(1, [5, 9], [5, 9]), (vec![0, 0], 1, false), "the layer was not computed");
    assert_eq!(check_in(1, [6, 9], [5, 9]), (vec![0, 0], 1, false), "nothing is found in a stopped step");
}

/// Random generations: what the page has, and what the step expects. Some are the same, some expect nothing, and the
/// others are later.
struct Generations {
    stride: u32,
    ready: Address,
    expected: Vec<u64>,
    /// Whether a later one is published.
    later: Vec<bool>,
}

impl Generations {
    fn new(device: &Device, random: &mut Random) -> Self {
        let (count, stride) = (random.below(1..33) as usize, random.below(1..10));
        let expected: Vec<_> = (0..count)
            .map(|_| {
                let some = random.bits() >> 2;
                random.choose(&[0, 1, some])
            })
            .collect();
        let steps: Vec<_> = (0..count).map(|_| random.choose(&[0, 0, 0, 0, 0, 0, 1, 1 << 40])).collect();
        let mut page = vec![u64::MAX; count * stride as usize];
        for (place, (expected, step)) in page.chunks_mut(stride as usize).zip(expected.iter().zip(&steps)) {
            place[0] = expected + step;
        }
        let later =
            expected.iter().zip(&steps).map(|(expected, step)| *expected != 0 && *step != 0).collect();
        Generations { stride, ready: device.upload(&page), expected, later }
    }
}

/// The check of random generations.
pub fn some_generations(device: &Device, seed: u64) {
    let generations = Generations::new(device, &mut Random(seed));
    let Generations { stride, ready, expected, later } = &generations;
    let count = expected.len();
    let (overtaken, passed) = (device.upload(&vec![0u64; count]), device.upload(&[0u64]));
    let (stopped, expected) = (device.upload(&[0u32]), device.upload(expected));
    let (ready, stride) = (*ready, *stride);
    device
        .run(&CheckReady { ready, expected, overtaken, passed, stopped, count: count as u32, stride }.plan());
    let any = later.contains(&true);
    assert_eq!(device.download::<u64>(overtaken, count), ones(later), "seed {seed}");
    assert_eq!(device.download::<u32>(stopped, 1), [u32::from(any)], "seed {seed}");
    assert_eq!(device.download::<u64>(passed, 1) == [0], any, "seed {seed}");
}

/// The wait for random generations, of which each is there or is overtaken.
pub fn some_waits(device: &Device, seed: u64) {
    let generations = Generations::new(device, &mut Random(seed));
    let Generations { stride, ready, expected, later } = &generations;
    let count = expected.len();
    let [overtaken, times, ended] = [count, count + 1, 1].map(|words| device.upload(&vec![0u64; words]));
    let (stopped, expected) = (device.upload(&[0u32]), device.upload(expected));
    let (ready, stride) = (*ready, *stride);
    let wait = WaitReady { ready, expected, ended, overtaken, times, stopped, count: count as u32, stride };
    device.run(&wait.plan());
    // The first that is found ends the step; the others are not asked for.
    let first = later.iter().position(|later| *later);
    let found: Vec<_> = (0..count).map(|at| Some(at) == first).collect();
    assert_eq!(device.download::<u64>(overtaken, count), ones(&found), "seed {seed}");
    assert_eq!(device.download::<u32>(stopped, 1), [u32::from(first.is_some())], "seed {seed}");
    let times = device.download::<u64>(times, count + 1);
    assert!(times[0] > 0 && times.is_sorted(), "seed {seed}: {times:?}");
}

fn ones(flags: &[bool]) -> Vec<u64> {
    flags.iter().map(|flag| u64::from(*flag)).collect()
}

#[test]
fn a_wait_ends_at_once_for_what_is_published_or_not_expected_or_when_the_step_is_ended() {
    waits(&Device::checked(), 0);
}

pub fn waits(device: &Device, _seed: u64) {
    let [ended, times, overtaken] = [1, 3, 2].map(|words| device.upload(&vec![0u64; words]));
    // Whether each is overtaken, and whether the step is stopped.
    let wait_in = |stopped: u32, ready, expected: [u64; 2]| {
        let (expected, stopped) = (device.upload(&expected), device.upload(&[stopped]));
        device.write(overtaken, &[0; 16]);
        let (count, stride) = (2, STRIDE);
        device.run(&WaitReady { ready, expected, ended, overtaken, times, stopped, count, stride }.plan());
        let times = device.download::<u64>(times, 3);
        assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
        let overtaken = device.download::<u64>(overtaken, 2);
        ([overtaken[0], overtaken[1]], device.download::<u32>(stopped, 1)[0])
    };
    let wait = |ready, expected| wait_in(0, ready, expected);
    assert_eq!(wait(page(device, [5, 9]), [5, 9]), ([0, 0], 0));
    assert_eq!(wait(page(device, [0, 9]), [0, 9]), ([0, 0], 0), "no expectation");
    assert_eq!(wait(page(device, [6, 9]), [5, 9]), ([1, 0], 1), "filled again before it was read");
    assert_eq!(
        wait(page(device, [6, 10]), [5, 9]),
        ([1, 0], 1),
        "the first is found, and the second not asked for"
    );
    assert_eq!(wait(page(device, [5, 10]), [5, 9]), ([0, 1], 1));
    assert_eq!(
        wait_in(1, page(device, [4, 10]), [5, 9]),
        ([0, 0], 1),
        "nothing is awaited in a stopped step"
    );
    // Until the second word is published, or the step is ended.
    let ready = page(device, [5, 8]);
    for (address, word, stopped) in [(ready + 8 * u64::from(STRIDE), 9, 0), (ended, 1, 1)] {
        let before = device.slices();
        if device.publish_after(3, address, word) {
            assert_eq!(wait(ready, [5, 9]), ([0, 0], stopped));
            assert!(device.slices() > before + 3, "it has waited");
            device.write(ready + 8 * u64::from(STRIDE), &8u64.to_ne_bytes());
        }
    }
    device.write(ended, &1u64.to_ne_bytes());
    assert_eq!(wait(page(device, [4, 8]), [5, 9]), ([0, 0], 1));
    assert_eq!(wait(page(device, [5, 9]), [5, 9]), ([0, 0], 1), "also where all is there");
    assert_eq!(wait(page(device, [6, 9]), [5, 9]), ([0, 0], 1), "the end comes first");
    assert_eq!(wait(page(device, [0, 0]), [0, 0]), ([0, 0], 0), "a layer that awaits nothing");
}

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
    (20..23).for_each(|seed| copies(&Device::checked(), seed));
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
    let check = |published: [u64; 2], expected: [u64; 2]| {
        let (overtaken, passed) = (device.upload(&[0u64; 2]), device.upload(&[0u64]));
        let (ready, expected) = (page(device, published), device.upload(&expected));
        device.run(&CheckReady { ready, expected, overtaken, passed, count: 2, stride: STRIDE }.plan());
        assert_ne!(device.download::<u64>(passed, 1), [0], "the time of the check");
        device.download::<u64>(overtaken, 2)
    };
    assert_eq!(check([5, 9], [5, 9]), [0, 0]);
    assert_eq!(check([5, 9], [5, 0]), [0, 0], "no expectation");
    assert_eq!(check([5, 10], [5, 9]), [0, 1], "filled again");
    assert_eq!(check([4, 9], [5, 9]), [1, 0], "read too early");
    assert_eq!(check([6, 10], [5, 9]), [1, 1], "two at once");
    assert_eq!(check([5 + (1 << 32), 9], [5, 9]), [1, 0], "all 64 bits count");
}

#[test]
fn a_wait_ends_at_once_for_what_is_published_or_not_expected_or_when_the_step_is_ended() {
    waits(&Device::checked(), 0);
}

pub fn waits(device: &Device, _seed: u64) {
    let (ended, times) = (device.upload(&[0u64]), device.upload(&[0u64; 3]));
    let wait = |ready, expected: [u64; 2]| {
        let expected = device.upload(&expected);
        device.run(&WaitReady { ready, expected, ended, times, count: 2, stride: STRIDE }.plan());
        let times = device.download::<u64>(times, 3);
        assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    };
    wait(page(device, [5, 9]), [5, 9]);
    wait(page(device, [6, 9]), [5, 9]);
    wait(page(device, [0, 9]), [0, 9]);
    // Until the second word is published, or the step is ended.
    let ready = page(device, [5, 8]);
    for (address, word) in [(ready + 8 * u64::from(STRIDE), 9), (ended, 1)] {
        let before = device.slices();
        if device.publish_after(3, address, word) {
            wait(ready, [5, 9]);
            assert!(device.slices() > before + 3, "it has waited");
            device.write(ready + 8 * u64::from(STRIDE), &8u64.to_ne_bytes());
        }
    }
    device.write(ended, &1u64.to_ne_bytes());
    wait(page(device, [4, 8]), [5, 9]);
}

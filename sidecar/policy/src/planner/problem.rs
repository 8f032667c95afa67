//! One batch whose objects are to be placed.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::link::Link;
use super::steps::Fetch;

/// One way to place an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Bytes on the device for as long as the plan holds, slots of its own included.
    pub resident_bytes: u64,
    /// Bytes of the shared prefetch buffer that each of its absent layers takes while it is used (b_r of Eq. 1).
    pub buffer_bytes: u64,
    /// Bytes that come in over the link in each step.
    pub link_bytes: u64,
    /// Layers that it may have fetched and not used up: 1 is a prefetch buffer that holds one layer.
    pub buffers: u16,
    /// The absent layers, front first. Empty when all are on the device.
    pub fetches: Arc<[Fetch]>,
}

impl Choice {
    /// Time that the link works for it in each step, nanoseconds.
    pub fn work_ns(&self) -> u64 {
        self.fetches.iter().map(|fetch| fetch.ns).sum()
    }
}

/// The choices for one object. Never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// All ways to place it.
    pub choices: Vec<Choice>,
}

impl Object {
    /// A request's KV of `layer_bytes` in each of `layers` layers, with one choice for each set of absent ones.
    pub fn kv(link: &Link, layers: u16, layer_bytes: u64, absent: &[Vec<u16>]) -> Object {
        let choices = absent.iter().map(|absent| kv_choice(link, layers, layer_bytes, absent)).collect();
        Object { choices }
    }

    /// Something that has nothing to choose: so many bytes, all on the device.
    pub fn fixed(bytes: u64) -> Object {
        Object { choices: [Choice { resident_bytes: bytes, ..Choice::default() }].into() }
    }
}

fn kv_choice(link: &Link, layers: u16, layer_bytes: u64, absent: &[u16]) -> Choice {
    let away = absent.len() as u64;
    let kept = u64::from(layers).checked_sub(away).expect("absent layers are layers of the model");
    let ns = link.in_ns(layer_bytes);
    Choice {
        resident_bytes: kept * layer_bytes,
        buffer_bytes: layer_bytes,
        link_bytes: away * layer_bytes,
        buffers: 1,
        fetches: absent.iter().map(|&layer| Fetch { layer, ns }).collect(),
    }
}

/// A batch, its objects and what they have to fit in.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Bytes of device memory for all objects and the prefetch buffer.
    pub capacity_bytes: u64,
    /// Compute of each layer for this batch, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// The link that all share.
    pub link: Link,
    /// Bytes written back in each step.
    pub write_bytes: u64,
    /// Steps whose mean time counts, from an empty buffer on: the paper looks at 1. At least 1.
    pub window: u16,
    /// The objects.
    pub objects: Vec<Object>,
}

impl Problem {
    /// Compute of a step without any stall, nanoseconds.
    pub fn compute_total_ns(&self) -> u64 {
        self.compute_ns.iter().sum()
    }

    /// Bytes that these choices take: what is resident, and the prefetch buffer, which is the largest sum over requests of
    /// what one layer has absent (Eq. 1).
    pub fn bytes_of(&self, chosen: &[u16]) -> u64 {
        self.bytes(self.choices_of(chosen))
    }

    /// The same of one choice for each object, in any order.
    pub(super) fn bytes<'a>(&self, choices: impl Iterator<Item = &'a Choice>) -> u64 {
        let mut buffer = alloc::vec![0; self.compute_ns.len()];
        let mut resident: u64 = 0;
        for choice in choices {
            resident += choice.resident_bytes;
            choice.fetches.iter().for_each(|fetch| buffer[usize::from(fetch.layer)] += choice.buffer_bytes);
        }
        resident + buffer.iter().max().copied().unwrap_or(0)
    }

    /// The choices that these indices, one for each object, name.
    pub fn choices_of<'a>(&'a self, chosen: &'a [u16]) -> impl Iterator<Item = &'a Choice> {
        assert_eq!(self.objects.len(), chosen.len(), "each object has one choice");
        self.objects.iter().zip(chosen).map(|(object, &index)| &object.choices[usize::from(index)])
    }
}

//! The placement problem of one batch.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::link::Link;
use super::steps::Fetch;

/// One way to place an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Bytes on the device while the plan applies, including its own slots.
    pub resident_bytes: u64,
    /// Bytes of the shared prefetch buffer that each of its offloaded layers takes during its use (b_r of Eq. 1).
    pub buffer_bytes: u64,
    /// Bytes loaded over the link in each step.
    pub link_bytes: u64,
    /// Layers that may be fetched and not yet used: 1 is a prefetch buffer for one layer.
    pub buffers: u16,
    /// The offloaded layers, front first. Empty if all are on the device.
    pub fetches: Arc<[Fetch]>,
}

impl Choice {
    /// Returns the link time that it needs in each step, nanoseconds.
    pub fn work_ns(&self) -> u64 {
        self.fetches.iter().map(|fetch| fetch.ns).sum()
    }
}

/// The choices of one object. Never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// All possible placements.
    pub choices: Vec<Choice>,
}

impl Object {
    /// Returns a request's KV of `layer_bytes` in each of `layers` layers, with one choice for each set of offloaded
    /// layers.
    pub fn kv(link: &Link, layers: u16, layer_bytes: u64, absent: &[Vec<u16>]) -> Object {
        let choices = absent.iter().map(|absent| kv_choice(link, layers, layer_bytes, absent)).collect();
        Object { choices }
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

/// A batch's objects and the resources they share.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Device memory for all objects and the prefetch buffer, bytes.
    pub capacity_bytes: u64,
    /// Compute of each layer for this batch, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// The shared link.
    pub link: Link,
    /// Bytes written back in each step.
    pub write_bytes: u64,
    /// The objects.
    pub objects: Vec<Object>,
}

impl Problem {
    /// Returns the compute of a step without stalls, nanoseconds.
    pub fn compute_total_ns(&self) -> u64 {
        self.compute_ns.iter().sum()
    }

    /// Returns the bytes that these choices take: the resident bytes, and the prefetch buffer, which is the largest
    /// per-layer sum of offloaded bytes over all requests (Eq. 1).
    pub fn bytes_of(&self, chosen: &[u16]) -> u64 {
        self.bytes(self.choices_of(chosen))
    }

    /// Returns the bytes of one choice for each object, in any order.
    pub(super) fn bytes<'a>(&self, choices: impl Iterator<Item = &'a Choice>) -> u64 {
        let mut buffer = alloc::vec![0; self.compute_ns.len()];
        let mut resident: u64 = 0;
        for choice in choices {
            resident += choice.resident_bytes;
            choice.fetches.iter().for_each(|fetch| buffer[usize::from(fetch.layer)] += choice.buffer_bytes);
        }
        resident + buffer.iter().max().copied().unwrap_or(0)
    }

    /// Returns the choices at these indices, one for each object.
    pub fn choices_of<'a>(&'a self, chosen: &'a [u16]) -> impl Iterator<Item = &'a Choice> {
        assert_eq!(self.objects.len(), chosen.len(), "each object has one choice");
        self.objects.iter().zip(chosen).map(|(object, &index)| &object.choices[usize::from(index)])
    }
}

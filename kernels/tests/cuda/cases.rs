//! The cases of the kernels: small random shapes of every one. Each passes on the committed kernels, fast and with every
//! check, and a mutant of a kernel must fail one.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sluice_kernels::cuda::Module;

use super::device::Device;
use super::device::gpu::on_gpu;
use super::{attention, gemm, memory, rope, rows, sampling};

/// The least number of random shapes of each kernel.
const SHAPES: usize = 20;

/// One case of a kernel's tests. It panics if a kernel does not do what it should.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the family.
    pub name: &'static str,
    pub run: fn(&Device, u64),
    pub seed: u64,
}

impl Case {
    /// Runs the case.
    pub fn run(&self, device: &Device) {
        (self.run)(device, self.seed);
    }
}

/// All cases.
pub fn all() -> Vec<Case> {
    /// Name, case and number of seeds.
    type Family = (&'static str, fn(&Device, u64), u64);
    let families: [Family; 19] = [
        ("attention", attention::small_case, attention::SMALL_CASES),
        ("product", gemm::product, 150),
        ("elementwise", gemm::elementwise, 150),
        ("embed", rows::embed, 100),
        ("norm", rows::norm, 150),
        ("rope_kv", rope::rope_kv, 100),
        ("rope_angles", rope::angles, 1),
        ("copies", memory::copies, SHAPES as u64),
        ("fill", memory::fill, 1),
        ("generations", memory::generations, 1),
        ("waits", memory::waits, 1),
        ("argmax", sampling::argmax_case, SHAPES as u64),
        ("top_k", sampling::top_k_case, SHAPES as u64),
        ("wide_top_k", sampling::wide_top_k_case, 1),
        ("attention_tiny", attention::tiny_case, attention::TINY_CASES),
        ("some_angles", rope::some_angles, SHAPES as u64),
        ("some_fill", memory::some_fill, SHAPES as u64),
        ("some_generations", memory::some_generations, SHAPES as u64),
        ("some_waits", memory::some_waits, SHAPES as u64),
    ];
    let seeded = |(name, run, seeds): Family| (0..seeds).map(move |seed| Case { name, run, seed });
    families.into_iter().flat_map(seeded).collect()
}

/// Does work on all cores.
pub fn on_all_cores<T: Copy + Sync>(all: &[T], work: impl Fn(T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(one) = all.get(next.fetch_add(1, Relaxed)) {
            work(*one);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(worker)));
}

/// Runs each case on a device of its own. At least twenty of them launch each kernel.
fn all_pass(device: impl Fn() -> Device<'static> + Sync) {
    let launches = Mutex::new(BTreeMap::<_, usize>::new());
    on_all_cores(&all(), |case| {
        let device = device();
        case.run(&device);
        let mut launches = launches.lock().unwrap();
        device.launched().into_iter().for_each(|kernel| *launches.entry(kernel).or_default() += 1);
    });
    if on_gpu() {
        return; // The interpreter alone knows what it has run.
    }
    let launches = launches.into_inner().unwrap();
    for kernel in Module::ALL.into_iter().flat_map(Module::kernels) {
        let shapes = launches.get(kernel).copied().unwrap_or(0);
        assert!(shapes >= SHAPES, "{kernel} ran on {shapes} shapes");
    }
}

#[test]
fn every_kernel_is_right_on_twenty_random_shapes() {
    all_pass(Device::fast);
}

#[test]
fn every_kernel_passes_every_check_on_twenty_random_shapes() {
    all_pass(Device::checked);
}

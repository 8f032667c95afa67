//! The cases that a mutant must fail: those of the kernels' own tests, with small shapes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use sluice_kernels::cuda::LaunchPlan;
use sluice_ptx::Mode;

use super::super::device::{Device, Mutated};
use super::super::{attention, gemm, memory, rope, rows, sampling};

/// One case of a kernel's tests. It panics if a kernel does not do what it should.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the family.
    pub name: &'static str,
    run: fn(&Device, u64),
    seed: u64,
}

impl Case {
    /// Runs the case.
    pub fn run(&self, device: &Device) {
        (self.run)(device, self.seed);
    }
}

/// All cases.
fn cases() -> Vec<Case> {
    /// Name, case and number of seeds.
    type Family = (&'static str, fn(&Device, u64), u64);
    let families: [Family; 14] = [
        ("attention", attention::small_case, attention::SMALL_CASES),
        ("product", gemm::product, 110),
        ("elementwise", gemm::elementwise, 100),
        ("embed", rows::embed, 20),
        ("norm", rows::norm, 90),
        ("rope_kv", rope::rope_kv, 40),
        ("rope_angles", rope::angles, 1),
        ("copies", memory::copies, 6),
        ("fill", memory::fill, 1),
        ("generations", memory::generations, 1),
        ("waits", memory::waits, 1),
        ("argmax", sampling::argmax_case, 12),
        ("top_k", sampling::top_k_case, 8),
        ("wide_top_k", sampling::wide_top_k_case, 1),
    ];
    let seeded = |(name, run, seeds): Family| (0..seeds).map(move |seed| Case { name, run, seed });
    families.into_iter().flat_map(seeded).collect()
}

/// The cases of each kernel, with the slices (some ten thousand instructions) that each takes.
pub struct Suite {
    by_kernel: BTreeMap<&'static str, Vec<(Case, u64)>>,
}

impl Suite {
    /// The suite, which is the same for all tests.
    pub fn shared() -> &'static Self {
        static SUITE: OnceLock<Suite> = OnceLock::new();
        SUITE.get_or_init(Suite::new)
    }

    /// Runs every case once to see which kernels it launches.
    fn new() -> Self {
        let mut by_kernel: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for case in cases() {
            let device = Device::interpreter(Mode::Fast);
            case.run(&device);
            for kernel in device.launched() {
                by_kernel.entry(kernel).or_default().push((case, device.slices()));
            }
        }
        Suite { by_kernel }
    }

    /// Runs the cases of a kernel with `module` in its place, and with edited launches of it: fast, then with all checks.
    /// Returns how the first one that fails did so, or nothing if all pass.
    pub fn run(
        &self,
        kernel: &'static str,
        module: &sluice_ptx::Module,
        edit: &dyn Fn(&mut LaunchPlan),
    ) -> Option<String> {
        let cases = self.by_kernel.get(kernel).unwrap_or_else(|| panic!("no case launches {kernel}"));
        let fails = |mode| {
            cases.iter().find_map(|(case, slices)| {
                // A kernel that takes ten times as long has an endless loop.
                let device = Device::with_mutant(mode, Mutated { kernel, module, edit }, 10 * slices + 100);
                let message = super::panics::message(|| case.run(&device))?;
                Some(format!("{} {}: {message}", case.name, case.seed))
            })
        };
        fails(Mode::Fast).or_else(|| fails(Mode::Checked))
    }
}

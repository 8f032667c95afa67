//! The cases that a mutant must fail, by kernel.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use sluice_kernels::cuda::{LaunchPlan, Module};
use sluice_ptx::Mode;

use super::super::cases::{self, Case, on_all_cores};
use super::super::device::{Device, Mutated, modules};

/// A case of a kernel.
struct KernelCase {
    case: Case,
    /// Slices (some ten thousand instructions) that it takes.
    slices: u64,
    /// Set once it has passed with all checks on the committed kernel.
    passed: OnceLock<()>,
}

/// The cases of each kernel.
pub struct Suite {
    by_kernel: BTreeMap<&'static str, Vec<KernelCase>>,
}

impl Suite {
    /// The suite, which is the same for all tests.
    pub fn shared() -> &'static Self {
        static SUITE: OnceLock<Suite> = OnceLock::new();
        SUITE.get_or_init(|| Suite::of(cases::all()))
    }

    /// Runs every case once, fast, to see which kernels it launches. All must pass.
    pub fn of(cases: Vec<Case>) -> Self {
        let mut by_kernel: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for case in cases {
            let device = Device::interpreter(Mode::Fast);
            case.run(&device);
            for kernel in device.launched() {
                let passed = OnceLock::new();
                by_kernel.entry(kernel).or_default().push(KernelCase {
                    case,
                    slices: device.slices(),
                    passed,
                });
            }
        }
        Suite { by_kernel }
    }

    /// Runs every case on the committed kernels as it runs on their mutants, with all checks. All must pass.
    pub fn check_baseline(&self) {
        let all =
            self.by_kernel.iter().flat_map(|(kernel, cases)| cases.iter().map(move |case| (*kernel, case)));
        on_all_cores(&all.collect::<Vec<_>>(), |(kernel, case)| case.check_baseline(kernel));
    }

    /// Runs the cases of a kernel with `module` in its place, and with edited launches of it: fast, then with all checks.
    /// Returns how the first one that fails did so, or nothing if all pass.
    ///
    /// # Panics
    /// If that case fails on the committed kernel too.
    pub fn run(
        &self,
        kernel: &'static str,
        module: &sluice_ptx::Module,
        edit: &dyn Fn(&mut LaunchPlan),
    ) -> Option<String> {
        let cases = self.by_kernel.get(kernel).unwrap_or_else(|| panic!("no case launches {kernel}"));
        let fails = |mode| {
            cases.iter().find_map(|case| {
                let message = case.failure(mode, Mutated { kernel, module, edit })?;
                Some((case, message))
            })
        };
        let caught = fails(Mode::Fast).or_else(|| {
            let (case, message) = fails(Mode::Checked)?;
            case.check_baseline(kernel);
            Some((case, message))
        });
        caught.map(|(case, message)| format!("{} {}: {message}", case.case.name, case.case.seed))
    }
}

impl KernelCase {
    /// Runs the case on a mutant. Returns how it fails, or nothing if it passes.
    fn failure(&self, mode: Mode, mutated: Mutated<'_>) -> Option<String> {
        // A kernel that takes ten times as long has an endless loop.
        let device = Device::with_mutant(mode, mutated, 10 * self.slices + 100);
        super::panics::message(|| self.case.run(&device))
    }

    /// Runs the case on the committed kernel with all checks, once. A case that fails there too catches nothing.
    fn check_baseline(&self, kernel: &'static str) {
        self.passed.get_or_init(|| {
            let module = Module::ALL.into_iter().find(|module| module.kernels().any(|name| name == kernel));
            let module = &modules()[&module.expect("a kernel of a module")];
            let failure = self.failure(Mode::Checked, Mutated { kernel, module, edit: &|_| () });
            let Case { name, seed, .. } = self.case;
            assert!(
                failure.is_none(),
                "{name} {seed} fails on {kernel} itself: {}",
                failure.unwrap_or_default()
            );
        });
    }
}

/// A case that fails by itself where all checks are on.
#[test]
#[should_panic(expected = "fails on sluice_fill itself: only fast")]
fn a_case_that_fails_on_the_committed_kernel_catches_no_mutant() {
    let run = |device: &Device, seed| {
        super::super::memory::fill(device, seed);
        assert!(device.options.mode == Mode::Fast, "only fast");
    };
    let suite = Suite::of(vec![Case { name: "fill", run, seed: 0 }]);
    suite.run("sluice_fill", &modules()[&Module::Memory], &|_| ());
}

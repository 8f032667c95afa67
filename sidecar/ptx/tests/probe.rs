//! Every kernel of the committed `probe.ptx` runs, and computes what its source says.

use sluice_ptx::{Arena, Launch, Mode, Options, launch};

use crate::support::{Arguments, Random, probe};

const MODES: [Mode; 2] = [Mode::Fast, Mode::Checked];

fn options(mode: Mode) -> Options {
    Options { mode, workers: 2, ..Options::default() }
}

#[test]
fn the_module_names_its_kernels_and_their_parameters() {
    let module = probe();
    let names: Vec<_> = module.kernels().map(|kernel| kernel.name()).collect();
    let expected =
        ["sluice_spin", "sluice_read", "sluice_product", "sluice_write", "sluice_compare", "sluice_await"];
    assert_eq!(names, expected);
    assert_eq!((module.version(), module.target()), ("8.0", "sm_80"));
    let product = module.kernel("sluice_product").expect("the kernel");
    assert_eq!(product.static_shared_bytes(), 2 * 16 * 64 * 4);
    assert_eq!((product.params().len(), product.param_bytes()), (4, 32));
    assert_eq!((product.max_threads(), product.uses_dynamic_shared()), (None, false));
}

#[test]
fn a_product_of_small_integers_is_exact() {
    let n = 128;
    let mut random = Random::new(1);
    let [a, b]: [Vec<f32>; 2] = std::array::from_fn(|_| (0..n * n).map(|_| random.small(16)).collect());
    let module = probe();
    let kernel = module.kernel("sluice_product").expect("the kernel");
    for mode in MODES {
        let mut arena = Arena::new();
        let (from, by, to) = (arena.alloc_with(&a), arena.alloc_with(&b), arena.alloc(4 * (n * n) as u64));
        let params = Arguments::of(kernel).u64(from).u64(by).u64(to).u64(n as u64).bytes;
        let grid = [(n / 64) as u32, (n / 64) as u32, 1];
        let what = Launch { grid, block: [16, 16, 1], dynamic_shared_bytes: 0, params: &params };
        launch(kernel, &what, &arena, &options(mode)).unwrap();
        let c: Vec<f32> = arena.read(to, n * n);
        for row in 0..n {
            for column in 0..n {
                let expected: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
                assert_eq!(c[row * n + column], expected);
            }
        }
    }
}

#[test]
fn words_that_are_written_compare_equal_and_changed_ones_are_counted() {
    let module = probe();
    let [write, compare] =
        ["sluice_write", "sluice_compare"].map(|name| module.kernel(name).expect("the kernel"));
    for mode in MODES {
        let mut arena = Arena::new();
        let (words, wrong) = (arena.alloc(8 * 1000), arena.alloc_with(&[0u64]));
        let run = |kernel, params: &[u8]| {
            let what = Launch { grid: [3, 1, 1], block: [96, 1, 1], dynamic_shared_bytes: 0, params };
            launch(kernel, &what, &arena, &options(mode)).unwrap()
        };
        let stats = run(write, &Arguments::of(write).u64(words).u64(1000).u64(77).bytes);
        assert!(
            stats.thread_instructions >= 1000 && stats.warp_instructions * 32 >= stats.thread_instructions
        );
        let params = Arguments::of(compare).u64(words).u64(1000).u64(77).u64(wrong).bytes;
        run(compare, &params);
        assert_eq!(arena.read::<u64>(wrong, 1), [0]);
        arena.write(words + 8 * 500, &[1u64, 2, 3]);
        let what = Launch { grid: [3, 1, 1], block: [96, 1, 1], dynamic_shared_bytes: 0, params: &params };
        launch(compare, &what, &arena, &options(mode)).unwrap();
        assert_eq!(arena.read::<u64>(wrong, 1), [3]);
        assert_eq!(arena.read::<u64>(words, 3), [77, 78, 79]);
    }
}

#[test]
fn a_read_sums_every_element_once() {
    let module = probe();
    let kernel = module.kernel("sluice_read").expect("the kernel");
    let values: Vec<f32> = (0..4 * 500).map(|n| (n % 97) as f32).collect();
    for mode in MODES {
        let mut arena = Arena::new();
        let (from, sums) = (arena.alloc_with(&values), arena.alloc(4 * 256));
        let params = Arguments::of(kernel).u64(from).u64(500).u64(sums).bytes;
        let what = Launch { grid: [4, 1, 1], block: [64, 1, 1], dynamic_shared_bytes: 0, params: &params };
        launch(kernel, &what, &arena, &options(mode)).unwrap();
        assert_eq!(arena.read::<f32>(sums, 256).iter().sum::<f32>(), values.iter().sum());
    }
}

#[test]
fn a_wait_ends_with_the_word_or_with_its_limit_and_a_spin_with_its_time() {
    let module = probe();
    let kernel = module.kernel("sluice_await").expect("the kernel");
    let mut arena = Arena::new();
    let (flag, counter, gave_up) =
        (arena.alloc_with(&[4u64]), arena.alloc_with(&[5u64]), arena.alloc_with(&[0u64]));
    let run = |limit_ns: u64| {
        let params = Arguments::of(kernel).u64(flag).u64(counter).u64(3).u64(limit_ns).u64(gave_up).bytes;
        let what = Launch { grid: [1; 3], block: [1; 3], dynamic_shared_bytes: 0, params: &params };
        launch(kernel, &what, &arena, &Options::default()).unwrap();
    };
    run(1_000_000);
    assert_eq!((arena.read::<u64>(counter, 1), arena.read::<u64>(gave_up, 1)), (vec![5], vec![1]));
    // Another thread of the host sets the word while the kernel spins.
    std::thread::scope(|scope| {
        scope.spawn(|| arena.write(flag, &[5u64]));
        run(60_000_000_000);
    });
    assert_eq!((arena.read::<u64>(counter, 1), arena.read::<u64>(gave_up, 1)), (vec![8], vec![1]));
    let spin = module.kernel("sluice_spin").expect("the kernel");
    let started = std::time::Instant::now();
    let params = Arguments::of(spin).u64(2_000_000).bytes;
    let what = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared_bytes: 0, params: &params };
    launch(spin, &what, &arena, &Options::default()).unwrap();
    assert!(started.elapsed() >= std::time::Duration::from_millis(2));
}

//! How fast the interpreter runs kernels. Without arguments it runs those of the probe:
//!
//! ```sh
//! cargo run --release -p sluice-ptx --example ptx_speed
//! ```
//!
//! With arguments it runs one kernel of a PTX file: path, name, blocks, threads of a block, bytes of dynamic shared
//! memory, and the kernel's arguments: `u32:N`, `u64:N`, `f32:X`, `zeros:BYTES` or `count:N` for the address of a buffer
//! (with the words 1 to N), and `struct:A+B` for several in one parameter. Blocks and threads are `X` or `X,Y,Z`.
//!
//! ```sh
//! ptx_speed norm.ptx rms_norm 2048 256 0 zeros:16777216 zeros:8192 zeros:16777216 u32:4096 f32:1e-5
//! ```

use std::time::Instant;

use sluice_ptx::{Arena, Kernel, Launch, Mode, Module, Options, launch};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        return run_probe();
    }
    let [path, name, grid, block, shared, values @ ..] = arguments.as_slice() else {
        eprintln!("usage: ptx_speed [PATH KERNEL BLOCKS THREADS SHARED_BYTES ARGUMENT...]");
        return;
    };
    let text = std::fs::read_to_string(path).expect("a PTX file that can be read");
    let started = Instant::now();
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    println!(
        "parsed {} kernels in {:.1} ms",
        module.kernels().count(),
        started.elapsed().as_secs_f64() * 1e3
    );
    let kernel = module.kernel(name).unwrap_or_else(|| panic!("no kernel {name} in {path}"));
    let shared = shared.parse().expect("bytes of shared memory");
    measure(kernel, [dimensions(grid), dimensions(block)], shared, values);
}

/// The kernels of the probe that are not bound by time.
fn run_probe() {
    let module = Module::parse(include_str!("../../probe/cuda/probe.ptx")).expect("the committed PTX parses");
    let run = |name: &str, grid, block, values: &[&str]| {
        let kernel = module.kernel(name).expect("a kernel of the probe");
        let values: Vec<String> = values.iter().map(|value| value.to_string()).collect();
        measure(kernel, [grid, block], 0, &values);
    };
    run("sluice_read", [64, 1, 1], [256, 1, 1], &["zeros:67108864", "u64:4194304", "zeros:65536"]);
    run("sluice_write", [64, 1, 1], [256, 1, 1], &["zeros:67108864", "u64:8388608", "u64:7"]);
    let square = "zeros:1048576";
    run("sluice_product", [8, 8, 1], [16, 16, 1], &[square, square, square, "u64:512"]);
}

fn dimensions(text: &str) -> [u32; 3] {
    let mut all = [1; 3];
    for (to, word) in all.iter_mut().zip(text.split(',')) {
        *to = word.parse().expect("a number of blocks or threads");
    }
    all
}

/// The bytes of one argument.
fn argument(arena: &mut Arena, text: &str) -> Vec<u8> {
    let (kind, value) = text.split_once(':').unwrap_or_else(|| panic!("{text}: KIND:VALUE"));
    let number = || value.parse::<u64>().unwrap_or_else(|_| panic!("{text}: a whole number"));
    match kind {
        "u32" => (number() as u32).to_le_bytes().to_vec(),
        "u64" => number().to_le_bytes().to_vec(),
        "f32" => value.parse::<f32>().unwrap_or_else(|_| panic!("{text}: a number")).to_le_bytes().to_vec(),
        "zeros" => arena.alloc_with(&vec![0u8; number() as usize]).to_le_bytes().to_vec(),
        "count" => arena.alloc_with(&(1..=number() as u32).collect::<Vec<_>>()).to_le_bytes().to_vec(),
        "struct" => value.split('+').flat_map(|part| argument(arena, part)).collect(),
        _ => panic!("{text}: unknown kind of argument"),
    }
}

/// Runs a kernel in each mode, and prints the best of some runs.
fn measure(kernel: &Kernel, [grid, block]: [[u32; 3]; 2], dynamic_shared_bytes: u32, values: &[String]) {
    let mut arena = Arena::new();
    let mut params = vec![0; kernel.param_bytes()];
    for (param, value) in kernel.params().iter().zip(values) {
        let bytes = argument(&mut arena, value);
        params[param.offset..param.offset + param.bytes].copy_from_slice(&bytes);
    }
    let what = Launch { grid, block, dynamic_shared_bytes, params: &params };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    for (label, mode, workers, runs) in [
        ("fast, 1 thread", Mode::Fast, 1, 3),
        ("fast, all cores", Mode::Fast, cores, 3),
        ("checked", Mode::Checked, cores, 1),
    ] {
        let options = Options { mode, workers, ..Options::default() };
        let timed = || {
            let started = Instant::now();
            let stats = launch(kernel, &what, &arena, &options).unwrap_or_else(|fault| panic!("{fault}"));
            (started.elapsed().as_secs_f64(), stats)
        };
        let best = (0..runs).map(|_| timed()).min_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, stats) = best.expect("at least one run");
        println!(
            "{:20} {label:16} {:9.2} ms  {:6.2} G thread-instructions/s  {:6.1} ns a warp-instruction",
            kernel.name(),
            seconds * 1e3,
            stats.thread_instructions as f64 / seconds / 1e9,
            seconds * 1e9 / stats.warp_instructions as f64,
        );
    }
}

//! Engines whose products are those of cuBLASLt.

use sluice_link::model::ModelSpec;

use super::*;

/// What an engine is asked for.
const FAST: &str = "--cublaslt";
/// Tokens of the prompt, which is fed in two steps, and tokens that are generated.
const PROMPT: usize = 13;
const GENERATED: usize = 30;

/// Runs a case below with this version of the library.
fn run_case(name: &str, variables: &[(&str, &str)], cublas: Option<u32>) {
    let name = format!("engine_process::cuda::products::on_gpu::{name}");
    run_with_libraries(&[&name, "--exact", "--ignored"], variables, 1, |library| match cublas {
        Some(major) => library.with_cublas(major),
        None => Ok(library),
    });
}

#[test]
fn layers_that_move_through_one_slot_give_the_same_bits_with_cublaslt() {
    let moving = "engine_process::steps::layers_that_move_through_one_slot_give_the_same_bits";
    for no_graphs in ["0", "1"] {
        let variables = [("SLUICE_ENGINE_CUBLASLT", "1"), ("SLUICE_ENGINE_NO_GRAPHS", no_graphs)];
        run_with_libraries(&[moving, "--exact"], &variables, 1, |library| library.with_cublas(12));
    }
}

#[test]
fn cublaslt_is_used_where_it_is_asked_for_and_nowhere_else() {
    run_case("tokens_are_right_and_products_are_counted", &[], Some(12));
}

#[test]
fn a_driver_of_cuda_13_gets_its_own_library() {
    run_case("the_library_of_cuda_13_is_loaded", &[("SLUICE_STANDIN_DRIVER", "13.0")], Some(13));
}

#[test]
fn a_driver_of_cuda_13_runs_the_library_of_cuda_12() {
    run_case("the_library_of_cuda_12_is_loaded", &[("SLUICE_STANDIN_DRIVER", "13.0")], Some(12));
}

/// A library of CUDA 13 needs a driver of CUDA 13.
#[test]
fn without_a_library_for_its_driver_an_engine_computes_products_itself() {
    run_case("the_missing_library_of_cuda_12_is_named", &[], Some(13));
    run_case("both_missing_libraries_are_named", &[("SLUICE_STANDIN_DRIVER", "13.0")], None);
}

#[test]
fn a_product_that_the_library_refuses_ends_the_engine_by_name() {
    run_case("a_refused_product_is_named", &[("SLUICE_STANDIN_FAULTS", "cublasLtMatmul=13")], Some(12));
}

/// Cases that a test above starts.
mod on_gpu {
    use super::*;

    /// Returns what an engine generates, and what it logs.
    fn generated(spec: &ModelSpec, more: &[&str]) -> (Vec<u32>, String) {
        let faults = Faults { poison_activations: true, ..Faults::default() };
        let mut sidecar = MiniSidecar::new(spec, faults);
        let engine = LoggedEngine::start(&sidecar, more);
        let mut link = sidecar.attach(&sidecar.resident());
        let sampled = sidecar.generate(&mut link, &tokens(PROMPT, 5, spec), GENERATED);
        (tokens_of(&sampled), engine.end(&link))
    }

    /// Returns the number of products that an engine logs; `None` if it has not loaded the library.
    fn queued(log: &str) -> Option<u64> {
        let line = log.lines().find(|line| line.contains("products by cuBLASLt"))?;
        let number = line.split("queued=").nth(1).expect("the line has the number");
        Some(number.trim().parse().expect("a number"))
    }

    #[test]
    #[ignore = "started by a test above"]
    fn tokens_are_right_and_products_are_counted() {
        // Each step computes the products of its layers and one of logits.
        for (spec, products) in [(llama(Dtype::Bf16), 7), (opt(Dtype::F16), 6)] {
            let (expected, log) = generated(&spec, &[]);
            assert_eq!(queued(&log), None, "{log}");
            let (found, log) = generated(&spec, &[FAST, "--no-graphs"]);
            assert_eq!(found, expected);
            let of_step = u64::from(spec.layers) * products + 1;
            let steps = (PROMPT.div_ceil(7) + GENERATED - 1) as u64;
            assert_eq!(queued(&log), Some(steps * of_step), "{log}");
            let (found, log) = generated(&spec, &[FAST]);
            assert_eq!(found, expected);
            // Two steps of the prompt, three captures, and each shape of a decode once before its first capture.
            let once = queued(&log).expect("the library is loaded") - 5 * of_step;
            assert!((1..=of_step).contains(&once), "{log}");
        }
        let (expected, _) = generated(&llama(Dtype::F32), &[]);
        let (found, log) = generated(&llama(Dtype::F32), &[FAST]);
        assert_eq!((found, queued(&log)), (expected, Some(0)), "products in f32 are of our own kernel");
    }

    fn loads(file: &str) {
        let (_, log) = generated(&llama(Dtype::Bf16), &[FAST]);
        assert!(
            queued(&log).is_some_and(|queued| queued > 0) && log.contains(&format!("\"{file}\"")),
            "{log}"
        );
    }

    #[test]
    #[ignore = "started by a test above"]
    fn the_library_of_cuda_13_is_loaded() {
        loads("libcublasLt.so.13");
    }

    #[test]
    #[ignore = "started by a test above"]
    fn the_library_of_cuda_12_is_loaded() {
        loads("libcublasLt.so.12");
    }

    fn misses(message: &str) {
        let spec = llama(Dtype::Bf16);
        let (found, log) = generated(&spec, &[FAST]);
        assert!(log.contains(message) && queued(&log).is_none(), "{log}");
        assert_eq!(found, generated(&spec, &[]).0);
    }

    #[test]
    #[ignore = "started by a test above"]
    fn the_missing_library_of_cuda_12_is_named() {
        misses("no cuBLASLt: libcublasLt.so.12 is not on the library path, and the driver is of CUDA 12.4");
    }

    #[test]
    #[ignore = "started by a test above"]
    fn both_missing_libraries_are_named() {
        misses("no cuBLASLt: libcublasLt.so.13 or libcublasLt.so.12 is not on the library path");
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_refused_product_is_named() {
        let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), Faults::default());
        let engine = LoggedEngine::start(&sidecar, &[FAST]);
        let link = sidecar.attach(&sidecar.resident());
        let step = sidecar.step(0, &[1, 2, 3]);
        link.sender.send_step(&step, &mut sidecar.tables).unwrap();
        let log = engine.wait();
        assert!(log.contains("cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"), "{log}");
        // Without the library the same step is right.
        let (found, _) = generated(&llama(Dtype::Bf16), &[]);
        assert_eq!(found.len(), GENERATED);
    }
}

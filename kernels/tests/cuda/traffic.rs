//! What each kernel moves, against the least that the same bytes need: sectors of 32 bytes of global memory, and
//! wavefronts of 128 bytes of shared memory. `kernels/cuda/traffic.json` is the committed table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use sluice_kernels::cuda::Module;
use sluice_kernels::cuda::gemm::{Activation, Elementwise, Epilogue, Gemm, Join};
use sluice_link::model::Dtype;
use sluice_ptx::Traffic;

use super::attention::{self, Rules};
use super::device::Device;
use super::paged::{Heads, Paged};
use super::values::{DTYPES, Random};
use super::{memory, rope, rows, sampling};

/// The least share of sectors that a kernel needs, of those that it touches.
const LEAST_SECTORS_PERCENT: u64 = 95;

/// What each kernel moves for its shape here: rows that are whole sectors, as those of models are.
fn measured() -> BTreeMap<&'static str, Traffic> {
    let device = Device::profiling();
    for dtype in DTYPES {
        let dims: &[usize] = if dtype == Dtype::F32 { &[64] } else { &attention::WIDTHS };
        dims.iter().for_each(|dim| attend(&device, dtype, *dim));
        for output in [dtype, Dtype::F32] {
            product(&device, dtype, output);
            elementwise(&device, dtype, output);
            rows::plain_norm(&device, dtype, output, 1024);
        }
        rows::embed_in(&device, Random(3), dtype, 1024);
        rope::rope_kv_in(&device, Random(4), dtype, 128);
    }
    rope::angles(&device, 5);
    memory::copies(&device, 3);
    memory::fill(&device, 0);
    memory::generations(&device, 0);
    memory::waits(&device, 0);
    sampling::run_argmax(&device, &vec![1.0; 32_768], 32_768);
    sampling::wide_top_k_case(&device, 0);
    device.traffic()
}

/// A decode at position 1000 and a prefill of 64 tokens, with four query heads to each K and V head.
fn attend(device: &Device, dtype: Dtype, dim: usize) {
    let mut random = Random(1);
    let heads = Heads { heads: 8, kv_heads: 2, dim };
    let rules = Rules { heads, dtype, window: 0, scale: 0.1, soft_cap: None };
    let paged = Paged::new(device, &mut random, dtype, heads, &[1001, 64]);
    let queries = random.normal(dtype, 65 * heads.heads * dim);
    attention::attend(device, rules, &paged, &[(1000, 1), (0, 64)], &queries);
}

fn epilogue(device: &Device, rows: usize, columns: usize) -> Epilogue {
    let other = device.upload(&vec![1f32; rows * columns]);
    Epilogue::new(0, Activation::Silu).join(Join::Multiply, other, columns as u32)
}

/// A product of 64 x 256 numbers over 576.
fn product(device: &Device, dtype: Dtype, output: Dtype) {
    let (rows, columns, k) = (64, 256, 576);
    let mut random = Random(2);
    let gemm = Gemm {
        input: device.upload_as(dtype, &random.normal(dtype, rows * k)),
        weights: device.upload_as(dtype, &random.normal(dtype, columns * k)),
        output: device.reserve_as(output, rows * columns),
        epilogue: epilogue(device, rows, columns),
        rows: rows as u32,
        columns: columns as u32,
        k: k as u32,
        output_stride: columns as u32,
    };
    device.run(&gemm.plan(dtype, output).unwrap());
}

fn elementwise(device: &Device, dtype: Dtype, output: Dtype) {
    let (rows, columns) = (4, 1024);
    let elementwise = Elementwise {
        input: device.upload(&vec![1f32; rows * columns]),
        output: device.reserve_as(output, rows * columns),
        epilogue: epilogue(device, rows, columns),
        rows: rows as u32,
        columns: columns as u32,
        input_stride: columns as u32,
        output_stride: columns as u32,
    };
    device.run(&elementwise.plan(dtype, output).unwrap());
}

fn percent(least: u64, all: u64) -> u64 {
    least * 100 / all.max(1)
}

fn table(measured: &BTreeMap<&'static str, Traffic>) -> String {
    let row = |(kernel, traffic): (&&str, &Traffic)| {
        let value = json!({
            "sectors": traffic.sectors,
            "least_sectors": traffic.least_sectors,
            "wavefronts": traffic.wavefronts,
            "least_wavefronts": traffic.least_wavefronts,
        });
        format!("  \"{kernel}\": {value}")
    };
    format!("{{\n{}\n}}\n", measured.iter().map(row).collect::<Vec<_>>().join(",\n"))
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cuda/traffic.json")
}

#[test]
fn kernels_move_what_the_committed_table_says() {
    let measured = measured();
    let kernels = Module::ALL.into_iter().flat_map(Module::kernels);
    kernels.for_each(|kernel| assert!(measured.contains_key(kernel), "{kernel} was not measured"));
    let table = table(&measured);
    if std::env::var_os("SLUICE_WRITE_TRAFFIC").is_some() {
        std::fs::write(path(), &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path()).unwrap(), table, "SLUICE_WRITE_TRAFFIC=1 writes the table");
}

/// Misses of a kernel.
fn misses(kernel: &str, row: &Value) -> Vec<String> {
    let number = |name: &str| row[name].as_u64().unwrap();
    let mut misses = Vec::new();
    let share = percent(number("least_sectors"), number("sectors"));
    if share < LEAST_SECTORS_PERCENT {
        misses.push(format!("{kernel}: {share} % of the sectors are needed"));
    }
    if number("wavefronts") != number("least_wavefronts") {
        let (all, least) = (number("wavefronts"), number("least_wavefronts"));
        misses.push(format!("{kernel}: {all} wavefronts, and {least} would do"));
    }
    misses
}

#[test]
fn attention_and_products_keep_the_limits() {
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path()).unwrap()).unwrap();
    let held = |kernel: &str| kernel.starts_with("sluice_attention_") || kernel.starts_with("sluice_gemm_");
    let rows: Vec<_> = table.as_object().unwrap().iter().filter(|(kernel, _)| held(kernel)).collect();
    assert_eq!(rows.len(), 14 + 1 + 2 + 4 + 1);
    let all: Vec<_> = rows.into_iter().flat_map(|(kernel, row)| misses(kernel, row)).collect();
    // The kernel for models in f32, which are those of tests: a lane reads a row of K word by word.
    assert_eq!(all, ["sluice_attention_f32: 24 % of the sectors are needed"]);
}

#[test]
fn a_bank_conflict_or_wasted_sectors_are_found() {
    let row = |sectors, wavefronts| json!({"sectors": sectors, "least_sectors": 95, "wavefronts": wavefronts, "least_wavefronts": 10});
    assert!(misses("k", &row(100, 10)).is_empty());
    assert_eq!(misses("k", &row(101, 10)), ["k: 94 % of the sectors are needed"]);
    assert_eq!(misses("k", &row(100, 11)), ["k: 11 wavefronts, and 10 would do"]);
}

//! Kernels over rows: products of matrices, RMSNorm, and RoPE with the write of K and V.

use sluice_kernels::cuda::gemm::{Epilogue, Gemm};
use sluice_kernels::cuda::norm::Norm;
use sluice_kernels::cuda::rope::RopeKv;
use sluice_kernels::cuda::{LaunchPlan, Operation, ProductPlan, Products};
use sluice_link::model::Dtype;
use sluice_memory::cuda::{Buffer, Error};

use super::paged::Heads;
use crate::device_data::DeviceData;

/// A product of bf16 matrices, `[rows][k]` by `[k][k]`, with a result in f32.
#[derive(Debug)]
pub struct Product {
    product: Gemm,
    /// The workspace of cuBLASLt.
    workspace: Buffer,
    _memory: [Buffer; 3],
}

impl Product {
    /// Prepares the product.
    pub fn new(data: &DeviceData, rows: u32, k: u32) -> Result<Product, Error> {
        let numbers = |rows: u32| u64::from(rows) * u64::from(k);
        let (input, weights) = (data.random(numbers(rows) * 2)?, data.random(numbers(k) * 2)?);
        let output = data.empty(numbers(rows) * 4)?;
        let product = Gemm {
            input: input.at(0),
            weights: weights.at(0),
            output: output.at(0),
            epilogue: Epilogue::default(),
            rows,
            columns: k,
            k,
            output_stride: k,
        };
        let workspace = data.empty(ProductPlan::WORKSPACE_BYTES)?;
        Ok(Product { product, workspace, _memory: [input, weights, output] })
    }

    /// Returns the operation by which it is computed.
    pub fn operation(&self, products: Products) -> Operation {
        let Gemm { input, weights, output, rows, columns, k, output_stride, .. } = self.product;
        let (format, workspace) = (Dtype::Bf16, self.workspace.at(0));
        match products {
            Products::Deterministic => {
                self.product.plan(format, Dtype::F32).expect("the kernels multiply bf16").into()
            }
            Products::CublasLt => Operation::Product(ProductPlan {
                format,
                input,
                weights,
                output,
                rows,
                columns,
                k,
                output_stride,
                adds: false,
                workspace,
            }),
        }
    }
}

/// RMSNorm from f32 to bf16.
#[derive(Debug)]
pub struct RmsNorm {
    norm: Norm,
    rows: u32,
    _memory: [Buffer; 3],
}

impl RmsNorm {
    /// Prepares the norm.
    pub fn new(data: &DeviceData, rows: u32, width: u32) -> Result<RmsNorm, Error> {
        let numbers = u64::from(rows) * u64::from(width);
        let (input, weight) = (data.random(numbers * 4)?, data.random(u64::from(width) * 2)?);
        let output = data.empty(numbers * 2)?;
        let norm = Norm {
            input: input.at(0),
            addend: 0,
            weight: weight.at(0),
            bias: 0,
            output: output.at(0),
            rows: 0,
            width,
            epsilon: 1e-5,
            gain_offset: 0.0,
            unused: 0,
        };
        Ok(RmsNorm { norm, rows, _memory: [input, weight, output] })
    }

    /// Returns the bytes that it reads and writes at least.
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.norm.width) * 6
    }

    /// Returns the launch.
    pub fn launch(&self) -> LaunchPlan {
        self.norm.plan(Dtype::Bf16, Dtype::Bf16, self.rows).expect("the kernels have this norm")
    }
}

/// RoPE of queries and keys, with the write of K and V, for the first tokens of one sequence.
#[derive(Debug)]
pub struct Rope {
    rope: RopeKv,
    _memory: Vec<Buffer>,
}

impl Rope {
    /// Prepares the rotation.
    pub fn new(data: &DeviceData, rows: u32, heads: Heads) -> Result<Rope, Error> {
        let Heads { heads: query_heads, kv_heads, dim } = heads;
        let numbers = |heads: u32| u64::from(rows) * u64::from(heads * dim);
        let (arena, [memory, table], columns) = heads.arena(data, &[rows])?;
        let queries = data.random(numbers(query_heads) * 4)?;
        let (keys, values) = (data.random(numbers(kv_heads) * 4)?, data.random(numbers(kv_heads) * 4)?);
        let output = data.empty(numbers(query_heads) * 2)?;
        let angles = data.random(numbers(1) * 4)?;
        let positions = data.upload(&(0..rows).collect::<Vec<u32>>())?;
        let table_rows = data.upload(&vec![0_u32; rows as usize])?;
        let stopped = data.upload(&[0_u32])?;
        let rope = RopeKv {
            arena,
            queries: queries.at(0),
            keys: keys.at(0),
            values: values.at(0),
            output: output.at(0),
            angles: angles.at(0),
            positions: positions.at(0),
            table_rows: table_rows.at(0),
            table: table.at(0),
            stopped: stopped.at(0),
            columns,
            rows,
            heads: query_heads,
            kv_heads,
            dim,
            rotary: dim,
            query_stride: query_heads * dim,
            key_stride: kv_heads * dim,
            value_stride: kv_heads * dim,
            unused: 0,
        };
        let kept = vec![memory, table, queries, keys, values, output, angles, positions, table_rows, stopped];
        Ok(Rope { rope, _memory: kept })
    }

    /// Returns the bytes that it reads and writes at least: queries, keys and values as f32 and bf16, and the angles.
    pub fn bytes(&self) -> u64 {
        let RopeKv { rows, heads, kv_heads, dim, .. } = self.rope;
        u64::from(rows) * u64::from(dim) * (u64::from(heads + 2 * kv_heads) * 6 + 4)
    }

    /// Returns the launch.
    pub fn launch(&self) -> LaunchPlan {
        self.rope.plan(Dtype::Bf16).expect("the kernels have these heads")
    }
}

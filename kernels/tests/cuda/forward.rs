//! Whole steps of a model by the interpreter: known tokens, agreement with the reference, and bits.

use sluice_kernels::cuda::memory::KvArena;
use sluice_kernels::cuda::{Address, CudaModel, DeviceRanges, Products, StepProgram};
use sluice_kernels::forward::{Batch, ForwardError, Sequence, StepShape};
use sluice_link::model::{Dtype, Family, ModelSpec};

use super::device::Device;
use super::tolerances;
use crate::agreement::{checkpoint, error, tokens};
use crate::checkpoint::Checkpoint;
use crate::golden::stories260k;
use crate::memory::TestSequence;
use crate::reference::{Reference, Rounding};
use crate::specs::{DTYPES, llama, opt};

/// Bytes of NaN in every format.
const POISON: u8 = 0xff;

/// A model whose slabs, KV arena and activations are memory of the interpreter.
pub struct Tenant {
    pub device: Device<'static>,
    pub model: CudaModel,
    pub ranges: DeviceRanges,
    pub chunk_bytes: u64,
    pub arena_bytes: usize,
    activation_bytes: u64,
    pads: bool,
}

impl Tenant {
    /// As [`Tenant::on`] a fast device.
    pub fn new(spec: &ModelSpec, checkpoint: &Checkpoint, layer_blocks: u32, chunk_tokens: u32) -> Tenant {
        Tenant::on(Device::fast(), spec, checkpoint, layer_blocks, chunk_tokens)
    }

    /// Uploads the weights; the KV arena has `layer_blocks` blocks with poison.
    pub fn on(
        device: Device<'static>,
        spec: &ModelSpec,
        checkpoint: &Checkpoint,
        layer_blocks: u32,
        chunk_tokens: u32,
    ) -> Tenant {
        let block_bytes = spec.layer_block_bytes();
        let chunk_bytes = chunk_bytes(spec);
        let per_chunk = chunk_bytes / block_bytes;
        let arena_bytes = u64::from(layer_blocks).div_ceil(per_chunk) * chunk_bytes;
        let model = CudaModel::new(spec.clone(), chunk_bytes, spec.max_positions, chunk_tokens).unwrap();
        let most = StepShape { tokens: 192, sequences: 8, logit_rows: 192 };
        let activation_bytes = model.activation_cost().bytes(most);
        let layer = |layer| device.upload(checkpoint.layer_slab(spec, layer).as_slice());
        let ranges = DeviceRanges {
            global: device.upload(checkpoint.global_slab(spec).as_slice()),
            layers: (0..usize::from(spec.layers)).map(layer).collect(),
            kv: device.upload(&vec![POISON; arena_bytes as usize]),
            layer_blocks,
            activations: device.upload(&vec![POISON; activation_bytes as usize]),
            activation_limit_bytes: activation_bytes,
        };
        let arena_bytes = arena_bytes as usize;
        Tenant { device, model, ranges, chunk_bytes, arena_bytes, activation_bytes, pads: false }
    }

    /// Writes K `[kv_heads][16][dim]`, then V of a layer-block.
    pub fn write_block(&self, id: u32, block: &[u8]) {
        let spec = self.model.spec();
        let arena = KvArena::new(self.ranges.kv, chunk_bytes(spec), spec.layer_block_bytes() as u32);
        self.device.write(arena.address(id), block);
    }

    /// Chooses what computes products.
    pub fn with_products(self, products: Products) -> Tenant {
        Tenant { model: self.model.with_products(products), ..self }
    }

    /// Pads decode steps, as for graphs.
    pub fn padded(self) -> Tenant {
        Tenant { pads: true, ..self }
    }

    fn plan(&self, parts: &[TestSequence<'_>]) -> Result<StepProgram, ForwardError> {
        let sequences: Vec<Sequence<'_>> = parts.iter().map(TestSequence::sequence).collect();
        let batch = Batch { sequences: &sequences };
        if self.pads
            && let Some(packed) = self.model.pack_decode(&self.ranges, &batch)?
        {
            return Ok(self.model.program(&self.ranges, packed));
        }
        self.model.plan(&self.ranges, &batch)
    }

    /// Runs a step over poisoned activations. Returns the rows of logits and the tokens of the largest ones.
    pub fn run(&self, parts: &[TestSequence<'_>]) -> (Vec<Vec<f32>>, Vec<u32>) {
        let program = self.plan(parts).unwrap();
        // The workspace before the inputs is for another library.
        let used = self.ranges.activations + self.activation_bytes - program.inputs_at;
        self.device.write(program.inputs_at, &vec![POISON; used as usize]);
        self.device.write(program.inputs_at, &program.inputs);
        program.operations().for_each(|operation| self.device.operate(operation));
        let (rows, vocab) = (parts.iter().map(|part| part.rows).sum(), self.model.spec().vocab as usize);
        let logits: Vec<f32> = self.device.download(program.results.logits, rows * vocab);
        (
            logits.chunks(vocab).map(<[f32]>::to_vec).collect(),
            self.device.download(program.results.tokens, rows),
        )
    }
}

/// Bytes of a chunk, which has unused space after its last block.
fn chunk_bytes(spec: &ModelSpec) -> u64 {
    (3 * spec.layer_block_bytes() + 64).next_multiple_of(4096)
}

/// Tokens of each answer: the interpreter takes a tenth of a second for each.
const MOST_TOKENS: usize = 20;

#[test]
fn stories260k_generates_golden_tokens_by_the_kernels() {
    let Some(golden) = stories260k("stories260k_generates_golden_tokens_by_the_kernels") else { return };
    for case in &golden.cases {
        let expected = &case.tokens[..MOST_TOKENS.min(case.tokens.len())];
        assert_eq!(greedy(&golden.spec, &golden.checkpoint, &case.prompt, expected.len()), expected);
    }
}

fn greedy(spec: &ModelSpec, checkpoint: &Checkpoint, prompt: &[u32], count: usize) -> Vec<u32> {
    let kv_blocks = (prompt.len() + count).div_ceil(16);
    let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).rev().collect();
    let tenant = Tenant::new(spec, checkpoint, layer_blocks.len() as u32, u32::MAX);
    let mut tokens = prompt.to_vec();
    let mut start = 0;
    while tokens.len() < prompt.len() + count {
        let part =
            TestSequence { start, tokens: &tokens[start..], layer_blocks: &layer_blocks, kv_blocks, rows: 1 };
        let (_, largest) = tenant.run(&[part]);
        start = tokens.len();
        tokens.push(largest[0]);
    }
    tokens.split_off(prompt.len())
}

/// Shapes whose sizes are multiples of what the kernels read at once.
pub fn shapes(dtype: Dtype) -> [ModelSpec; 3] {
    let llama = ModelSpec { hidden: 48, intermediate: 72, head_dim: 24, max_positions: 512, ..llama(dtype) };
    [
        llama.clone(),
        ModelSpec { tied_embeddings: true, attention_bias: true, mlp_bias: true, kv_heads: 1, ..llama },
        ModelSpec { hidden: 64, intermediate: 80, head_dim: 16, ..opt(dtype) },
    ]
}

/// Plans a step of one token over no memory.
pub fn one_step(model: CudaModel) -> StepProgram {
    let layer_blocks = vec![0; usize::from(model.spec().layers)];
    let part = TestSequence { start: 0, tokens: &[1], layer_blocks: &layer_blocks, kv_blocks: 1, rows: 1 };
    model.plan(&no_memory(&model), &Batch { sequences: &[part.sequence()] }).unwrap()
}

fn no_memory(model: &CudaModel) -> DeviceRanges {
    DeviceRanges {
        global: 0x1000,
        layers: vec![0x1000; usize::from(model.spec().layers)],
        kv: 0,
        layer_blocks: 1,
        activations: 0x1000,
        activation_limit_bytes: u64::MAX,
    }
}

#[test]
fn steps_agree_with_the_reference_in_every_format() {
    steps_agree(&DTYPES, Products::Deterministic);
}

pub fn steps_agree(formats: &[Dtype], products: Products) {
    const TOKENS: usize = 75;
    for spec in formats.iter().flat_map(|dtype| shapes(*dtype)) {
        let checkpoint = checkpoint(&spec);
        let tokens = tokens(TOKENS, 1, &spec);
        let kv_blocks = TOKENS.div_ceil(16);
        let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).collect();
        let tenant = Tenant::new(&spec, &checkpoint, layer_blocks.len() as u32, u32::MAX);
        let tenant = tenant.with_products(products);
        let part =
            TestSequence { start: 0, tokens: &tokens, layer_blocks: &layer_blocks, kv_blocks, rows: TOKENS };
        let (found, largest) = tenant.run(&[part]);
        let expected =
            Reference { spec: &spec, checkpoint: &checkpoint, device: Rounding::Gpu }.logits(&tokens);
        let tolerance = tolerances::logits(spec.dtype, usize::from(spec.layers));
        let error = error(&found, &expected);
        assert!(error < tolerance, "error {error:e} of the logits' spread in {spec:?}");
        for (row, token) in found.iter().zip(largest) {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(
                row.iter().position(|logit| *logit == most),
                Some(token as usize),
                "the first largest"
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_batch_chunks_or_blocks() {
    const TOKENS: usize = 300;
    for spec in [Dtype::F32, Dtype::Bf16].map(|dtype| shapes(dtype)[0].clone()) {
        let checkpoint = checkpoint(&spec);
        let tokens = tokens(TOKENS, 2, &spec);
        let kv_blocks = TOKENS.div_ceil(16);
        let all = 2 * kv_blocks * usize::from(spec.layers);
        let forward: Vec<u32> = (0..all as u32 / 2).collect();
        let backward: Vec<u32> = (all as u32 / 2..all as u32).rev().collect();
        let part = |range: std::ops::Range<usize>, layer_blocks| TestSequence {
            start: range.start,
            tokens: &tokens[range],
            layer_blocks,
            kv_blocks,
            rows: 1,
        };
        // In pieces of 100, then the last token alone, which is cut into splits.
        let tenant = Tenant::new(&spec, &checkpoint, all as u32, u32::MAX);
        for start in [0, 100, 200] {
            tenant.run(&[part(start..(start + 100).min(TOKENS - 1), &forward)]);
        }
        let (alone, _) = tenant.run(&[part(TOKENS - 1..TOKENS, &forward)]);
        // Elsewhere, in chunks of 37 tokens that pass each layer one after another, next to another sequence.
        let other = Tenant::new(&spec, &checkpoint, all as u32, 37);
        other.run(&[part(0..90, &backward)]);
        let (batch, _) = other.run(&[part(0..33, &forward), part(90..180, &backward)]);
        assert_eq!(batch.len(), 2);
        other.run(&[part(180..290, &backward)]);
        let (batch, _) = other.run(&[part(33..34, &forward), part(290..TOKENS, &backward)]);
        let bits = |row: &[f32]| row.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&batch[1]), bits(&alone[0]), "{:?}", spec.dtype);
    }
}

#[test]
fn what_no_kernel_serves_is_refused_by_name() {
    let refused = |spec: ModelSpec| CudaModel::new(spec, 1 << 20, 256, 64).unwrap_err().to_string();
    let spec = shapes(Dtype::Bf16)[0].clone();
    assert_eq!(
        refused(ModelSpec { intermediate: 75, ..spec.clone() }),
        "the CUDA kernels need a multiple of 8 as the columns of weights, which is 75"
    );
    assert!(refused(ModelSpec { head_dim: 18, ..spec.clone() }).contains("head, which is 18"));
    assert!(refused(ModelSpec { head_dim: 264, ..spec.clone() }).contains("at most 256"));
    assert_eq!(refused(ModelSpec { kv_heads: 4, ..spec }), "model shape: kv_heads must divide heads");
    assert!(CudaModel::new(ModelSpec { family: Family::Opt, ..opt(Dtype::F32) }, 1 << 20, 256, 64).is_err());
}

#[test]
fn a_step_beyond_its_activations_or_blocks_is_refused_before_it_is_planned() {
    let spec = shapes(Dtype::F32)[0].clone();
    let tenant = Tenant::new(&spec, &checkpoint(&spec), 4, u32::MAX);
    let tokens = tokens(200, 3, &spec);
    let part = |layer_blocks, count| TestSequence {
        start: 0,
        tokens: &tokens[..count],
        layer_blocks,
        kv_blocks: 1,
        rows: 1,
    };
    let beyond = tenant.plan(&[part(&[0, 1, 4], 3)]).unwrap_err();
    assert!(matches!(beyond, ForwardError::Sequence { sequence: 0, .. }), "{beyond}");
    let small = Tenant {
        ranges: DeviceRanges { activation_limit_bytes: 1000, ..tenant.ranges.clone() },
        ..Tenant::new(&spec, &checkpoint(&spec), 4, u32::MAX)
    };
    let limit = small.plan(&[part(&[0, 1, 2], 3)]).unwrap_err();
    assert!(matches!(limit, ForwardError::ActivationLimit { limit_bytes: 1000, .. }), "{limit}");
    let inside: Address = tenant.plan(&[part(&[0, 1, 2], 3)]).unwrap().inputs_at;
    assert!(inside >= tenant.ranges.activations, "the inputs are activations");
}

/// A graph of a decode step has these kernels, two that note times, and two for each layer that moves. This bounds what
/// the engine's graphs take.
#[test]
fn a_decode_of_llama_3_8b_is_some_four_hundred_kernels() {
    const KV_BLOCKS: usize = 128;
    let spec = ModelSpec {
        vocab: 128_256,
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        max_positions: 8192,
        ..llama(Dtype::Bf16)
    };
    let kernels = |start: usize| {
        let model = CudaModel::new(spec.clone(), 2 << 20, 8192, 2048).unwrap();
        let layer_blocks = vec![0; KV_BLOCKS * 32];
        let part =
            TestSequence { start, tokens: &[1], layer_blocks: &layer_blocks, kv_blocks: KV_BLOCKS, rows: 1 };
        let packed = model.pack_decode(&no_memory(&model), &Batch { sequences: &[part.sequence()] });
        model.program(&no_memory(&model), packed.unwrap().unwrap()).operations().count()
    };
    // Embedding, angles, norm, logits, two for the largest; eleven of a layer, and the merge of splits in a long sequence.
    assert_eq!(kernels(100), 6 + 32 * 11);
    assert_eq!(kernels(2000), 6 + 32 * 12);
}

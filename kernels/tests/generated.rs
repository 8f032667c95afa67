//! Generated models: equal files for equal seeds, readable as Hugging Face folders, with varied output.

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_kernels::generate::{GenerateError, RandomModel};
use sluice_link::model::{Dtype, Family, ModelSpec};
use sluice_link::slab::slab_layout;

use crate::checkpoint::Checkpoint;
use crate::memory::{Memory, TestSequence};
use crate::specs::{DTYPES, LLAMA3_SCALING, llama, opt};

fn json(folder: &tempfile::TempDir, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
}

fn written(spec: &ModelSpec, seed: u64, shards: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    RandomModel { spec: spec.clone(), seed, shards }.write(folder.path()).unwrap();
    folder
}

#[test]
fn equal_seeds_give_equal_weights_in_any_number_of_shards() {
    let spec = llama(Dtype::Bf16);
    let slab = |seed, shards| {
        Checkpoint::read(written(&spec, seed, shards).path()).layer_slab(&spec, 1).as_slice().to_vec()
    };
    assert_eq!(slab(3, 1), slab(3, 4));
    assert_ne!(slab(3, 1), slab(4, 1));
}

#[test]
fn a_folder_holds_every_tensor_of_the_shape_and_an_index_of_its_shards() {
    for spec in [llama(Dtype::F16), opt(Dtype::F32)] {
        let folder = written(&spec, 1, 3);
        let layout = slab_layout(&spec);
        let count = layout.global.tensors.len() + layout.layer.tensors.len() * usize::from(spec.layers);
        assert_eq!(Checkpoint::read(folder.path()).len(), count);
        let index = json(&folder, "model.safetensors.index.json");
        let map = index["weight_map"].as_object().unwrap();
        assert_eq!(map.len(), count);
        assert!(map.values().all(|file| folder.path().join(file.as_str().unwrap()).exists()));
    }
}

#[test]
fn configuration_matches_shape() {
    let folder = written(&ModelSpec { rope_scaling: LLAMA3_SCALING, ..llama(Dtype::Bf16) }, 1, 1);
    let config = json(&folder, "config.json");
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    assert_eq!(config["num_key_value_heads"], 3);
    assert_eq!(config["head_dim"], 18);
    assert_eq!(config["rms_norm_eps"].as_f64(), Some(1e-5), "the shortest decimal, not the widened f32");
    assert_eq!(config["rope_scaling"]["rope_type"], "llama3");
    assert_eq!(config["torch_dtype"], "bfloat16");
    let config = json(&written(&opt(Dtype::F16), 1, 1), "config.json");
    assert_eq!(config["model_type"], "opt");
    assert_eq!(config["ffn_dim"], 75);
    assert_eq!(config["torch_dtype"], "float16");
}

#[test]
fn the_tokenizer_has_one_token_for_each_id_and_every_byte() {
    let tokenizer = json(&written(&ModelSpec { vocab: 5000, ..llama(Dtype::Bf16) }, 1, 1), "tokenizer.json");
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let ids: BTreeSet<u64> = vocab.values().map(|id| id.as_u64().unwrap()).collect();
    assert!(ids.into_iter().eq(0..5000), "ids are 0..5000, each once");
    assert_eq!(tokenizer["model"]["merges"].as_array().unwrap().len(), 5000 - 258);
    assert_eq!((&vocab["<s>"], &vocab["</s>"], &vocab["A"]), (&0.into(), &1.into(), &(2 + 65).into()));
    assert_eq!((&vocab["Ġ"], &vocab["aa"]), (&(2 + 32).into(), &258.into()));
    for merge in tokenizer["model"]["merges"].as_array().unwrap() {
        let parts = [0, 1].map(|n| merge[n].as_str().unwrap());
        assert!(parts.iter().all(|part| vocab.contains_key(*part)) && vocab.contains_key(&parts.concat()));
    }
}

#[test]
fn unrepresentable_shapes_are_refused() {
    let refused = |spec: ModelSpec| {
        let folder = tempfile::tempdir().unwrap();
        RandomModel { spec, seed: 1, shards: 1 }.write(folder.path()).unwrap_err()
    };
    assert!(matches!(refused(ModelSpec { vocab: 257, ..llama(Dtype::F32) }), GenerateError::Shape(_)));
    assert!(matches!(refused(ModelSpec { kv_heads: 2, ..opt(Dtype::F32) }), GenerateError::Shape(_)));
}

#[test]
fn greedy_output_is_varied() {
    let wide = |dtype| ModelSpec {
        hidden: 128,
        intermediate: 256,
        heads: 8,
        kv_heads: 4,
        head_dim: 16,
        vocab: 1000,
        ..llama(dtype)
    };
    let mut specs: Vec<ModelSpec> = DTYPES.into_iter().map(wide).collect();
    specs.push(ModelSpec { tied_embeddings: true, ..wide(Dtype::Bf16) });
    specs.push(ModelSpec { tied_embeddings: true, layers: 8, ..wide(Dtype::Bf16) });
    specs.push(ModelSpec { vocab: 1000, ..opt(Dtype::Bf16) });
    specs.push(ModelSpec { family: Family::Opt, tied_embeddings: false, ..opt(Dtype::F32) });
    for spec in specs {
        let distinct: BTreeSet<u32> = greedy(&spec, 100).into_iter().collect();
        assert!(distinct.len() >= 30, "only {} different tokens of 100 from {spec:?}", distinct.len());
    }
}

fn greedy(spec: &ModelSpec, count: usize) -> Vec<u32> {
    let checkpoint = Checkpoint::read(written(spec, 1, 1).path());
    let kv_blocks = (count + 1).div_ceil(16);
    let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).collect();
    let mut memory = Memory::new(spec, &checkpoint, layer_blocks.len() as u32);
    let model = memory.model(1);
    let mut tokens = vec![0];
    while tokens.len() <= count {
        let start = tokens.len() - 1;
        let part =
            TestSequence { start, tokens: &tokens[start..], layer_blocks: &layer_blocks, kv_blocks, rows: 1 };
        let rows = memory.run(&model, &[part]).unwrap();
        let best = (0..rows[0].len()).max_by(|a, b| rows[0][*a].total_cmp(&rows[0][*b])).unwrap();
        tokens.push(best as u32);
    }
    tokens.split_off(1)
}

//! Model folders and YAML that cannot be used: status 78, the file and the field or tensor on stderr, and no
//! leftovers.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Outcome, TestEnv, Yaml};

const MODEL: &str = "--layers 2 --hidden 64 --intermediate 128 --vocab 300 --max-positions 256";
const TENSOR: &str = "model.layers.1.self_attn.q_proj.weight";

/// Damages a model folder.
type Damage = fn(&Path);

/// A damaged folder, and what the message must contain.
const CASES: [(&str, Damage, &[&str]); 20] = [
    (
        "no folder",
        |f| std::fs::remove_dir_all(f).unwrap(),
        &["up.yaml:", "spec.model.source.file.path: ", "/model: no such folder; expected a folder in"],
    ),
    (
        "no config",
        |f| std::fs::remove_file(f.join("config.json")).unwrap(),
        &["up.yaml:", "spec.model.source.file.path: ", "/model: has no config.json; expected a"],
    ),
    ("no weights", |f| std::fs::remove_file(f.join("model.safetensors")).unwrap(), &["model.safetensors"]),
    (
        "no tokenizer",
        |f| std::fs::remove_file(f.join("tokenizer.json")).unwrap(),
        &["tokenizer.json", "No such file"],
    ),
    ("tokenizer is no tokenizer", |f| write(f, "tokenizer.json", "{\"a\": 1}"), &["tokenizer.json: "]),
    (
        "config is no JSON",
        |f| write(f, "config.json", "{\"model_type\": \"llama\",\n  oops"),
        &["config.json: ", "line 2 column 3"],
    ),
    ("config is an array", |f| write(f, "config.json", "[]"), &["config.json: "]),
    (
        "another architecture",
        |f| config(f, "model_type", json!("mamba")),
        &["config.json: model_type: ", "mamba"],
    ),
    ("a field is missing", |f| config(f, "hidden_size", Value::Null), &["config.json: ", "hidden_size"]),
    (
        "a negative count",
        |f| config(f, "num_hidden_layers", json!(-1)),
        &["config.json: ", "num_hidden_layers"],
    ),
    (
        "heads that do not divide",
        |f| config(f, "num_key_value_heads", json!(3)),
        &["config.json: ", "num_key_value_heads"],
    ),
    (
        "another activation",
        |f| config(f, "hidden_act", json!("tanh")),
        &["config.json: hidden_act: ", "tanh"],
    ),
    (
        "an end beyond the vocabulary",
        |f| config(f, "eos_token_id", json!([1, 300])),
        &["config.json: eos_token_id: ", "300"],
    ),
    (
        "a beginning beyond the vocabulary",
        |f| config(f, "bos_token_id", json!(300)),
        &["/config.json: bos_token_id: ", "300"],
    ),
    (
        "generation ends beyond the vocabulary",
        |f| write(f, "generation_config.json", json!({"eos_token_id": 7000}).to_string()),
        &["generation_config.json: eos_token_id: ", "7000"],
    ),
    (
        "the tokenizer's end is unknown to the model",
        |f| new_end(f, 300),
        &["tokenizer_config.json: eos_token: ", "300"],
    ),
    ("a tensor is missing", |f| rename_tensor(f, TENSOR), &["is missing from the weight files", TENSOR]),
    (
        "a tensor of another shape",
        |f| config(f, "intermediate_size", json!(256)),
        &["model.safetensors: tensor model.layers.0.mlp.", "128"],
    ),
    ("weights cut short", |f| cut(f, 5000), &["model.safetensors: "]),
    ("weights of a few bytes", |f| cut_to(f, 6), &["model.safetensors: "]),
];

fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), text).unwrap();
}

/// Sets a field of `config.json`; null removes it.
fn config(folder: &Path, field: &str, value: Value) {
    let text = std::fs::read(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    let fields = config.as_object_mut().unwrap();
    assert!(fields.remove(field).is_some(), "the generator writes {field}");
    if !value.is_null() {
        fields.insert(field.into(), value);
    }
    write(folder, "config.json", config.to_string());
}

/// Adds an end token to the tokenizer that has no embedding in the model.
fn new_end(folder: &Path, id: u32) {
    let text = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
    let end = json!({"id": id, "content": "<new end>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    tokenizer["added_tokens"].as_array_mut().unwrap().push(end);
    write(folder, "tokenizer.json", tokenizer.to_string());
    write(folder, "tokenizer_config.json", json!({"eos_token": "<new end>"}).to_string());
}

/// Renames a tensor to a name of the same length.
fn rename_tensor(folder: &Path, name: &str) {
    let mut bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let at = bytes
        .windows(name.len())
        .position(|window| window == name.as_bytes())
        .expect("the generator writes it");
    bytes[at..at + name.len()].fill(b'x');
    write(folder, "model.safetensors", bytes);
}

fn cut(folder: &Path, bytes: usize) {
    let length = std::fs::metadata(folder.join("model.safetensors")).unwrap().len() as usize;
    cut_to(folder, length - bytes);
}

fn cut_to(folder: &Path, bytes: usize) {
    let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
    write(folder, "model.safetensors", &weights[..bytes]);
}

async fn refused(world: &TestEnv, yaml: &str) -> Outcome {
    let outcome = world.up_text(yaml, &[]).ended().await;
    world.assert_no_leftovers().await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_model_folder_is_refused_by_file_and_field_and_nothing_stays() {
    for (what, damage, words) in CASES {
        let world = TestEnv::new();
        let model = world.model("model", MODEL);
        damage(&model);
        let yaml = Yaml::pool("16Mi").tenant("bad", &model, "", "").text();
        let stderr = refused(&world, &yaml).await.stderr;
        let all = |line: &&str| words.iter().all(|words| line.contains(words));
        assert!(stderr.lines().any(|line| all(&line)), "{what}: no line has all of {words:?}:\n{stderr}");
        assert!(stderr.contains("default/bad"), "{what}: the tenant is named:\n{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tensor_file_of_several_that_is_missing_is_named() {
    let world = TestEnv::new();
    let model = world.model("model", &format!("{MODEL} --shards 2"));
    let missing = "model-00002-of-00002.safetensors";
    std::fs::remove_file(model.join(missing)).unwrap();
    let stderr = refused(&world, &Yaml::pool("16Mi").tenant("bad", &model, "", "").text()).await.stderr;
    assert!(stderr.contains(missing), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_tenant_of_two_ends_both_and_is_the_one_that_is_named() {
    let world = TestEnv::new();
    let (good, bad) = (world.model("good", MODEL), world.model("model", MODEL));
    config(&bad, "model_type", json!("mamba"));
    let mut yaml = Yaml::pool("16Mi").tenant("good", &good, "", "").tenant("bad", &bad, "", "");
    yaml.gpus = 2;
    let outcome = world.up(&yaml, &[]).ended().await;
    world.assert_no_leftovers().await;
    assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("sluice: default/bad: "), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("sluice: default/good: "), "{}", outcome.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_yaml_is_refused_by_file_line_and_field() {
    let world = TestEnv::new();
    let good = Yaml::pool("16Mi").tenant("tiny", Path::new("model"), "", "drainSeconds: 1").text();
    for (from, to, words) in [
        ("memory: 16Mi", "memory: 16Mib", "up.yaml:6:19: spec.device.host.memory: "),
        (
            "memory: 16Mi",
            "memori: 16Mi",
            "up.yaml:6:19: spec.device.host.memori: unknown field; did you mean `memory`?",
        ),
        ("policy: Oneiros", "policy: Magic", "up.yaml:9:3: spec.policy: "),
        ("drainSeconds: 1", "drainSeconds: soon", "up.yaml:14:82: spec.drainSeconds: "),
        ("{name: box}, model:", "{name: other}, model:", "spec.poolRef.name: "),
        ("hostMemoryPerGPU: 4Gi", "hostMemoryPerGPU: [", "up.yaml:"),
        ("kind: ModelTenant", "kind: ModelRenter", "up.yaml:12:1: kind: "),
    ] {
        assert!(good.contains(from), "{from}");
        let stderr = refused(&world, &good.replace(from, to)).await.stderr;
        assert!(stderr.contains(words), "{to}: expected `{words}`:\n{stderr}");
    }
}

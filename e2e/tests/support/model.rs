//! Models: generated ones, and the reference model where it is present.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Returns a built binary of the product: in `SLUICE_BIN_DIR`, else in the target folder of this test.
pub fn binary(name: &str) -> PathBuf {
    let path = bin_folder().join(name);
    assert!(
        path.is_file(),
        "{} is not built: run `cargo build --workspace --bins`, or `cargo xtask test`",
        path.display()
    );
    path
}

/// Returns the folder of the binaries.
pub fn bin_folder() -> PathBuf {
    let beside = || std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let given = std::env::var_os("SLUICE_BIN_DIR").filter(|folder| !folder.is_empty());
    std::path::absolute(given.map_or_else(beside, PathBuf::from)).unwrap()
}

/// Writes a model with random weights to `folder`; `options` are those of `sluice-model-gen`.
pub fn generate(folder: &Path, options: &str) {
    let output = Command::new(binary("sluice-model-gen"))
        .arg("--out")
        .arg(folder)
        .args(options.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A prompt and the answer of the reference implementation.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Token ids of the greedy answer.
    pub greedy_ids: Vec<u32>,
    /// Prompt and answer as text.
    pub text: String,
}

/// The reference model of 260 thousand parameters.
#[derive(Clone, Debug)]
pub struct Stories {
    /// Its folder.
    pub folder: PathBuf,
    /// Prompts and answers.
    pub golden: Vec<Golden>,
    /// Text of each token.
    names: Vec<String>,
}

impl Stories {
    /// Returns the model. Without it, prints that `test` is skipped and returns `None`.
    pub fn find(test: &str) -> Option<Stories> {
        let root = std::env::var_os("SLUICE_SHARED").filter(|root| !root.is_empty());
        let root =
            root.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
        let folder = root.join("models/stories260k");
        if folder.join("golden.json").is_file() {
            return Some(Stories::read(folder.canonicalize().unwrap()));
        }
        // Not `eprintln!`: the test harness captures it.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED {test}: {} is absent; set SLUICE_SHARED", folder.display()).unwrap();
        None
    }

    fn read(folder: PathBuf) -> Stories {
        let golden = json(&folder.join("golden.json"));
        let golden = golden.as_array().unwrap().iter().map(|one| Golden {
            prompt_ids: ids(&one["prompt_ids"]),
            greedy_ids: ids(&one["greedy_ids"]),
            text: one["text"].as_str().unwrap().to_owned(),
        });
        let golden = golden.collect();
        let names = names(&json(&folder.join("tokenizer.json")));
        Stories { folder, golden, names }
    }

    /// How the API names these tokens: by their own text, with the space that begins a word.
    pub fn shown(&self, ids: &[u32]) -> Vec<&str> {
        ids.iter().map(|id| self.names[*id as usize].as_str()).collect()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn names(tokenizer: &Value) -> Vec<String> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut names = vec![String::new(); vocabulary.len()];
    for (piece, id) in vocabulary {
        let byte =
            piece.strip_prefix("<0x").and_then(|hex| u8::from_str_radix(hex.strip_suffix('>')?, 16).ok());
        names[id.as_u64().unwrap() as usize] = match byte {
            Some(byte) => String::from_utf8_lossy(&[byte]).into_owned(),
            None => piece.replace('\u{2581}', " "),
        };
    }
    names
}

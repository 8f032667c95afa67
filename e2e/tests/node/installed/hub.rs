//! Hubs that pods can reach, and their model.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use sluice_e2e::hub::{Hub, read};

use super::{Product, binary};

/// Template that repeats the prompt as [`Product::complete`](super::Product::complete) sends it, so that the
/// answers are equal.
const PLAIN: &str = "<s>{{ messages[0]['content'] }}";

/// A generated model of the small model's shape, with a seed whose answers are long.
const GENERATED: &str =
    "--layers 5 --hidden 64 --heads 8 --kv-heads 4 --intermediate 172 --max-positions 512 --dtype f32";

/// Returns a model, and the text that an independent implementation generates for "Once upon a time": the small
/// real model, or else a generated one without a known text.
///
/// # Panics
/// If `SLUICE_SHARED` names a folder without the model.
pub fn model() -> (PathBuf, Option<String>) {
    let Some(shared) = std::env::var_os("SLUICE_SHARED").map(PathBuf::from) else {
        return (generated().to_owned(), None);
    };
    let folder = shared.join("models/stories260k");
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let of = golden.as_array().unwrap().iter().find(|one| one["prompt"] == "Once upon a time").unwrap();
    (folder, Some(of["text"].as_str().unwrap().to_owned()))
}

/// The generated model's folder.
fn generated() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-model");
        let mut generator = Command::new(binary("sluice-model-gen"));
        let output = generator.arg("--out").arg(&folder).args(GENERATED.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

impl Product<'_> {
    /// Starts a hub with this model, whose chat template repeats the user's text.
    pub async fn hub(&self, folder: &Path) -> Hub {
        let mut files = read(folder);
        files.insert("chat_template.jinja".to_owned(), PLAIN.into());
        Hub::start(&self.node.address_for_pods().await, "tests/story", files)
    }
}

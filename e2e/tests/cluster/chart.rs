//! The Helm chart: its rendered objects, its refusals, and its objects on a real API server.

mod devices;
mod hook;
mod lifecycle;
mod monitoring;
mod network_policies;
mod policies;
mod refused;
mod render;
mod safety;
mod schema;
mod server;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use sluice_e2e::cluster::{Api, Binaries};
use tempfile::TempDir;

/// Held by a test while its release is installed: the chart has cluster-scoped objects.
static INSTALLED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Name of the release in tests that only render.
const RELEASE: &str = "sluice";
/// Its namespace.
const NAMESPACE: &str = "sluice-system";

/// Helm with the chart of this tree, and private folders.
pub struct Helm {
    binary: PathBuf,
    home: TempDir,
}

impl Helm {
    /// Returns Helm of the folder of binaries. Without that folder, prints the reason and returns `None`.
    pub fn find() -> Option<Helm> {
        Some(Helm { binary: Binaries::find()?.path("helm"), home: tempfile::tempdir().unwrap() })
    }

    /// Returns a command that uses no cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Without a home, helm keeps its cache in the current folder.
        command.env("HOME", self.home.path());
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), self.home.path().join(kind));
        }
        command
    }

    /// Runs a command on the API server. It may fail.
    pub fn on(&self, server: &Api, arguments: &[&str]) -> Output {
        self.command(arguments).arg("--kubeconfig").arg(server.kubeconfig_path()).output().unwrap()
    }

    /// Renders the chart. Returns its objects, or helm's error.
    pub fn template(&self, namespace: &str, values: &[&str]) -> Result<Vec<Value>, String> {
        let chart = chart();
        let arguments = [&["template", RELEASE, &chart, "--namespace", namespace], values].concat();
        Ok(documents(&output_text(self.command(&arguments).output().unwrap())?))
    }

    /// Same as [`Helm::template`], in the usual namespace, with valid values.
    pub fn render(&self, values: &[&str]) -> Vec<Value> {
        self.template(NAMESPACE, values).unwrap_or_else(|error| panic!("{values:?}: {error}"))
    }
}

/// Folder of the chart.
pub fn chart() -> String {
    format!("{}/../charts/sluice", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the output of a program, or its error output.
pub fn output_text(output: Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Returns the objects of a text with several documents.
pub fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---").filter(|document| document.contains("kind:"));
    documents
        .map(|document| serde_yaml::from_str(document).unwrap_or_else(|e| panic!("{document}: {e}")))
        .collect()
}

/// Returns kind and name.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Returns the object of that kind and name.
///
/// # Panics
/// If it does not exist.
pub fn named<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    objects.iter().find(|object| title(object) == wanted).unwrap_or_else(|| panic!("no {wanted}"))
}

//! The Helm chart: what it renders, what it refuses, and what a real API server makes of it.

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

/// Held by a test while a release of its own is installed: the chart has objects that belong to the whole cluster.
static INSTALLED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Name of the release in tests that only render.
const RELEASE: &str = "sluice";
/// Its namespace.
const NAMESPACE: &str = "sluice-system";

/// Helm with the chart of this tree, and folders of its own.
pub struct Helm {
    binary: PathBuf,
    home: TempDir,
}

impl Helm {
    /// Helm of the folder of binaries; without that folder `None`, and a line that says so.
    pub fn find() -> Option<Helm> {
        Some(Helm { binary: Binaries::find()?.path("helm"), home: tempfile::tempdir().unwrap() })
    }

    /// A call that reaches no cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Without a home it keeps its cache in the current folder.
        command.env("HOME", self.home.path());
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), self.home.path().join(kind));
        }
        command
    }

    /// A call to the API server, whatever comes of it.
    pub fn on(&self, server: &Api, arguments: &[&str]) -> Output {
        self.command(arguments).arg("--kubeconfig").arg(server.kubeconfig_path()).output().unwrap()
    }

    /// The objects that the chart renders, or what helm says of the values.
    pub fn template(&self, namespace: &str, values: &[&str]) -> Result<Vec<Value>, String> {
        let chart = chart();
        let arguments = [&["template", RELEASE, &chart, "--namespace", namespace], values].concat();
        Ok(documents(&output_text(self.command(&arguments).output().unwrap())?))
    }

    /// As [`Helm::template`], in the usual namespace, with values that are right.
    pub fn render(&self, values: &[&str]) -> Vec<Value> {
        self.template(NAMESPACE, values).unwrap_or_else(|error| panic!("{values:?}: {error}"))
    }
}

/// Folder of the chart.
pub fn chart() -> String {
    format!("{}/../charts/sluice", env!("CARGO_MANIFEST_DIR"))
}

/// What a program printed, or its complaint.
pub fn output_text(output: Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The objects of a text with several documents.
pub fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---").filter(|document| document.contains("kind:"));
    documents
        .map(|document| serde_yaml::from_str(document).unwrap_or_else(|e| panic!("{document}: {e}")))
        .collect()
}

/// Kind and name.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The object of that kind and name.
///
/// # Panics
/// If it is not there.
pub fn named<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    objects.iter().find(|object| title(object) == wanted).unwrap_or_else(|| panic!("no {wanted}"))
}

//! Writes kubeconfig files.

use std::path::Path;

use serde_json::json;

use super::certificates::{Authority, Pair};

/// Writes a kubeconfig for `server`, as JSON, which is valid YAML.
pub fn write(path: &Path, server: &str, authority: &Authority, user: &Pair) {
    let folder = path.parent().expect("a file lies in a folder");
    let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let (certificate, key) = user.write(folder, &name);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{
            "name": "test",
            "cluster": {"server": server, "certificate-authority": authority.certificate_path()},
        }],
        "users": [{"name": name, "user": {"client-certificate": certificate, "client-key": key}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
    });
    std::fs::write(path, config.to_string()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

//! Builds an image that only contains files, as an OCI archive.

use std::path::Path;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tar::{Builder, Header};

/// Writes `archive` with an image `name` that has the files of `folder` in its folder `inside`.
pub fn write(archive: &Path, name: &str, folder: &Path, inside: &str) {
    let layer = layer(folder, inside);
    let (architecture, diff) = (if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, sha(&layer));
    let config = json!({"architecture": architecture, "os": "linux", "config": {"Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [diff]}});
    let config = config.to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
        "config": blob("application/vnd.oci.image.config.v1+json", &config),
        "layers": [blob("application/vnd.oci.image.layer.v1.tar", &layer)]});
    let manifest = manifest.to_string().into_bytes();
    let mut listed = blob(MANIFEST, &manifest);
    listed["annotations"] = json!({"io.containerd.image.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [listed]}).to_string().into_bytes();

    let mut tar = Builder::new(std::fs::File::create(archive).unwrap());
    append(&mut tar, "oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#);
    append(&mut tar, "index.json", &index);
    for blob in [&manifest, &config, &layer] {
        append(&mut tar, &format!("blobs/sha256/{}", sha(blob).trim_start_matches("sha256:")), blob);
    }
    tar.into_inner().unwrap();
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn layer(folder: &Path, inside: &str) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = format!("{inside}/{}", entry.file_name().to_str().unwrap());
        append(&mut tar, &name, &std::fs::read(entry.path()).unwrap());
    }
    tar.into_inner().unwrap()
}

fn append<W: std::io::Write>(tar: &mut Builder<W>, name: &str, bytes: &[u8]) {
    let mut header = Header::new_ustar();
    header.set_size(bytes.len() as u64);
    // Some files are programs.
    header.set_mode(0o755);
    tar.append_data(&mut header, name, bytes).unwrap();
}

fn blob(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": sha(bytes), "size": bytes.len()})
}

fn sha(bytes: &[u8]) -> String {
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

//! An image as an OCI layout in a tar archive, which containerd, kind, podman, skopeo and docker load.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tar::Header;

use super::layer::Packed;
use super::sha256::sha256;
use super::user::USER;
use crate::platform::Platform;

/// An archive, and the digest of the manifest in it.
pub struct Archive {
    /// The archive.
    pub bytes: Vec<u8>,
    /// `sha256:...`: by this a registry knows the image.
    pub digest: String,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Returns the image `name` that runs the command `entrypoint` as an unprivileged user.
pub fn archive(
    (name, platform): (&str, Platform),
    entrypoint: &[&str],
    layers: &[Packed],
) -> Result<Archive> {
    let mut blobs = Blobs::default();
    let config = blobs.add(CONFIG, config(platform, entrypoint, layers).to_string().into_bytes());
    let packed: Vec<Value> = layers.iter().map(|layer| blobs.add(LAYER, layer.bytes.clone())).collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": packed});
    let mut manifest = blobs.add(MANIFEST, manifest.to_string().into_bytes());
    let digest = manifest["digest"].as_str().context("a descriptor has a digest")?.to_owned();
    let tag = name.rsplit(':').next().unwrap_or(name);
    manifest["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    let mut files = blobs.files;
    files.insert("index.json".to_owned(), index.to_string().into_bytes());
    files.insert("oci-layout".to_owned(), json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes());
    files.insert("manifest.json".to_owned(), for_docker(name, &config, &packed).to_string().into_bytes());
    Ok(Archive { bytes: pack(&files)?, digest })
}

fn config(platform: Platform, entrypoint: &[&str], layers: &[Packed]) -> Value {
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    json!({
        "architecture": platform.name(),
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": entrypoint,
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": entrypoint[0].rsplit('/').next(),
                "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// What docker reads where it knows no OCI layout.
fn for_docker(name: &str, config: &Value, layers: &[Value]) -> Value {
    let path =
        |blob: &Value| format!("blobs/{}", blob["digest"].as_str().unwrap_or_default().replace(':', "/"));
    let layers: Vec<String> = layers.iter().map(path).collect();
    json!([{"Config": path(config), "RepoTags": [name], "Layers": layers}])
}

#[derive(Default)]
struct Blobs {
    files: BTreeMap<String, Vec<u8>>,
}

impl Blobs {
    /// Adds a blob; its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let (digest, size) = (sha256(&bytes), bytes.len());
        self.files.insert(format!("blobs/{}", digest.replace(':', "/")), bytes);
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }
}

fn pack(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content.as_slice()).with_context(|| path.clone())?;
    }
    Ok(archive.into_inner()?)
}

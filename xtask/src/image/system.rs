//! What a binary needs of a system: its libraries and their loader, a user, names of hosts, roots of trust.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;

use super::layer::Layer;
use super::user::USER;

/// Roots of trust, where distributions have them: models come over TLS from hosts that the system is to vouch for.
const ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The layer below the binary's.
pub fn layer(binary: &Utf8Path) -> Result<Layer> {
    let mut layer = Layer::default();
    for library in libraries(binary)? {
        let content = fs::read(&library).with_context(|| format!("reading {library}"))?;
        layer.file(library.trim_start_matches('/'), 0o755, content);
    }
    layer.file("etc/passwd", 0o644, format!("nonroot:x:{USER}:{USER}::/:/sbin/nologin\n").into_bytes());
    layer.file("etc/group", 0o644, format!("nonroot:x:{USER}:\n").into_bytes());
    layer.file("etc/nsswitch.conf", 0o644, b"hosts: files dns\n".to_vec());
    layer.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots()?);
    layer.folder("tmp", 0o1777);
    Ok(layer)
}

/// The libraries that the loader would load, and the loader, at the paths where it finds them.
fn libraries(binary: &Utf8Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(binary).stdin(Stdio::null()).output();
    let output = output.context("cannot start ldd")?;
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if error.contains("not a dynamic executable") || said.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        bail!("ldd: {}", error.trim());
    }
    parse(&said)
}

/// Paths in what ldd says. The kernel's own library has none.
pub(super) fn parse(said: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in said.lines().map(str::trim) {
        if line.ends_with("not found") {
            bail!("{line}");
        }
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = path.split(" (").next().unwrap_or(path);
        if path.starts_with('/') {
            found.push(path.to_owned());
        }
    }
    Ok(found)
}

fn roots() -> Result<Vec<u8>> {
    let present = ROOTS.into_iter().find(|path| Utf8Path::new(path).is_file());
    let path = present.context("no CA certificates: on Debian, run apt-get install ca-certificates")?;
    fs::read(path).with_context(|| format!("reading {path}"))
}

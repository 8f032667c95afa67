//! What a binary needs of a system: its libraries and their loader, a user, names of hosts, roots of trust.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use super::layer::Layer;
use super::user::USER;
use crate::platform::Platform;

/// Roots of trust, where distributions have them: models come over TLS from hosts that the system is to vouch for.
const ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The layer below the binary's.
pub fn layer(binary: &Utf8Path, platform: Platform) -> Result<Layer> {
    let mut layer = Layer::default();
    let libraries = if platform.is_foreign() { foreign(binary, platform)? } else { libraries(binary)? };
    for Library { path, file } in libraries {
        let content = fs::read(&file).with_context(|| format!("reading {file}"))?;
        layer.file(path.trim_start_matches('/'), 0o755, content);
    }
    layer.file("etc/passwd", 0o644, format!("nonroot:x:{USER}:{USER}::/:/sbin/nologin\n").into_bytes());
    layer.file("etc/group", 0o644, format!("nonroot:x:{USER}:\n").into_bytes());
    layer.file("etc/nsswitch.conf", 0o644, b"hosts: files dns\n".to_vec());
    layer.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots()?);
    layer.folder("tmp", 0o1777);
    Ok(layer)
}

/// A library or the loader: where a program finds it, and where this machine has it.
struct Library {
    path: String,
    file: Utf8PathBuf,
}

/// The libraries that the loader would load, and the loader, at the paths where it finds them.
fn libraries(binary: &Utf8Path) -> Result<Vec<Library>> {
    let output = Command::new("ldd").arg(binary).stdin(Stdio::null()).output();
    let output = output.context("cannot start ldd")?;
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if error.contains("not a dynamic executable") || said.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        bail!("ldd: {}", error.trim());
    }
    let library = |path: String| Library { file: path.clone().into(), path };
    Ok(parse(&said)?.into_iter().map(library).collect())
}

/// The same for a binary of another platform, from the cross compiler's folder: the loader and the libraries that
/// binary and libraries name.
fn foreign(binary: &Utf8Path, platform: Platform) -> Result<Vec<Library>> {
    let folder = platform.sysroot().join("lib");
    let Elf { loader, mut needed } = elf(binary)?;
    let mut libraries: Vec<Library> = Vec::new();
    while let Some(name) = needed.pop() {
        let path = format!("/lib/{name}");
        if libraries.iter().all(|library| library.path != path) {
            let file = folder.join(&name);
            needed.extend(elf(&file)?.needed);
            libraries.push(Library { path, file });
        }
    }
    if let Some(path) = loader {
        let name = Utf8Path::new(&path).file_name().context("a loader has a name")?;
        let file = folder.join(name);
        libraries.retain(|library| library.file != file);
        libraries.push(Library { path, file });
    }
    Ok(libraries)
}

/// What a program or library names: its loader and the libraries that it needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) loader: Option<String>,
    pub(super) needed: Vec<String>,
}

fn elf(file: &Utf8Path) -> Result<Elf> {
    let mut command = Command::new("readelf");
    command.args(["--wide", "--program-headers", "--dynamic"]).arg(file).stdin(Stdio::null());
    let output = command.output().context("cannot start readelf: install it with the linker (binutils)")?;
    if !output.status.success() {
        bail!("readelf {file}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(parse_elf(&String::from_utf8_lossy(&output.stdout)))
}

/// The loader and the libraries in what readelf says.
pub(super) fn parse_elf(said: &str) -> Elf {
    let loader = said.lines().find_map(|line| between(line, "[Requesting program interpreter:"));
    let needed = said.lines().filter_map(|line| between(line, "Shared library: ["));
    Elf { loader: loader.map(str::to_owned), needed: needed.map(str::to_owned).collect() }
}

/// The text from `mark` to the next closing bracket.
fn between<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(mark)?;
    rest.split_once(']').map(|(name, _)| name.trim())
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

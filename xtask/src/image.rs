//! `cargo xtask image`: OCI archives of the product's binaries, without a container builder.
//!
//! Each image has two layers: what the binary needs of a system (the libraries that it is linked with, a user, roots of
//! trust), and the binary. The same binaries on the same system give the same bytes.

mod archive;
mod layer;
mod sha256;
mod system;
pub mod unpack;
mod user;

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use crate::platform::Platform;
use crate::process;
use crate::workspace::Workspace;

/// One image: its name, and the binary that it starts.
pub struct Image {
    /// Name, without what the names of all begin with.
    pub name: &'static str,
    /// The binary.
    pub binary: &'static str,
    mode: u32,
}

/// Mode of a program without secrets: readable for every user.
pub const READABLE: u32 = 0o755;
/// The kernel denies access to a process whose program its user may not read, from the first instruction on: a
/// sidecar has keys, and shares its pod and its uid with an engine that may be third-party. The program belongs to
/// root, which runs no process here.
const SHUT: u32 = 0o711;

/// All of them; one each, so that a pod has nothing that it does not run.
pub const IMAGES: [Image; 4] = [
    Image { name: "sidecar", binary: "sluice-sidecar", mode: SHUT },
    Image { name: "engine", binary: "sluice-engine", mode: READABLE },
    Image { name: "operator", binary: "sluice-operator", mode: READABLE },
    Image { name: "devices", binary: "sluice-devices", mode: READABLE },
];

/// What the names of the images begin with.
const REPOSITORY: &str = "sluice.dev";

/// Options of `cargo xtask image`.
#[derive(Args)]
pub struct ImageArgs {
    /// Images to make: sidecar, engine, operator, devices. Default: all.
    names: Vec<String>,
    /// Folder of the binaries. Default: build them with `cargo build --profile dist`.
    #[arg(long, value_name = "FOLDER")]
    from: Option<Utf8PathBuf>,
    /// Folder for the archives. Default: `images` in the target folder.
    #[arg(long, value_name = "FOLDER")]
    to: Option<Utf8PathBuf>,
    /// Platform of the images. Default: this machine's. For another one it needs rustup and the cross compiler.
    #[arg(long, value_enum)]
    platform: Option<Platform>,
    /// What the names of the images begin with.
    #[arg(long, default_value = REPOSITORY)]
    repository: String,
    /// Tag of the images. Default: the version of the workspace.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
}

/// Makes the archives and prints their paths.
pub fn run(workspace: &Workspace, args: &ImageArgs) -> Result<()> {
    let images = chosen(&args.names)?;
    let platform = args.platform.unwrap_or(Platform::host());
    let from = match &args.from {
        Some(folder) => folder.clone(),
        None => build(workspace, platform)?,
    };
    let to = args.to.clone().unwrap_or_else(|| workspace.target.join("images"));
    for image in images {
        let binary = from.join(image.binary);
        let name = format!("{}/{}:{}", args.repository, image.name, args.tag);
        let file = match args.platform {
            Some(platform) => format!("{}-{}-{}.tar", image.name, args.tag, platform.name()),
            None => format!("{}-{}.tar", image.name, args.tag),
        };
        make(&name, &to.join(file), image, (&binary, platform))?;
    }
    Ok(())
}

/// The folder with images of the binaries in `from`, as tests load them; under the names of a release.
pub fn of_tests(from: &Utf8Path, platform: Platform) -> Result<Utf8PathBuf> {
    let to = from.join("images");
    for image in &IMAGES {
        let (binary, version) = (from.join(image.binary), env!("CARGO_PKG_VERSION"));
        let name = format!("{REPOSITORY}/{}:{version}", image.name);
        make(&name, &to.join(format!("{}-{version}.tar", image.name)), image, (&binary, platform))?;
    }
    Ok(to)
}

fn make(name: &str, path: &Utf8Path, image: &Image, binary: (&Utf8Path, Platform)) -> Result<()> {
    ensure!(binary.0.is_file(), "the image {} has no binary {}", image.name, binary.0);
    let packed = pack(name, &[image.binary], binary, image.mode)?;
    let folder = path.parent().context("an archive lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {folder}"))?;
    fs::write(path, &packed.bytes).with_context(|| format!("writing {path}"))?;
    let mebibytes = packed.bytes.len() as f64 / f64::from(1 << 20);
    println!("{name}  {}  {mebibytes:.1} MiB  {path}", packed.digest);
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Image>> {
    if names.is_empty() {
        return Ok(IMAGES.iter().collect());
    }
    let known = |name: &String| {
        let all = IMAGES.map(|image| image.name).join(", ");
        IMAGES
            .iter()
            .find(|image| image.name == name)
            .with_context(|| format!("no image `{name}`, but {all}"))
    };
    names.iter().map(known).collect()
}

/// Builds the binaries as they are distributed; the folder that they are in.
fn build(workspace: &Workspace, platform: Platform) -> Result<Utf8PathBuf> {
    let arguments = ["build", "--profile", "dist", "--workspace", "--bins", "--locked"];
    let mut command = process::cargo(&workspace.root, &arguments);
    let mut cross = std::env::var("CARGO_BUILD_TARGET").ok();
    if platform.is_foreign() {
        platform.provide_compiler(&workspace.root, false)?;
        platform.set_environment(&mut command);
        command.args(["--target", platform.target()]);
        cross = Some(platform.target().to_owned());
    }
    ensure!(process::passes(command)?, "the build failed");
    Ok(workspace.target.join(cross.as_deref().unwrap_or("")).join("dist"))
}

/// The archive of the image `name` that starts `binary`, by a command whose first word is its name there.
pub fn pack(
    name: &str,
    command: &[&str],
    (binary, platform): (&Utf8Path, Platform),
    mode: u32,
) -> Result<archive::Archive> {
    let system = system::layer(binary, platform).with_context(|| format!("what {binary} needs"))?;
    let mut own = layer::Layer::default();
    let path = format!("usr/bin/{}", command[0]);
    own.file(&path, mode, stripped(binary, platform)?);
    let path = format!("/{path}");
    let entrypoint: Vec<&str> = [path.as_str()].into_iter().chain(command[1..].iter().copied()).collect();
    archive::archive((name, platform), &entrypoint, &[system.pack()?, own.pack()?])
}

/// The binary without what only a debugger reads, most of its bytes.
fn stripped(binary: &Utf8Path, platform: Platform) -> Result<Vec<u8>> {
    let scratch = tempfile::tempdir().context("a folder for temporary files")?;
    let to = scratch.path().join("stripped");
    let strip = if platform.is_foreign() { format!("{}-strip", platform.gnu()) } else { "strip".to_owned() };
    let mut command = Command::new(&strip);
    command.args(["--strip-debug", "-o"]).arg(&to).arg(binary).stdin(Stdio::null());
    let output = command
        .output()
        .with_context(|| format!("cannot start {strip}: install it with the linker (binutils)"))?;
    if !output.status.success() {
        bail!("strip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    fs::read(&to).with_context(|| format!("reading {}", to.display()))
}

#[cfg(test)]
mod tests;

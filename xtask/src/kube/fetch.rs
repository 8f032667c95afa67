//! Official downloads, by curl; taken only with the digest that the project publishes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use flate2::bufread::GzDecoder;
use ring::digest;

use super::cache_dir::CacheDir;
use super::install;
use super::recipe::{Official, arch};

/// What is known of the network: hosts that cannot be reached are asked once.
#[derive(Default)]
pub struct Network {
    unreachable: BTreeSet<String>,
}

/// Statuses of curl that say that a host cannot be reached: name, connection, time, TLS.
const UNREACHABLE: [i32; 8] = [5, 6, 7, 16, 18, 28, 35, 56];

/// Downloads a binary, checks its digest and puts it in place.
pub fn get(place: &CacheDir, name: &str, official: &Official, network: &mut Network) -> Result<()> {
    let (url, digest) = (official.url.replace("{arch}", arch()), official.digest.replace("{arch}", arch()));
    let published = install::draft(&place.folder, &format!("{name}.sha256"))?;
    network.download(&digest, &published)?;
    let text = fs::read_to_string(&published).with_context(|| digest.clone());
    let _ = fs::remove_file(&published);
    let expected = published_digest(&text?, &url)?;
    let archive = install::draft(&place.folder, name)?;
    let outcome = network.download(&url, &archive).and_then(|()| check(&archive, &expected)).and_then(|()| {
        let Some(member) = official.member else { return install::install(&archive, &place.folder, name) };
        let binary = install::draft(&place.folder, &format!("{name}.member"))?;
        unpack(&archive, &member.replace("{arch}", arch()), &binary)?;
        install::install(&binary, &place.folder, name)
    });
    let _ = fs::remove_file(&archive);
    outcome
}

impl Network {
    fn download(&mut self, url: &str, to: &Utf8Path) -> Result<()> {
        let host = host(url);
        ensure!(!self.unreachable.contains(host), "{host} could not be reached before");
        let mut command = Command::new("curl");
        // A network that swallows packets must not cost minutes: five seconds to connect, and no crawling.
        command
            // Encrypted, also after a redirect; files are for tests.
            .args(["--proto", "=https,file", "--proto-redir", "=https"])
            .args(["--fail", "--location", "--silent", "--show-error", "--connect-timeout", "5"])
            .args([
                "--speed-limit",
                "20000",
                "--speed-time",
                "15",
                "--retry",
                "1",
                "--output",
                to.as_str(),
                url,
            ])
            .stdin(Stdio::null());
        let output = command.output().context("cannot start curl")?;
        if output.status.success() {
            return Ok(());
        }
        if output.status.code().is_some_and(|code| UNREACHABLE.contains(&code)) {
            self.unreachable.insert(host.to_owned());
        }
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim())
    }
}

/// The part of a URL between the scheme and the first slash.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// The digest of the file at `url` in what is published: alone, or in a list with names.
pub(super) fn published_digest(text: &str, url: &str) -> Result<String> {
    let file = url.rsplit('/').next().unwrap_or(url);
    let lines = || text.lines().map(str::split_whitespace).map(Iterator::collect::<Vec<_>>);
    let named = lines().find(|words| words.get(1).is_some_and(|name| name.trim_start_matches('*') == file));
    let unnamed = || lines().find(|words| words.len() == 1);
    let words = named.or_else(unnamed).with_context(|| format!("no digest of {file} is published"))?;
    let digest = words[0];
    let valid = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(valid, "`{digest}` is not a SHA-256 digest");
    Ok(digest.to_ascii_lowercase())
}

fn check(file: &Utf8Path, expected: &str) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("reading {file}"))?;
    let found = digest::digest(&digest::SHA256, &bytes);
    let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == expected, "its SHA-256 digest is {found}, the published one {expected}");
    Ok(())
}

/// Writes the file `member` of a gzipped tar archive to `to`.
fn unpack(archive: &Utf8Path, member: &str, to: &Utf8PathBuf) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("opening {archive}"))?;
    let mut archive = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.path()?.to_string_lossy().trim_start_matches("./") == member {
            entry.unpack(to).with_context(|| format!("unpacking {member}"))?;
            return Ok(());
        }
    }
    bail!("the archive has no {member}")
}

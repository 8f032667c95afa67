//! What tests need of the system: for a node a container runtime, network plugins and tools of the network; a browser.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;

/// A program or file, and the Debian package that has it.
pub struct Need {
    /// Where it may lie.
    paths: &'static [&'static str],
    package: &'static str,
}

impl Need {
    /// Creates a need of the program or file at one of `paths`.
    pub const fn new(paths: &'static [&'static str], package: &'static str) -> Need {
        Need { paths, package }
    }
}

/// What a node needs.
pub const NODE: [Need; 8] = [
    Need { paths: &["/usr/sbin/runc", "/usr/bin/runc"], package: "runc" },
    Need { paths: &["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"], package: "containernetworking-plugins" },
    Need { paths: &["/usr/sbin/nft"], package: "nftables" },
    Need { paths: &["/usr/sbin/iptables"], package: "iptables" },
    Need { paths: &["/usr/sbin/conntrack"], package: "conntrack" },
    Need { paths: &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"], package: "iproute2" },
    // By it calls of the kernel fail, for the tests of failures.
    Need { paths: &["/usr/bin/strace"], package: "strace" },
    Need { paths: &["/usr/bin/nsenter"], package: "util-linux" },
];

/// What tests of the page need.
pub const BROWSER: [Need; 1] = [Need {
    paths: &["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome-stable"],
    package: "chromium",
}];

/// Installs the missing packages of `needs` if that is `allowed`; otherwise the error lists what `user` needs.
pub fn provide(needs: &[Need], user: &str, allowed: bool) -> Result<()> {
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    let install = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !allowed || !rustix::process::geteuid().is_root() {
        bail!("{user} needs {}: as root, {install}", packages.join(", "));
    }
    eprintln!("{install}");
    let options = ["install", "--yes", "--quiet", "--quiet", "--no-install-recommends"];
    // Lists of packages may be missing or old; then the second try has new ones.
    if apt(&[&options[..], &packages].concat()).is_err() {
        apt(&["update", "--quiet", "--quiet"]).with_context(|| install.clone())?;
        apt(&[&options[..], &packages].concat()).with_context(|| install.clone())?;
    }
    let left = missing(needs);
    if left.is_empty() { Ok(()) } else { bail!("{install} left {} missing", left.join(", ")) }
}

/// Packages of `needs` of which something is missing.
fn missing(needs: &[Need]) -> Vec<&'static str> {
    let absent = needs.iter().filter(|need| !need.paths.iter().any(|path| Utf8Path::new(path).exists()));
    absent.map(|need| need.package).collect()
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let output = command.output().context("cannot start apt-get")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("apt-get: {}", said.lines().last().unwrap_or("failed without a message"))
}

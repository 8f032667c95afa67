//! The program `mdbook`: one version, from the PATH or built once into the cache folder.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use crate::{cache, process};

/// What `docs/book.toml` is written for.
const VERSION: &str = "0.5.4";

/// An `mdbook` of [`VERSION`]: that on the PATH, that in the cache folder, or one that cargo builds there now.
pub fn find() -> Result<Utf8PathBuf> {
    let on_path = Utf8PathBuf::from("mdbook");
    if is_version(&on_path) {
        return Ok(on_path);
    }
    let home = cache::folder()?.join(format!("mdbook-{VERSION}"));
    let program = home.join("bin/mdbook");
    if !is_version(&program) {
        install(&home)?;
        ensure!(is_version(&program), "{program} is not mdbook {VERSION}; remove {home} and try again");
    }
    Ok(program)
}

/// Builds it from the registry with cargo. Cargo locks `home` during the build, so that two runs build it once.
fn install(home: &Utf8Path) -> Result<()> {
    println!("building mdbook {VERSION} into {home}; this takes minutes, once");
    let arguments = ["install", "mdbook", "--version", VERSION, "--locked", "--root", home.as_str()];
    let mut command = process::cargo("/".into(), &arguments);
    // The site needs its search; it needs no server and watches no files.
    command.args(["--no-default-features", "--features", "search"]);
    ensure!(
        process::passes(command)?,
        "cargo could not build mdbook {VERSION} (see above). It needs the crates registry once: run this with a \
         network, or put an mdbook {VERSION} on the PATH"
    );
    Ok(())
}

fn is_version(program: &Utf8Path) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| is_ours(&String::from_utf8_lossy(&output.stdout)))
}

/// Whether `mdbook --version` printed our version, as in `mdbook v0.5.4`.
fn is_ours(printed: &str) -> bool {
    printed.split_whitespace().nth(1).is_some_and(|version| version.trim_start_matches('v') == VERSION)
}

/// Makes the book of `source` in `to`.
pub fn build(program: &Utf8Path, source: &Utf8Path, to: &Utf8Path) -> Result<()> {
    let status = Command::new(program)
        .args(["build", "--dest-dir", to.as_str(), source.as_str()])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("{program} does not start"))?;
    ensure!(status.success(), "mdbook could not build the site, see above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{VERSION, is_ours};

    #[test]
    fn only_the_version_that_the_book_is_written_for_will_do() {
        assert!(is_ours(&format!("mdbook v{VERSION}\n")));
        assert!(!is_ours("mdbook v0.4.52\n"));
        assert!(!is_ours(""));
    }
}

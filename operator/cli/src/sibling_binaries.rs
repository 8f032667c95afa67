//! Other binaries of the product: searched in `$SLUICE_BIN_DIR`, then in the folder of this one, then on PATH.

use std::path::{Path, PathBuf};

use anyhow::Context;
pub use sluice_wire::programs::BIN_DIR;
use sluice_wire::programs::{self, own_folder};

/// Packages of the binaries that `sluice` starts, all but those of [`GPU_PROGRAMS`].
const PACKAGES: &str = "-p sluice-cli -p sluice-agent -p sluice-kernels";
/// The binaries that [`PACKAGES`] do not contain, and the packages that do.
const GPU_PROGRAMS: [(&str, &str); 2] =
    [("sluice-gpu-probe", " -p sluice-probe"), ("sluice-gpu-bench", " -p sluice-gpu-bench")];

/// Returns the path of the binary `name`.
///
/// # Errors
/// The binary is in none of these places. The message has the command that builds it.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    programs::find(name).with_context(|| {
        let profile = profile_option(own_folder().as_deref());
        let more = GPU_PROGRAMS.iter().find(|(program, _)| *program == name).map_or("", |(_, more)| more);
        format!(
            "{name} is not in ${BIN_DIR}, not in the folder of this program and not on PATH; in a source \
             tree of Sluice, build it with: cargo build {profile}{PACKAGES}{more}"
        )
    })
}

/// Returns the option of cargo that builds into the folder of this program: binaries are found where it is.
fn profile_option(folder: Option<&Path>) -> &'static str {
    match folder.and_then(Path::file_name).and_then(|name| name.to_str()) {
        Some("debug") => "",
        Some("release") => "--release ",
        _ => "--profile dist ",
    }
}

/// Returns the shortest command by which a user runs this program again, quoted for a shell.
pub fn own_command() -> String {
    let typed = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let (program, folder) = (std::env::current_exe(), std::env::current_dir());
    shell_quote(command(&typed, &program.unwrap_or_else(|_| typed.clone()), &folder.unwrap_or_default()))
}

/// Quotes a word for a shell if one of its characters may have a special meaning.
fn shell_quote(word: String) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._/-".contains(character);
    match word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Builds the command. `typed` is the name by which this program was started, `program` its path, `folder` the current
/// folder.
fn command(typed: &Path, program: &Path, folder: &Path) -> String {
    // Found on PATH.
    if typed.components().count() == 1 && !typed.is_absolute() {
        return typed.display().to_string();
    }
    match program.strip_prefix(folder) {
        Ok(below) if below.components().count() == 1 => format!("./{}", below.display()),
        Ok(below) => below.display().to_string(),
        Err(_) => program.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_binary_is_built_into_the_folder_of_this_program() {
        for (folder, option) in [
            (Some("/tree/target/debug"), ""),
            (Some("/tree/target/release"), "--release "),
            (Some("/tree/target/dist"), "--profile dist "),
            (Some("/usr/bin"), "--profile dist "),
            (None, "--profile dist "),
        ] {
            assert_eq!(profile_option(folder.map(Path::new)), option, "{folder:?}");
        }
    }

    #[test]
    fn the_own_command_is_as_short_as_it_can_be() {
        for (typed, folder, expected) in [
            ("sluice", "/anywhere", "sluice"),
            ("/tree/target/debug/sluice", "/tree", "target/debug/sluice"),
            ("./sluice", "/tree/target/debug", "./sluice"),
            ("../target/debug/sluice", "/tree/docs", "/tree/target/debug/sluice"),
        ] {
            let shown = command(Path::new(typed), Path::new("/tree/target/debug/sluice"), Path::new(folder));
            assert_eq!(shown, expected, "{typed} in {folder}");
        }
    }

    #[test]
    fn a_path_with_characters_of_the_shell_is_quoted() {
        for (word, expected) in [
            ("./target/x86_64-linux.d/sluice", "./target/x86_64-linux.d/sluice"),
            ("/my tree/sluice", "'/my tree/sluice'"),
            ("/it's/$HOME/sluice", r"'/it'\''s/$HOME/sluice'"),
        ] {
            assert_eq!(shell_quote(word.into()), expected);
            let echoed =
                std::process::Command::new("sh").args(["-c", &format!("printf %s {expected}")]).output();
            assert_eq!(echoed.unwrap().stdout, word.as_bytes());
        }
    }
}

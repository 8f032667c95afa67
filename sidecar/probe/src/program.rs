//! What the programs of this crate and of `sluice-gpu-bench` do alike on the command line: output, exit status, names.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use sluice_memory::cuda;

use crate::Error;

/// A check has no answer.
pub const UNANSWERED: u8 = 1;
/// No driver is usable.
const NO_DRIVER: u8 = 3;
/// The device does not exist.
const NO_DEVICE: u8 = 4;

/// Prints an error of `program` in one line and returns its exit code.
pub fn exit_code(program: &str, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("{program}: {error:#}");
        let cuda = error.downcast_ref::<cuda::Error>().or_else(|| error.downcast_ref().and_then(Error::cuda));
        ExitCode::from(match cuda {
            Some(error) if error.is_no_driver() => NO_DRIVER,
            Some(error) if error.is_no_device() => NO_DEVICE,
            _ => UNANSWERED,
        })
    })
}

/// Writes `text` to stdout. A closed reader, such as `head`, is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Fails if no file can be made at one of `paths` because its folder is missing, so that a run fails before it measures.
pub fn check_folders<'a>(paths: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    for path in paths {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let is_missing = folder.is_some_and(|folder| !folder.is_dir());
        anyhow::ensure!(!is_missing && !path.is_dir(), "{}: no file can be made here", path.display());
    }
    Ok(())
}

/// Writes a report as text to stdout and as JSON to `json`; `-` is stdout, in place of the text. The text is written
/// first, so it is not lost if the file cannot be written.
pub fn publish(text: &str, json: &str, file: Option<&Path>) -> anyhow::Result<()> {
    let stdout = Path::new("-");
    print(if file == Some(stdout) { json } else { text })?;
    match file.filter(|path| *path != stdout) {
        Some(path) => std::fs::write(path, json).with_context(|| path.display().to_string()),
        None => Ok(()),
    }
}

/// Returns the command line with file names instead of whole paths, which would expose the machine's folders.
pub fn file_names(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let short = |word: &str| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
    let named = |word: String| match word.split_once('=') {
        Some((option, path)) if option.starts_with("--") => {
            format!("{option}={}", short(path).unwrap_or_else(|| path.into()))
        }
        _ => short(&word).unwrap_or(word),
    };
    arguments.map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_folder_is_refused_before_the_run() {
        let check = |path: &str| check_folders([Path::new(path)]);
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name).display().to_string();
        let accepted = ["report.json".to_owned(), "-".to_owned(), place("report.json")];
        assert!(accepted.iter().all(|path| check(path).is_ok()));
        for refused in [place("absent/report.json"), folder.path().display().to_string()] {
            let error = check(&refused).expect_err("no file can be made");
            assert!(error.to_string().starts_with(&refused), "{error}");
        }
    }

    #[test]
    fn report_contains_file_names_without_directories() {
        let given =
            ["/opt/bin/sluice-gpu-probe", "--only", "1,2", "--json", "out/a.json", "--json=/x/b.json"];
        let kept = ["sluice-gpu-probe", "--only", "1,2", "--json", "a.json", "--json=b.json"];
        assert_eq!(file_names(given.map(str::to_owned).into_iter()), kept);
    }
}

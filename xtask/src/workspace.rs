//! The rim: what the rules read, taken from disk, from `cargo metadata` and from git.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::cache::variable;

/// A file larger than this is data, not text that someone wrote, and is not read.
const LARGEST_TEXT_BYTES: u64 = 2 << 20;

/// The source tree as the rules see it. Paths are relative to the root, with `/`.
pub struct Workspace {
    /// Absolute path of the workspace root.
    pub root: Utf8PathBuf,
    /// Absolute path of cargo's target folder.
    pub target: Utf8PathBuf,
    /// The member crates.
    pub members: Vec<Member>,
    /// Every file of the tree that git does not ignore, sorted.
    pub files: Vec<String>,
    /// Those of `files` that hold text.
    pub texts: BTreeMap<String, String>,
    /// Abbreviated hash and subject of the newest commits. Empty in CI, where the history can be cut or squashed.
    pub subjects: Vec<(String, String)>,
}

/// A crate of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Name of the package.
    pub name: String,
    /// Its folder.
    pub folder: String,
    /// Its manifest.
    pub manifest: String,
    /// The file that each of its targets (library, binaries, tests, benches, examples, build script) starts from.
    pub roots: Vec<String>,
    /// Its direct normal and build dependencies, on any platform, optional ones included.
    pub dependencies: Vec<Dependency>,
}

/// A direct normal or build dependency, as declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependency {
    /// Name of the package; the crate may have another name.
    pub name: String,
    /// The name that the manifest gives it.
    pub key: String,
    /// Features that the declaration asks for.
    pub features: Vec<String>,
    /// Whether the declaration leaves the default features on.
    pub default_features: bool,
}

impl Workspace {
    /// Reads the workspace around the current folder.
    pub fn open() -> Result<Self> {
        let metadata = MetadataCommand::new().no_deps().exec().context("cargo metadata")?;
        let root = metadata.workspace_root.clone();
        let files = list_files(&root)?;
        let texts = read_texts(&root, &files)?;
        let members = members(&metadata)?;
        let subjects =
            if variable("CI").is_some() { vec![] } else { subjects_by_git(&root).unwrap_or_default() };
        Ok(Self { root, target: metadata.target_directory, members, files, texts, subjects })
    }

    /// Text of the file at `path`, empty where it holds none.
    pub fn text(&self, path: &str) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }
}

fn members(metadata: &Metadata) -> Result<Vec<Member>> {
    let root = &metadata.workspace_root;
    metadata.workspace_packages().into_iter().map(|package| member(root, package)).collect()
}

fn member(root: &Utf8Path, package: &Package) -> Result<Member> {
    let relative = |path: &Utf8Path| -> Result<String> {
        let path = path.strip_prefix(root).with_context(|| format!("{path} is outside the workspace"))?;
        Ok(path.as_str().to_owned())
    };
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    let roots = package.targets.iter().map(|target| relative(&target.src_path)).collect::<Result<_>>()?;
    let counted = package.dependencies.iter().filter(|edge| edge.kind != DependencyKind::Development);
    Ok(Member {
        name: package.name.to_string(),
        folder: relative(folder)?,
        manifest: relative(&package.manifest_path)?,
        roots,
        dependencies: counted.map(dependency).collect(),
    })
}

fn dependency(declared: &cargo_metadata::Dependency) -> Dependency {
    Dependency {
        name: declared.name.clone(),
        key: declared.rename.clone().unwrap_or_else(|| declared.name.clone()),
        features: declared.features.clone(),
        default_features: declared.uses_default_features,
    }
}

/// Tracked files and those that could be: a file that is not added yet is held to the rules too.
fn list_files(root: &Utf8Path) -> Result<Vec<String>> {
    let mut files = match list_by_git(root) {
        Ok(files) => files,
        Err(reason) => {
            println!("note: git cannot list the files ({reason:#}); reading the whole folder instead");
            let mut files = Vec::new();
            walk(root, "", &mut files)?;
            files
        }
    };
    files.retain(|file| root.join(file).symlink_metadata().is_ok_and(|metadata| metadata.is_file()));
    files.sort();
    files.dedup();
    Ok(files)
}

fn list_by_git(root: &Utf8Path) -> Result<Vec<String>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    ensure!(listing.status.success(), "{}", String::from_utf8_lossy(&listing.stderr).trim());
    let names = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// The newest commits. None without git or without a history.
fn subjects_by_git(root: &Utf8Path) -> Option<Vec<(String, String)>> {
    let log = Command::new("git")
        .args(["log", "-20", "--no-merges", "--format=%h%x09%s"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|log| log.status.success())?;
    let text = String::from_utf8(log.stdout).ok()?;
    Some(
        text.lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(h, s)| (h.to_owned(), s.to_owned()))
            .collect(),
    )
}

/// Every file below `root/folder`, build outputs and dot folders of tools left out.
fn walk(root: &Utf8Path, folder: &str, files: &mut Vec<String>) -> Result<()> {
    const SKIPPED: [&str; 3] = [".git", ".cache", "target"];
    for entry in root.join(folder).read_dir_utf8().with_context(|| format!("reading {folder}"))? {
        let entry = entry?;
        let path = if folder.is_empty() {
            entry.file_name().to_owned()
        } else {
            format!("{folder}/{}", entry.file_name())
        };
        if !entry.file_type()?.is_dir() {
            files.push(path);
        } else if !SKIPPED.contains(&entry.file_name()) {
            walk(root, &path, files)?;
        }
    }
    Ok(())
}

fn read_texts(root: &Utf8Path, files: &[String]) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for file in files {
        if let Some(text) =
            read_text(root.join(file).as_std_path()).with_context(|| format!("reading {file}"))?
        {
            texts.insert(file.clone(), text);
        }
    }
    Ok(texts)
}

/// Returns the file's text; `None` if it is binary or too large to be written manually.
fn read_text(path: &Path) -> Result<Option<String>> {
    if fs::metadata(path)?.len() > LARGEST_TEXT_BYTES {
        return Ok(None);
    }
    let text = String::from_utf8(fs::read(path)?).ok();
    Ok(text.filter(|text| !text.contains('\0')))
}

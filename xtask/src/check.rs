//! `cargo xtask check`: all rules over the whole tree, then rustfmt, cargo-deny, clippy and rustdoc.

use std::process::Command;

use anyhow::Result;

use crate::lint_violation::LintViolation;
use crate::rules::table::{NEVER_REACH_KUBE, TABLE};
use crate::rules::{
    circles, clauses, commits, edges, layout, library_docs, links, manifest, method_circles, orphans, pages,
    reach, tidy, words,
};
use crate::workspace::{Member, Workspace};
use crate::{deny, docs, generate, process};

/// Prints every finding; `true` if there is none. With `fix`, first writes what a tool can write; `quick` leaves
/// cargo-deny, clippy and rustdoc out.
pub fn check(workspace: &Workspace, fix: bool, quick: bool) -> Result<bool> {
    if fix {
        generate::write_all(&workspace.root)?;
        process::passes(process::cargo(&workspace.root, &["fmt", "--all"]))?;
    }
    let reread = if fix { Some(Workspace::open()?) } else { None };
    let workspace = reread.as_ref().unwrap_or(workspace);
    let rules = report(workspace, findings(workspace));
    let format = process::passes(process::cargo(&workspace.root, &["fmt", "--all", "--check"]))?;
    let dependencies = quick || deny::check(&workspace.root)?;
    let clippy = quick || process::passes(process::cargo(&workspace.root, &CLIPPY))?;
    let documentation = quick || process::passes(documentation(workspace))?;
    Ok(rules && format && dependencies && clippy && documentation)
}

/// `cargo doc` of all crates with their private items, where every link must lead somewhere.
fn documentation(workspace: &Workspace) -> Command {
    let mut command = process::cargo(&workspace.root, &DOC);
    // Private items are shown too, and help texts print addresses as they are.
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links -A rustdoc::bare_urls");
    command
}

const DOC: [&str; 5] = ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"];

const CLIPPY: [&str; 7] = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];

fn report(workspace: &Workspace, mut findings: Vec<LintViolation>) -> bool {
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    let (files, crates) = (workspace.files.len(), workspace.members.len());
    println!("check: {} findings in {files} files of {crates} crates", findings.len());
    findings.is_empty()
}

fn findings(workspace: &Workspace) -> Vec<LintViolation> {
    let mut findings = edges::check(&workspace.members, &TABLE, |member| workspace.text(&member.manifest));
    findings.extend(reaching_kube(workspace));
    findings.extend(workspace.members.iter().flat_map(|member| in_member(workspace, member)));
    let text = |file: &str| workspace.texts.get(file).map(String::as_str);
    findings.extend(orphans::check(&workspace.members, &workspace.files, text));
    findings.extend(circles::check(&workspace.members, text));
    findings.extend(method_circles::check(&workspace.members, &workspace.files, text));
    findings.extend(workspace.files.iter().filter_map(|file| layout::check(file)));
    findings.extend(workspace.texts.iter().flat_map(|(file, text)| in_text(workspace, file, text)));
    findings.extend(pages::unlisted(&workspace.files, workspace.text(pages::SUMMARY)));
    findings.extend(docs::stage::check(workspace));
    findings.extend(generate::check(workspace));
    let subjects = workspace.subjects.iter().map(|(hash, subject)| (hash.as_str(), subject.as_str()));
    findings.extend(commits::check(subjects));
    findings
}

/// Rules about the manifest and the code of one crate.
fn in_member(workspace: &Workspace, member: &Member) -> Vec<LintViolation> {
    let mut findings = manifest::check(&member.manifest, workspace.text(&member.manifest));
    let prefix = format!("{}/", member.folder);
    let sources =
        workspace.texts.iter().filter(|(file, _)| file.starts_with(&prefix) && file.ends_with(".rs"));
    findings.extend(sources.flat_map(|(file, text)| clauses::check(member, file, text)));
    let library = format!("{prefix}src/lib.rs");
    findings.extend(clauses::check_standalone(member, &library, workspace.text(&library)));
    findings.extend(workspace.texts.get(&library).and_then(|text| library_docs::check(&library, text)));
    findings
}

/// Rules about one text file.
fn in_text(workspace: &Workspace, file: &str, text: &str) -> Vec<LintViolation> {
    let mut findings = tidy::check(file, text);
    findings.extend(words::check(file, text));
    if file.ends_with(".md") {
        let page = |path: &str| workspace.texts.get(path).map(String::as_str);
        findings.extend(links::check(file, text, |path| exists(workspace, path), page));
        findings.extend(pages::check(file, text));
    }
    findings
}

fn exists(workspace: &Workspace, path: &str) -> bool {
    let folder = format!("{path}/");
    workspace.files.iter().any(|file| file == path || file.starts_with(&folder))
}

fn reaching_kube(workspace: &Workspace) -> Vec<LintViolation> {
    let graph = reach::without_dev_edges(reach::parse_lock(workspace.text("Cargo.lock")), &workspace.members);
    let pod = workspace.members.iter().filter(|member| NEVER_REACH_KUBE.contains(&member.name.as_str()));
    let suspects = pod.filter_map(|member| Some((member, reach::path_to_kube(&graph, &member.name)?)));
    let confirm = |(member, path): (&Member, Vec<String>)| {
        let tree = tree_of(workspace, &member.name).map_err(|error| format!("{error:#}"));
        reach::verdict(member, workspace.text(&member.manifest), &path, tree)
    };
    suspects.filter_map(confirm).collect()
}

/// The dependencies of one crate with the features that it asks for itself, for every platform.
fn tree_of(workspace: &Workspace, name: &str) -> Result<String> {
    let arguments = ["tree", "--locked", "--package", name, "--edges", "normal,build", "--target", "all"];
    let mut tree = process::cargo(&workspace.root, &arguments);
    tree.args(["--all-features", "--prefix", "depth", "--format", "{p}"]);
    process::output(tree)
}

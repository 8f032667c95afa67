//! `cargo xtask docs`: the pages as a site, made by mdBook, with every link followed in what was built.

mod html;
mod mdbook;
pub mod stage;
mod tables;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Builds the site into `target/site/html`; `true` if all of its links lead somewhere.
pub fn run(workspace: &Workspace) -> Result<bool> {
    let program = mdbook::MDBOOK.find()?;
    let site = workspace.target.join("site");
    let source = site.join("source");
    let book = site.join("html");
    stage::write(workspace, &source)?;
    mdbook::build(&program, &source, &book)?;
    html::rewrite(&book, tables::prepare).with_context(|| format!("preparing the tables of {book}"))?;
    let broken = html::broken_links(&book).with_context(|| format!("checking the links of {book}"))?;
    for link in &broken {
        println!("{link}");
    }
    println!("docs: {} broken links; the first page is {book}/index.html", broken.len());
    Ok(broken.is_empty())
}

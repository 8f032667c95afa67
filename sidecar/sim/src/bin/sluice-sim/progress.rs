//! How far a long run is, on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `total` steps on standard error; silent where that is no terminal.
pub fn bar(name: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:16} {bar:40} {pos}/{len} {msg} {elapsed}");
    let style = style.expect("the template is sound").progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_prefix(name.to_owned())
}

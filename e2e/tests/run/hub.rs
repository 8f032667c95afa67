//! The hub of the tests of `sluice run`.

use std::path::Path;

use sluice_e2e::hub::{Hub, read};

/// The one repository.
pub const REPO: &str = "org/tiny";

/// A hub with the files of `folder`.
pub fn start(folder: &Path) -> Hub {
    Hub::start("127.0.0.1", REPO, read(folder))
}

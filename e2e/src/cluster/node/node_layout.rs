//! What the components of a node need to know of it.

use std::path::PathBuf;

use super::node_dirs::NodeDirs;
use crate::cluster::binaries::Binaries;

/// The name and addresses of a node, its binaries, and the folder of its files.
pub struct NodeLayout {
    pub dirs: NodeDirs,
    pub binaries: Binaries,
    pub folder: PathBuf,
}

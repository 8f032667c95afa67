//! [`Tier`].

use clap::ValueEnum;

/// What is to be started with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// etcd and an API server, with kubectl and helm.
    Api,
    /// A whole node that runs pods.
    Node,
}

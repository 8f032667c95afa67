//! [`Sizes`].

/// How much there is.
#[derive(Clone, Debug, clap::Args)]
pub struct Sizes {
    /// Tenants, each of one slot.
    #[arg(long, default_value_t = 60)]
    pub tenants: usize,
    /// GPUs that they share.
    #[arg(long, default_value_t = 12)]
    pub gpus: usize,
    /// Pools, each with its tenants in a namespace of its own.
    #[arg(long, default_value_t = 3)]
    pub pools: usize,
    /// How long it is watched at rest, seconds.
    #[arg(long, default_value_t = 60)]
    pub rest_seconds: u64,
    /// Time between two readings of a GPU, seconds. Default: the operator's.
    #[arg(long)]
    pub poll_seconds: Option<u64>,
    /// Shortest time between two writes of a status whose conditions stay, seconds; the operator's own default.
    #[arg(long, default_value_t = 30)]
    pub status_seconds: u64,
    /// How long to wait until a restarted operator has observed everything, seconds.
    #[arg(long, default_value_t = 120)]
    pub patience_seconds: u64,
    /// The operator reads no sidecar: it must fail.
    #[arg(long)]
    pub no_polling: bool,
}

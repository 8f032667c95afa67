//! Defines the driver's command line and checks what the node can offer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sluice_types::Quantity;

use crate::DRIVER;
use crate::config::MIN_CHUNK_BYTES;
use crate::devices::{MAX_DEVICES, Offer};
use crate::store::NodeDirs;

/// Options of the driver.
#[derive(Clone, Debug, clap::Args)]
pub struct PluginArgs {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Folder of the kubelet (`--root-dir`), under the same path as on the node.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "FOLDER")]
    pub kubelet_folder: PathBuf,
    /// Folder where the container runtime looks for CDI specifications.
    #[arg(long, default_value = "/var/run/cdi", value_name = "FOLDER")]
    pub cdi_folder: PathBuf,
    /// Neighbourhoods that this node offers: the number of GPU claims that can share memory at the same time.
    #[arg(long, default_value_t = 64, value_name = "COUNT")]
    pub neighbourhoods: u32,
    /// GPUs made of host memory that this node offers.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub host_gpus: u32,
    /// Most device memory of each host-backed GPU. A claim says how much of it is used.
    #[arg(long, default_value = "1Gi", value_name = "BYTES")]
    pub host_memory: Quantity,
    /// Group that the neighbourhoods belong to; containers of a claim join it.
    #[arg(long, default_value_t = 65_500, value_name = "GID", value_parser = clap::value_parser!(u32).range(0..=2_147_483_647))]
    pub group: u32,
    /// Address of probes and metrics.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    pub http: SocketAddr,
    /// Time between two checks for recorded claims that no longer exist, seconds. The files of a claim that is missing
    /// in two checks are removed.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep_seconds: u64,
}

/// Why a node cannot make an offer.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The node would offer more devices than one ResourceSlice holds.
    #[error(
        "--neighbourhoods {neighbourhoods} and --host-gpus {host_gpus} are more than {MAX_DEVICES} devices together"
    )]
    TooMany {
        /// Number of neighbourhoods, as given.
        neighbourhoods: u32,
        /// Number of host-backed GPUs, as given.
        host_gpus: u32,
    },
    /// Both counts are 0.
    #[error("--neighbourhoods and --host-gpus are both 0: there is nothing to offer")]
    NoDevices,
    /// The memory does not hold one chunk.
    #[error("--host-memory {0} does not hold one chunk of 64Ki")]
    MemoryTooSmall(String),
}

impl PluginArgs {
    /// Returns the node's offer.
    ///
    /// # Errors
    /// The offer is empty, does not fit in one ResourceSlice, or has too little memory.
    pub fn offer(&self) -> Result<Offer, OfferError> {
        let (neighbourhoods, host_gpus) = (self.neighbourhoods, self.host_gpus);
        if neighbourhoods.saturating_add(host_gpus) > MAX_DEVICES {
            return Err(OfferError::TooMany { neighbourhoods, host_gpus });
        }
        if neighbourhoods == 0 && host_gpus == 0 {
            return Err(OfferError::NoDevices);
        }
        // The memory is rounded down to whole chunks of the smallest size. The API server formats such a quantity in
        // the same way.
        let bytes = self.host_memory.bytes() & !(MIN_CHUNK_BYTES - 1);
        if bytes == 0 {
            return Err(OfferError::MemoryTooSmall(self.host_memory.as_str().into()));
        }
        let host_memory = Quantity::from_bytes(bytes);
        Ok(Offer { node: self.node_name.clone(), neighbourhoods, host_gpus, host_memory })
    }

    /// Returns the folders where the driver keeps its files.
    pub fn node_dirs(&self) -> NodeDirs {
        NodeDirs { own: self.own_folder(), cdi: self.cdi_folder.clone(), group: self.group }
    }

    /// Returns the socket on which the kubelet prepares claims.
    pub fn dra_socket(&self) -> PathBuf {
        self.own_folder().join("dra.sock")
    }

    /// Returns the socket on which the kubelet discovers the driver.
    pub fn registration_socket(&self) -> PathBuf {
        self.kubelet_folder.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
    }

    /// Returns the time between two searches for deleted claims.
    pub fn sweep_interval(&self) -> Duration {
        Duration::from_secs(self.sweep_seconds)
    }

    fn own_folder(&self) -> PathBuf {
        self.kubelet_folder.join("plugins").join(DRIVER)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::PluginArgs;
    use crate::cli::Cli;

    fn args(rest: &[&str]) -> PluginArgs {
        Cli::parse_from(["sluice-devices", "--node-name", "one"].iter().chain(rest)).driver.unwrap()
    }

    #[test]
    fn memory_is_offered_in_whole_chunks_and_as_the_api_server_writes_it() {
        let offered =
            |text| args(&["--host-memory", text]).offer().map(|offer| offer.host_memory.as_str().to_owned());
        for (text, written) in [("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("1000k", "960Ki"), ("64Ki", "64Ki")]
        {
            assert_eq!(offered(text).unwrap(), written);
        }
        assert!(offered("65535").unwrap_err().to_string().contains("does not hold one chunk"));
    }

    #[test]
    fn an_offer_of_nothing_is_refused() {
        assert!(args(&["--neighbourhoods", "0"]).offer().is_err());
        assert!(args(&["--neighbourhoods", "0", "--host-gpus", "1"]).offer().is_ok());
    }

    #[test]
    fn node_without_trial_gpus_offers_only_neighbourhoods() {
        let offer = args(&[]).offer().unwrap();
        assert_eq!((offer.neighbourhoods, offer.host_gpus), (64, 0));
    }

    #[test]
    fn more_devices_than_a_slice_holds_are_refused() {
        assert!(args(&["--host-gpus", "64"]).offer().is_ok());
        let said = args(&["--host-gpus", "65"]).offer().unwrap_err().to_string();
        assert_eq!(said, "--neighbourhoods 64 and --host-gpus 65 are more than 128 devices together");
    }

    #[test]
    fn sockets_are_where_the_kubelet_looks() {
        let args = args(&["--kubelet-folder", "/k"]);
        assert_eq!(args.registration_socket().to_str(), Some("/k/plugins_registry/sluice.dev-reg.sock"));
        assert_eq!(args.dra_socket().to_str(), Some("/k/plugins/sluice.dev/dra.sock"));
    }
}

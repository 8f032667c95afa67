//! Defines the program's command line: the driver, or one of the chart's Jobs, which share the driver's image.

use std::sync::LazyLock;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::DRIVER;
use crate::args::PluginArgs;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (commit {}, driver {DRIVER})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT"))
});

/// Offer neighbourhoods and host-backed GPUs of this node to Kubernetes.
///
/// A DRA driver (Kubernetes 1.34 or newer) that the chart runs on each node. It needs a container runtime that reads
/// CDI specifications of version 0.7.0: containerd 2.0 or CRI-O 1.31.
#[derive(Debug, Parser)]
#[command(name = "sluice-devices", version = VERSION.as_str())]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// A Job of the chart instead.
    #[command(subcommand)]
    pub job: Option<Job>,
    /// The driver.
    #[command(flatten)]
    pub driver: Option<PluginArgs>,
}

/// A Job of the chart.
#[derive(Debug, Subcommand)]
pub enum Job {
    /// Before uninstalling: stop the operator and remove its finalizers from pools.
    Uninstall {
        /// Namespace of the operator and of the release.
        #[arg(long)]
        namespace: String,
        /// Name of the release, for the helm command in the error message.
        #[arg(long)]
        release: String,
        /// Revision of the release.
        #[arg(long)]
        revision: u32,
        /// Uninstall although there are tenants. Their pods continue to serve, and cannot be deleted until a driver
        /// runs again.
        #[arg(long)]
        keep_tenants: bool,
        /// Give up after this time, seconds.
        #[arg(long, default_value = "60", value_parser = seconds)]
        timeout_seconds: Duration,
    },
    /// For `helm test`: check whether an installation works.
    Check {
        /// Host and port of the operator's probes.
        #[arg(long)]
        operator: String,
        /// Also check that a node offers devices.
        #[arg(long)]
        devices: bool,
        /// Repeat the check for at most this time, seconds. 0 checks once.
        #[arg(long, default_value = "0", value_parser = seconds_or_none)]
        timeout_seconds: Duration,
    },
}

/// Parses a time of 0 to 120 seconds.
fn seconds_or_none(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0..=120) => Ok(Duration::from_secs(seconds)),
        _ => Err("expected 0 to 120".into()),
    }
}

/// Parses a time of 1 to 60 seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=60) => Ok(Duration::from_secs(seconds)),
        _ => Err("expected 1 to 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Job};

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_job_needs_no_node_and_the_driver_does() {
        let job = Cli::parse_from(["sluice-devices", "check", "--operator", "a:1"]);
        assert!(matches!(
            job.job,
            Some(Job::Check { devices: false, timeout_seconds: std::time::Duration::ZERO, .. })
        ));
        let driver = Cli::parse_from(["sluice-devices", "--node-name", "one"]);
        assert_eq!(driver.driver.unwrap().node_name, "one");
        let nothing = Cli::try_parse_from(["sluice-devices"]).unwrap_err().to_string();
        assert!(nothing.contains("--node-name"), "{nothing}");
    }
}

//! Notifies readers that a tenant serves.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedSender;

use super::output::print_line;

/// A tenant that serves. Sent again after its sidecar has restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Address of its API.
    pub serve_addr: SocketAddr,
}

/// Receiver of the events.
#[derive(Clone, Debug)]
pub enum ReadySink {
    /// Readers of standard output: a line `ready NAMESPACE/NAME URL`.
    Stdout,
    /// A channel of this program.
    Channel(UnboundedSender<ReadyEvent>),
}

impl ReadySink {
    /// Sends `ready`.
    pub fn send(&self, ready: ReadyEvent) {
        match self {
            ReadySink::Stdout => {
                print_line(format_args!("ready {} http://{}", ready.title, ready.serve_addr))
            }
            // A dropped receiver means that the run ends, with all tenants.
            ReadySink::Channel(sender) => drop(sender.send(ready)),
        }
    }
}

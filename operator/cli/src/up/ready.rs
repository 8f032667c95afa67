//! Who learns when a tenant serves.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedSender;

use super::output::print_line;

/// A tenant that serves. Sent again when its sidecar has been restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Address of its API.
    pub serve_addr: SocketAddr,
}

/// Who learns it.
#[derive(Clone, Debug)]
pub enum ReadySink {
    /// Readers of standard output: a line `ready NAMESPACE/NAME URL`.
    Stdout,
    /// The program itself.
    Channel(UnboundedSender<ReadyEvent>),
}

impl ReadySink {
    /// Sends `ready`.
    pub fn send(&self, ready: ReadyEvent) {
        match self {
            ReadySink::Stdout => {
                print_line(format_args!("ready {} http://{}", ready.title, ready.serve_addr))
            }
            // A receiver that is gone is at its end, and so are all tenants.
            ReadySink::Channel(sender) => drop(sender.send(ready)),
        }
    }
}

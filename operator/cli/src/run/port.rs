//! Binds the port of `sluice run`.

use std::io::ErrorKind;
use std::net::IpAddr;

use tokio::net::TcpListener;

use crate::Misconfigured;

/// Default port, if it is free.
const DEFAULT_PORT: u16 = 8000;
/// Number of further ports to try.
const PORT_ATTEMPTS: u16 = 99;

/// Listens at `asked` (0 = any free port), or at the first free port from 8000.
///
/// # Errors
/// The requested port is taken, no port is free, or `host` is no address of this machine.
pub async fn listen(host: IpAddr, asked: Option<u16>) -> anyhow::Result<TcpListener> {
    let (first, last) = asked.map_or((DEFAULT_PORT, DEFAULT_PORT + PORT_ATTEMPTS), |port| (port, port));
    if let Some(listener) = first_free(host, first, last).await? {
        return Ok(listener);
    }
    let words = match asked {
        Some(port) => format!("port {port} of {host} is taken; choose another with --port (0 = a free one)"),
        None => format!(
            "ports {first} to {last} of {host} are taken; choose another with --port (0 = a free one)"
        ),
    };
    Err(Misconfigured(words).into())
}

/// Listens at the first free port; `None` = all are taken.
async fn first_free(host: IpAddr, first: u16, last: u16) -> Result<Option<TcpListener>, Misconfigured> {
    for port in first..=last {
        match TcpListener::bind((host, port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(Misconfigured(format!("--host {host}, port {port}: {error}"))),
            Ok(listener) => return Ok(Some(listener)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requested_port_in_use_is_rejected() {
        let host = IpAddr::from([127, 0, 0, 1]);
        let first = listen(host, Some(0)).await.unwrap();
        let port = first.local_addr().unwrap().port();
        let refused = listen(host, Some(port)).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("port {port} of 127.0.0.1 is taken; choose another with --port (0 = a free one)")
        );
    }

    #[tokio::test]
    async fn taken_port_is_skipped() {
        let host = IpAddr::from([127, 0, 0, 1]);
        let taken = listen(host, Some(0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let free = first_free(host, port, u16::MAX).await.unwrap().expect("one of them is free");
        assert!(free.local_addr().unwrap().port() > port);
        assert!(first_free(host, port, port).await.unwrap().is_none());
    }
}

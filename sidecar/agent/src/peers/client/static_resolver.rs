//! Names of neighbours and where they are: never asked of a DNS server.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The names that were set.
#[derive(Clone, Debug, Default)]
pub struct StaticResolver(Arc<RwLock<HashMap<String, IpAddr>>>);

impl StaticResolver {
    /// From now on `host` is at `address`.
    pub fn set(&self, host: &str, address: IpAddr) {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(host.to_ascii_lowercase(), address);
    }
}

impl Resolve for StaticResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = names.get(&name.as_str().to_ascii_lowercase()).copied();
        Box::pin(async move {
            let address = found.ok_or("nobody has said where this neighbour is")?;
            // The port is that of the URL.
            Ok(Box::new(std::iter::once(SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

//! Resolves names of peers to known addresses without DNS.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Addresses by host name.
#[derive(Clone, Debug, Default)]
pub struct StaticResolver(Arc<RwLock<HashMap<String, IpAddr>>>);

impl StaticResolver {
    /// Sets the address of `host`.
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
            let address = found.ok_or("no directive names the address of this peer")?;
            // The URL sets the port.
            Ok(Box::new(std::iter::once(SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

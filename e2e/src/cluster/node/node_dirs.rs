//! Where a node is: its name, its number and its addresses.

use std::net::{IpAddr, Ipv4Addr};

/// One of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeDirs {
    /// That of the control plane.
    First,
    /// Beside it.
    Second,
}

impl NodeDirs {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            NodeDirs::First => "node-0",
            NodeDirs::Second => "node-1",
        }
    }

    /// What the addresses of its pods begin with, without the last dot.
    pub fn prefix(self) -> &'static str {
        match self {
            NodeDirs::First => "10.244.0",
            NodeDirs::Second => "10.244.1",
        }
    }

    /// Its own address, that of its bridge.
    pub fn address(self) -> IpAddr {
        let third = if self == NodeDirs::First { 0 } else { 1 };
        IpAddr::V4(Ipv4Addr::new(10, 244, third, 1))
    }

    /// Its end of the link between the two.
    pub fn end(self) -> &'static str {
        match self {
            NodeDirs::First => "10.99.0.1",
            NodeDirs::Second => "10.99.0.2",
        }
    }
}

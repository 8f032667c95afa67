//! Name, number and addresses of a node.

use std::net::{IpAddr, Ipv4Addr};

/// One of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeDirs {
    /// The node of the control plane.
    First,
    /// The other node.
    Second,
}

impl NodeDirs {
    pub fn name(self) -> &'static str {
        match self {
            NodeDirs::First => "node-0",
            NodeDirs::Second => "node-1",
        }
    }

    /// Prefix of the addresses of its pods, without the last dot.
    pub fn prefix(self) -> &'static str {
        match self {
            NodeDirs::First => "10.244.0",
            NodeDirs::Second => "10.244.1",
        }
    }

    /// The node's address, which is that of its bridge.
    pub fn address(self) -> IpAddr {
        let third = if self == NodeDirs::First { 0 } else { 1 };
        IpAddr::V4(Ipv4Addr::new(10, 244, third, 1))
    }

    /// Address of its end of the link between the nodes.
    pub fn end(self) -> &'static str {
        match self {
            NodeDirs::First => "10.99.0.1",
            NodeDirs::Second => "10.99.0.2",
        }
    }
}

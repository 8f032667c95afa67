//! The kubelet's messages, written as Rust types. They are few and stable, so the build needs no protocol buffer
//! compiler.
//!
//! Field numbers and service names are those of `k8s.io/kubelet/pkg/apis/dra/v1/api.proto` and
//! `k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto`, which Kubernetes 1.34 to 1.36 share. The field
//! `Device.share_id`, which neither side uses with this driver, is left out, as protocol buffers allow.

use std::collections::HashMap;

/// Service version that the kubelet looks for in [`PluginInfo::supported_versions`].
pub const DRA_VERSION: &str = "v1.DRAPlugin";
/// [`PluginInfo::type`] of a DRA driver.
pub const DRA_TYPE: &str = "DRAPlugin";

/// Full name of the service that prepares claims.
pub const DRA_SERVICE: &str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
/// Full name of the service that registers a plugin.
pub const REGISTRATION_SERVICE: &str = "pluginregistration.Registration";

/// A ResourceClaim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    /// Namespace of the claim.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// UID of the claim.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Name of the claim.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Requests to prepare or unprepare claims.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claims {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A device for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Requests of the claim that this device satisfies.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Pool of the device.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Name of the device.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// Names of the CDI devices that the container runtime looks up.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
}

/// Result of preparing one claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourceResponse {
    /// Devices of the claim.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Reason why the claim is not prepared; empty if it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Answers `NodePrepareResources`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourcesResponse {
    /// Results by the claim's UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodePrepareResourceResponse>,
}

/// Result of unpreparing one claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourceResponse {
    /// Reason why the claim is still prepared; empty if it is not.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// Answers `NodeUnprepareResources`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourcesResponse {
    /// Results by the claim's UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodeUnprepareResourceResponse>,
}

/// Requests the plugin's description.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InfoRequest {}

/// Description of the plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// Kind of plugin.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of the socket that prepares claims.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Services on that socket.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Result of the registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether the kubelet registered the plugin.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Reason why the kubelet did not register it.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Answers [`RegistrationStatus`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatusResponse {}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{
        Claim, Claims, Device, NodePrepareResourceResponse, NodePrepareResourcesResponse, PluginInfo,
        RegistrationStatus,
    };

    /// Encodes a string field of protocol buffers as the wire format defines it: key, length, bytes.
    fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[tag << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn messages_have_the_bytes_that_the_field_numbers_of_the_kubelet_give() {
        let claim = Claim { namespace: "ns".into(), uid: "u".into(), name: "c".into() };
        let bytes = [field(1, b"ns"), field(2, b"u"), field(3, b"c")].concat();
        assert_eq!(Claims { claims: vec![claim] }.encode_to_vec(), field(1, &bytes));

        let device = Device {
            request_names: vec!["gpu".into()],
            pool_name: "node".into(),
            device_name: "gpu-0".into(),
            cdi_device_ids: vec!["a".into(), "b".into()],
        };
        let inner = [field(1, b"gpu"), field(2, b"node"), field(3, b"gpu-0"), field(4, b"a"), field(4, b"b")];
        let prepared = NodePrepareResourceResponse { devices: vec![device], error: "no".into() };
        let value = [field(1, &inner.concat()), field(2, b"no")].concat();
        let entry = [field(1, b"u"), field(2, &value)].concat();
        let answer = NodePrepareResourcesResponse { claims: [("u".to_owned(), prepared)].into() };
        assert_eq!(answer.encode_to_vec(), field(1, &entry));
    }

    #[test]
    fn registration_has_the_bytes_that_the_field_numbers_of_the_kubelet_give() {
        let info = PluginInfo {
            r#type: "DRAPlugin".into(),
            name: "sluice.dev".into(),
            endpoint: "/s".into(),
            supported_versions: vec!["v1.DRAPlugin".into()],
        };
        let bytes =
            [field(1, b"DRAPlugin"), field(2, b"sluice.dev"), field(3, b"/s"), field(4, b"v1.DRAPlugin")];
        assert_eq!(info.encode_to_vec(), bytes.concat());
        let refused = [&[1 << 3, 1], field(2, b"why").as_slice()].concat();
        let status = RegistrationStatus { plugin_registered: true, error: "why".into() };
        assert_eq!(RegistrationStatus::decode(refused.as_slice()).unwrap(), status);
    }
}

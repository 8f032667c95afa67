//! Parses the configuration of a claim's host-backed GPU strictly, with error messages for the claim's author.

use serde::Deserialize;
use serde_json::Value;
use sluice_types::{API_VERSION, Quantity};

/// Kind of the configuration in a claim.
const KIND: &str = "HostGpuConfig";
/// Smallest chunk of device memory, bytes.
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Largest chunk of device memory, bytes. All powers of two from the smallest to the largest are allowed.
const MAX_CHUNK_BYTES: u64 = 2 << 20;

/// Configuration of a host-backed GPU in `spec.devices.config[].opaque.parameters` of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostGpuConfig {
    api_version: String,
    kind: String,
    memory: Quantity,
    chunk_bytes: Quantity,
    link_bytes_per_second: Option<Quantity>,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The configuration does not match the schema.
    #[error("the configuration of the host-backed GPU in the claim is not valid: {0}")]
    Malformed(String),
    /// The configuration is an object of another kind.
    #[error("the configuration in the claim must be {API_VERSION}, kind {KIND}, but is {found}")]
    Kind {
        /// Version and kind of the object.
        found: String,
    },
    /// The chunk size is not one of the allowed sizes.
    #[error("chunkBytes must be 64Ki, 128Ki, 256Ki, 512Ki, 1Mi or 2Mi, but is {0}")]
    InvalidChunk(String),
    /// The memory does not hold one chunk.
    #[error("memory {memory} does not hold one chunk of {chunk}")]
    MemoryBelowChunk {
        /// Configured memory.
        memory: String,
        /// Configured chunk size.
        chunk: String,
    },
    /// The device has less memory than configured.
    #[error(
        "memory {memory} exceeds the memory of device {device} ({capacity}); lower it, or raise \
         --host-memory of the driver"
    )]
    MemoryAboveCapacity {
        /// Configured memory.
        memory: String,
        /// Name of the device.
        device: String,
        /// Memory of the device.
        capacity: String,
    },
    /// A neighbourhood takes no configuration.
    #[error("device {0} is a neighbourhood, and a neighbourhood has no configuration")]
    Neighbourhood(String),
    /// A link with a bandwidth of 0 would never transfer data.
    #[error("linkBytesPerSecond is 0; omit it for no limit")]
    ZeroLinkBandwidth,
}

/// Parses `parameters` and checks them against the device, which has `capacity` of memory.
///
/// # Errors
/// The configuration is invalid; the message is meant for an event.
pub fn check(parameters: &Value, device: &str, capacity: &Quantity) -> Result<HostGpuConfig, ConfigError> {
    check_kind(parameters)?;
    let config: HostGpuConfig = serde_json::from_value(parameters.clone())
        .map_err(|error| ConfigError::Malformed(error.to_string()))?;
    let chunk = config.chunk_bytes.bytes();
    if !chunk.is_power_of_two() || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk) {
        return Err(ConfigError::InvalidChunk(config.chunk_bytes.as_str().into()));
    }
    if config.link_bytes_per_second.as_ref().is_some_and(|link| link.bytes() == 0) {
        return Err(ConfigError::ZeroLinkBandwidth);
    }
    check_memory(&config, device, capacity)?;
    Ok(config)
}

/// Checks version and kind before all fields, so that the error for a foreign object names its kind instead of its
/// first unknown field.
fn check_kind(parameters: &Value) -> Result<(), ConfigError> {
    let text = |key: &str| parameters.get(key).and_then(Value::as_str).unwrap_or("nothing");
    let (version, kind) = (text("apiVersion"), text("kind"));
    if (version, kind) == (API_VERSION, KIND) {
        return Ok(());
    }
    Err(ConfigError::Kind { found: format!("{version}, kind {kind}") })
}

fn check_memory(config: &HostGpuConfig, device: &str, capacity: &Quantity) -> Result<(), ConfigError> {
    let memory = config.memory.as_str().to_owned();
    if config.memory.bytes() < config.chunk_bytes.bytes() {
        return Err(ConfigError::MemoryBelowChunk { memory, chunk: config.chunk_bytes.as_str().into() });
    }
    if config.memory.bytes() > capacity.bytes() {
        let (device, capacity) = (device.into(), capacity.as_str().into());
        return Err(ConfigError::MemoryAboveCapacity { memory, device, capacity });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_types::Quantity;

    use super::check;

    fn error_text(change: impl FnOnce(&mut Value)) -> String {
        let mut config = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "HostGpuConfig", "memory": "96Mi", "chunkBytes": "64Ki",
        });
        change(&mut config);
        let checked = check(&config, "gpu-0", &Quantity::from_bytes(96 << 20));
        checked.map_or_else(|error| error.to_string(), |_| "good".into())
    }

    #[test]
    fn a_configuration_that_fits_the_device_is_good() {
        assert_eq!(error_text(|_| ()), "good");
        assert_eq!(error_text(|config| config["linkBytesPerSecond"] = json!("8Gi")), "good");
        assert_eq!(error_text(|config| config["chunkBytes"] = json!("2Mi")), "good");
    }

    #[test]
    fn error_message_names_the_field() {
        let cases = [
            ("memory", json!("97Mi"), "memory 97Mi exceeds the memory of device gpu-0 (96Mi)"),
            ("memory", json!("63Ki"), "memory 63Ki does not hold one chunk of 64Ki"),
            ("memory", json!("many"), "`many` is not a size"),
            ("chunkBytes", json!("96Ki"), "1Mi or 2Mi, but is 96Ki"),
            ("chunkBytes", json!("4Mi"), "1Mi or 2Mi, but is 4Mi"),
            ("linkBytesPerSecond", json!("0"), "linkBytesPerSecond is 0; omit it"),
            ("speed", json!(1), "unknown field `speed`"),
            ("kind", json!("GpuConfig"), "kind HostGpuConfig, but is sluice.dev/v1alpha1, kind GpuConfig"),
            ("apiVersion", json!("v2"), "kind HostGpuConfig, but is v2, kind HostGpuConfig"),
        ];
        for (field, value, words) in cases {
            let said = error_text(|config| config[field] = value.clone());
            assert!(said.contains(words), "{field}: {value}: {said}");
        }
        let missing = error_text(|config| drop(config.as_object_mut().unwrap().remove("memory")));
        assert!(missing.contains("missing field `memory`"), "{missing}");
    }
}

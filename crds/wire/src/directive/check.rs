//! What must hold within a directive. The bounds are those of the CRDs.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::{Directive, PeerInfo, Sharing, TenantRule};
use crate::message::Invalid;

/// Maximum number of peers.
pub const MAX_PEERS: usize = 64;
/// Longest name, namespace, uid, or name of a policy, bytes.
pub const MAX_NAME_LENGTH: usize = 63;
/// Longest UUID of a GPU, bytes: that of a string attribute of a device.
pub const MAX_UUID_LENGTH: usize = 64;

const PERCENT: RangeInclusive<u32> = 0..=100;
const IDLE_SECONDS: RangeInclusive<u32> = 1..=86_400;
const HIBERNATE_SECONDS: RangeInclusive<u32> = 2..=604_800;
const QUANTUM_MS: RangeInclusive<u32> = 1..=10_000;
const RESIDENCE_MS: RangeInclusive<u32> = 0..=600_000;
const REVOKE_MS: RangeInclusive<u32> = 1..=60_000;

impl Directive {
    /// Checks everything that can be checked without knowing the tenant.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn check(&self) -> Result<(), Invalid> {
        check_name("policy", &self.policy)?;
        self.tenant.check()?;
        self.check_uuid()?;
        self.sharing.check()?;
        check_range("min_residence_ms", self.min_residence_ms, RESIDENCE_MS)?;
        check_range("revoke_bound_ms", self.revoke_bound_ms, REVOKE_MS)?;
        self.check_peers()?;
        self.check_fallback()
    }

    fn check_uuid(&self) -> Result<(), Invalid> {
        let length = self.gpu_uuid.as_ref().map_or(0, String::len);
        if length <= MAX_UUID_LENGTH {
            return Ok(());
        }
        Err(Invalid::new("gpu_uuid", format!("{length} bytes, but at most {MAX_UUID_LENGTH} are allowed")))
    }

    fn check_peers(&self) -> Result<(), Invalid> {
        let count = self.peers.len();
        if count > MAX_PEERS {
            return Err(Invalid::new(
                "peers",
                format!("{count} entries, but at most {MAX_PEERS} are allowed"),
            ));
        }
        let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
        for (index, peer) in self.peers.iter().enumerate() {
            let at = format!("peers[{index}]");
            peer.check(&at)?;
            if !names.insert(&peer.name) {
                return Err(Invalid::new(format!("{at}.name"), format!("`{}` occurs twice", peer.name)));
            }
            if !addresses.insert(peer.admin) {
                return Err(Invalid::new(format!("{at}.admin"), format!("{} occurs twice", peer.admin)));
            }
        }
        Ok(())
    }

    fn check_fallback(&self) -> Result<(), Invalid> {
        let mut left: HashSet<_> = self.peers.iter().map(|peer| &peer.name).collect();
        for (index, name) in self.fallback_order.iter().enumerate() {
            if !left.remove(name) {
                let problem = format!("`{name}` is not in `peers`, or occurs twice");
                return Err(Invalid::new(format!("fallback_order[{index}]"), problem));
            }
        }
        Ok(())
    }
}

impl TenantRule {
    fn check(&self) -> Result<(), Invalid> {
        check_range("tenant.max_remapped_percent", self.max_remapped_percent, PERCENT)?;
        check_range("tenant.idle_after_seconds", self.idle_after_seconds, IDLE_SECONDS)?;
        let Some(seconds) = self.hibernate_after_seconds else { return Ok(()) };
        check_range("tenant.hibernate_after_seconds", seconds, HIBERNATE_SECONDS)?;
        if seconds > self.idle_after_seconds {
            return Ok(());
        }
        let problem =
            format!("{seconds} must be larger than idle_after_seconds, {}", self.idle_after_seconds);
        Err(Invalid::new("tenant.hibernate_after_seconds", problem))
    }
}

impl Sharing {
    fn check(&self) -> Result<(), Invalid> {
        let Sharing::Temporal { min_quantum_ms, max_quantum_ms, .. } = *self else { return Ok(()) };
        check_range("sharing.Temporal.max_quantum_ms", max_quantum_ms, QUANTUM_MS)?;
        check_range("sharing.Temporal.min_quantum_ms", min_quantum_ms, 1..=max_quantum_ms)
    }
}

impl PeerInfo {
    fn check(&self, at: &str) -> Result<(), Invalid> {
        check_name(&format!("{at}.namespace"), &self.namespace)?;
        check_name(&format!("{at}.name"), &self.name)?;
        for (field, uid) in [("pod_uid", &self.pod_uid), ("claim_uid", &self.claim_uid)] {
            uid.as_deref().map_or(Ok(()), |uid| check_name(&format!("{at}.{field}"), uid))?;
        }
        if self.admin.port() == 0 || self.admin.ip().is_unspecified() {
            return Err(Invalid::new(
                format!("{at}.admin"),
                format!("{} is not an address to connect to", self.admin),
            ));
        }
        if self.floor_bytes > self.share_bytes {
            let problem =
                format!("a share of {} bytes is below the floor, {}", self.share_bytes, self.floor_bytes);
            return Err(Invalid::new(format!("{at}.share_bytes"), problem));
        }
        Ok(())
    }
}

/// Names end in host names, paths and logs: letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
pub(crate) fn check_name(field: &str, value: &str) -> Result<(), Invalid> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins = value.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && value.len() <= MAX_NAME_LENGTH && value.bytes().all(plain) {
        return Ok(());
    }
    let problem = format!(
        "{value:.80?} is not a valid name: use 1 to {MAX_NAME_LENGTH} letters, digits, `-`, `_` or `.`, and \
         begin with a letter or digit"
    );
    Err(Invalid::new(field, problem))
}

fn check_range(field: &str, value: u32, bounds: RangeInclusive<u32>) -> Result<(), Invalid> {
    if bounds.contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value} must be {} to {}", bounds.start(), bounds.end())))
}

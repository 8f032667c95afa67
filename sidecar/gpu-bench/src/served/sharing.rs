//! [`SharedGpu`]: two tenants of one device, each with half of its memory.

use std::path::Path;
use std::{fs, io};

use sluice_wire::config::{LedgerConfig, SidecarConfig};
use sluice_wire::directive::{self, Directive, PeerInfo, Sharing, SliceOrder, TenantRule, VictimRule};
use sluice_wire::secrets::{TOKEN_BYTES, random_hex, write_new};

use super::calibration::Calibration;
use super::config::{MAX_REMAPPED_PERCENT, NAMESPACE, Policy};
use super::error::ServedError;
use super::sidecar::Sidecar;

/// Time slices, as pools have them by default.
const SHARING: Sharing =
    Sharing::Temporal { order: SliceOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 };
/// Names of the tenants.
const NAMES: [&str; 2] = ["first", "second"];

/// Two tenants of one device.
#[derive(Debug)]
pub struct SharedGpu {
    /// The tenants.
    pub tenants: [Sidecar; 2],
}

impl SharedGpu {
    /// Starts two tenants whose KV holds `requests` requests each, and waits until both serve. Names differ.
    pub fn start(
        calibration: &Calibration,
        name: &str,
        policy: Policy,
        requests: u32,
    ) -> Result<SharedGpu, ServedError> {
        let folder = calibration.folder().join(name);
        fs::create_dir(&folder).map_err(ServedError::file(&folder))?;
        let share_bytes = calibration.memory_for(requests);
        let tokens = folder.join("tokens");
        write_tokens(&tokens).map_err(ServedError::file(&tokens))?;
        let start = |tenant: &str| {
            let own = folder.join(tenant);
            let config = calibration.config(policy, 2 * share_bytes).of(tenant, &own)?;
            let ledger = LedgerConfig {
                folder: folder.clone(),
                claim: format!("bench-{name}-{}", std::process::id()),
                share_bytes,
                priority: 0,
                sharing: SHARING,
            };
            let mut config = SidecarConfig { gpu_ledger: Some(ledger), ..config };
            config.listen.peer_token_file = Some(tokens.clone());
            Sidecar::start(&own, &config)
        };
        let mut tenants = [start(NAMES[0])?, start(NAMES[1])?];
        // The floors are known once the engines have attached. The first directive has no better one than the share.
        direct(&tenants, policy, share_bytes, [share_bytes; 2], 1)?;
        for tenant in &mut tenants {
            tenant.wait_until_ready()?;
        }
        let mut floors = [0; 2];
        for (tenant, floor) in tenants.iter_mut().zip(&mut floors) {
            *floor = tenant.wait_for("report its floor", |state| {
                state.peers.as_ref().map(|peers| peers.floor_bytes).filter(|bytes| *bytes > 0)
            })?;
        }
        direct(&tenants, policy, share_bytes, floors, 2)?;
        Ok(SharedGpu { tenants })
    }
}

/// Sends both tenants what they need to know of each other.
fn direct(
    tenants: &[Sidecar; 2],
    policy: Policy,
    share_bytes: u64,
    floors: [u64; 2],
    sequence: u64,
) -> Result<(), ServedError> {
    for (member, tenant) in tenants.iter().enumerate() {
        let other = 1 - member;
        let peer = PeerInfo {
            namespace: NAMESPACE.into(),
            name: NAMES[other].into(),
            pod_uid: None,
            claim_uid: None,
            admin: tenants[other].admin(),
            priority: 0,
            share_bytes,
            floor_bytes: floors[other].min(share_bytes),
        };
        tenant.direct(&Directive {
            version: directive::VERSION,
            epoch: 1,
            sequence,
            policy: policy.name().into(),
            tenant: TenantRule {
                priority: 0,
                max_remapped_percent: MAX_REMAPPED_PERCENT,
                share_bytes: Some(share_bytes),
                hibernate_after_seconds: None,
                idle_after_seconds: 30,
            },
            gpu_uuid: None,
            sharing: SHARING,
            victim: VictimRule::MostRecentlyUsed,
            min_residence_ms: 500,
            revoke_bound_ms: 200,
            fallback_order: vec![peer.name.clone()],
            peers: vec![peer],
        })?;
    }
    Ok(())
}

/// Writes a secret for each tenant into a file that this user alone can read.
fn write_tokens(path: &Path) -> io::Result<()> {
    let line = |name| Ok(format!("{} {NAMESPACE}/{name}\n", random_hex::<TOKEN_BYTES>()?));
    let lines: String = NAMES.iter().map(line).collect::<io::Result<_>>()?;
    write_new(path, &lines)
}

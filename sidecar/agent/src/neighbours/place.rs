//! A tenant's record in the ledger file of its GPU.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_memory::neighbourhood::{
    Identity, JoinError, LedgerFaults, Neighbourhood, OpenError, Seat, TurnOrder as LedgerOrder, this_boot,
};
use sluice_policy::neighbours::Peer;
use sluice_policy::neighbours::turn::Quantum;
use sluice_scheduler::Sharing;
use sluice_wire::config::{NeighbourhoodConfig, SidecarConfig};
use sluice_wire::directive::{Sharing as SharingRule, TurnOrder};

use super::desk::Desk;
use super::ns;

/// What passes by itself is waited for this long; a predecessor that lives for as long as it does.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked for.
const JOIN_AGAIN: Duration = Duration::from_millis(20);
/// Hand-overs after which who waits goes before higher priorities, for each participant: one full round.
const AGING_TURNS: u64 = 64;

/// Why a tenant has no place on its GPU.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The ledger.
    #[error("{}: {source}", folder.display())]
    Open {
        /// The neighbourhood's folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: OpenError,
    },
    /// The record.
    #[error("{}: {source}", folder.display())]
    Join {
        /// The neighbourhood's folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: JoinError,
    },
    /// The machine does not say which boot this is.
    #[error("the id of this boot: {0}")]
    Boot(#[from] std::io::Error),
    /// It was told to end while it waited.
    #[error("stopped")]
    Stopped,
}

/// A tenant's place among its neighbours.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its record.
    pub seat: Arc<Seat>,
    /// What the configuration says of it.
    pub config: NeighbourhoodConfig,
}

/// `namespace/name`: how the ledger names a tenant.
pub fn full_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl PlaceError {
    /// A ledger that is made anew, a guard that is held.
    fn passes(&self) -> bool {
        match self {
            PlaceError::Open { source, .. } => matches!(source, OpenError::Busy { .. }),
            PlaceError::Join { source, .. } => matches!(source, JoinError::Replaced | JoinError::Busy(_)),
            PlaceError::Boot(_) | PlaceError::Stopped => false,
        }
    }

    /// The tenant's last pod still finishes its streams, and takes as long as it is given: who ended over it would only be
    /// started again, and later each time.
    fn drains(&self) -> bool {
        matches!(self, PlaceError::Join { source: JoinError::NameTaken { .. }, .. })
    }
}

impl Place {
    /// Takes the tenant's record. A predecessor that still lives is waited for. `faults` are a test's.
    ///
    /// # Errors
    /// The ledger is unfit or full, the shares exceed the GPU, or `closed` was raised.
    pub fn take(
        config: &SidecarConfig,
        place: &NeighbourhoodConfig,
        faults: &LedgerFaults,
        closed: &AtomicBool,
    ) -> Result<Place, PlaceError> {
        let identity = Identity {
            boot_id: this_boot()?,
            claim_id: place.claim.clone(),
            capacity_bytes: config.gpu.memory_bytes,
            chunk_bytes: config.gpu.chunk_bytes,
        };
        let name = full_name(&config.namespace, &config.name);
        let (mut begun, mut told) = (Instant::now(), false);
        loop {
            match join(place, &identity, &name, faults) {
                Ok(seat) => return Ok(Place { seat: Arc::new(seat), config: place.clone() }),
                Err(error) if error.drains() => {
                    begun = Instant::now();
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(why = %error, "waiting for the end of the tenant's last pod");
                    }
                }
                Err(error) if error.passes() && begun.elapsed() < JOIN_PATIENCE => {}
                Err(error) => return Err(error),
            }
            if closed.load(Ordering::Relaxed) {
                return Err(PlaceError::Stopped);
            }
            std::thread::sleep(JOIN_AGAIN);
        }
    }

    /// Where the tenant's neighbours are answered.
    pub fn desk(&self, config: &SidecarConfig) -> Desk {
        Desk::new(self.seat.clone(), &config.namespace, &config.name, config.gpu.chunk_bytes)
    }

    /// Who this is.
    pub fn me(&self) -> Peer {
        self.seat.peer()
    }

    /// How the scheduler shares time here.
    pub fn sharing(&self) -> Sharing {
        match self.config.sharing {
            SharingRule::Isolated => Sharing::Exclusive,
            SharingRule::Spatial => Sharing::Spatial,
            SharingRule::Temporal { min_quantum_ms, max_quantum_ms, .. } => Sharing::Temporal(Quantum::new(
                ns(min_quantum_ms.min(max_quantum_ms)),
                ns(max_quantum_ms.max(1)),
            )),
        }
    }

    /// Whether memory changes hands here.
    pub fn trades(&self) -> bool {
        self.config.sharing != SharingRule::Isolated
    }

    /// The order of turns, if turns are taken.
    pub fn turns(&self) -> Option<LedgerOrder> {
        match self.config.sharing {
            SharingRule::Temporal { order: TurnOrder::RoundRobin, .. } => Some(LedgerOrder::RoundRobin),
            SharingRule::Temporal { order: TurnOrder::Priority, .. } => {
                Some(LedgerOrder::Priority { aging_turns: AGING_TURNS })
            }
            SharingRule::Spatial | SharingRule::Isolated => None,
        }
    }
}

/// Tries once. The floor is known when the first engine has said what activations cost.
fn join(
    place: &NeighbourhoodConfig,
    identity: &Identity,
    name: &str,
    faults: &LedgerFaults,
) -> Result<Seat, PlaceError> {
    let folder = || place.folder.clone();
    let ledger = Neighbourhood::open_with(&place.folder, identity, faults.clone());
    let ledger = ledger.map_err(|source| PlaceError::Open { folder: folder(), source })?;
    let seat = ledger.join(name, 0, place.share_bytes);
    seat.map_err(|source| PlaceError::Join { folder: folder(), source })
}

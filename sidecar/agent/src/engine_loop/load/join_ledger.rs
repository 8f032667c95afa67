//! Lets a tenant join its GPU: its record in the ledger, its first engine, and its floor.
//!
//! On a fully assigned GPU the tenant takes the free chunks and waits for the rest, which peers release as their
//! directives change. No chunk is created before the floor is granted.

use sluice_common::back_off::BackOff;
use sluice_link::slab::SlabLayout;
use sluice_policy::geometry::Geometry;
use sluice_policy::memory_manager::{self, MemoryManager};
use sluice_policy::params::Params;
use sluice_wire::state::SharingState;

use super::error::LoadError;
use super::loaded_tenant::LoadedTenant;
use super::sizes::{capacity_chunks, geometry, params};
use super::startup_inbox::StartupInbox;
use crate::engine_loop::share_control::{RETRY_MAX, RETRY_MIN, ShareGrant, ShareSource};
use crate::peers::membership::{JoinBackoff, LedgerMembership};

/// Join in progress.
pub(super) struct LedgerJoin<'a> {
    pub loaded: &'a LoadedTenant,
    pub source: &'a mut ShareSource,
    pub startup_inbox: &'a mut StartupInbox,
    pub status: JoinStatus,
}

/// Conditions already logged for the current terms.
#[derive(Debug, Default)]
pub(super) struct JoinStatus {
    is_waiting: bool,
    is_unsatisfiable: bool,
}

impl LedgerJoin<'_> {
    /// Joins the ledger if the GPU is shared.
    ///
    /// # Errors
    /// The tenant cannot join, or was stopped.
    pub fn join(&mut self) -> Result<Option<LedgerMembership>, LoadError> {
        let loaded = self.loaded;
        let (config, faults) = (&loaded.config, &loaded.faults.ledger);
        let Some(wanted) = &config.gpu_ledger else { return Ok(None) };
        let mut patience = JoinBackoff::new();
        loop {
            self.source.refresh();
            let share_bytes = self.bytes(self.source.target().share_chunks.min(capacity_chunks(config)));
            match LedgerMembership::join_ledger(config, wanted, faults, share_bytes) {
                Ok(place) => return Ok(Some(place)),
                Err(error) => {
                    let again = patience.next_retry(error)?;
                    let waits_for = patience.waiting_for().map(str::to_owned);
                    let wanted_share_bytes = share_bytes;
                    self.startup_inbox.set_peer_state(SharingState {
                        wanted_share_bytes,
                        waits_for,
                        ..Default::default()
                    });
                    self.startup_inbox.wait(again)?;
                }
            }
        }
    }

    /// Waits for the first engine, which reports the activation costs, and for the floor that follows from them. The
    /// memory manager starts with the granted chunks.
    ///
    /// # Errors
    /// The tenant cannot be served, or was stopped.
    pub fn manager(
        &mut self,
        layout: &SlabLayout,
        place: Option<&LedgerMembership>,
    ) -> Result<MemoryManager, LoadError> {
        let chunk_bytes = self.loaded.config.gpu.chunk_bytes;
        let mut grant = place.map(|place| ShareGrant::new(Some(place.ledger.clone()), 0, chunk_bytes));
        let mut pause = BackOff::new(RETRY_MIN, RETRY_MAX);
        loop {
            let before = grant.as_ref().map(ShareGrant::chunks);
            let changed = self.source.refresh();
            if changed {
                self.status = JoinStatus::default();
            }
            let manager = self.try_build(layout, place.zip(grant.as_mut()));
            if let Some(manager) = manager.inspect_err(|_| self.startup_inbox.shutdown_engine())? {
                return Ok(manager);
            }
            let more = grant.as_ref().map(ShareGrant::chunks) > before;
            if more || changed {
                pause.reset();
            } else {
                pause.double();
            }
            self.startup_inbox.wait(pause.delay()).inspect_err(|_| self.startup_inbox.shutdown_engine())?;
        }
    }

    /// Builds the memory manager. `None` if the engine or the floor is still missing.
    fn try_build(
        &mut self,
        layout: &SlabLayout,
        place: Option<(&LedgerMembership, &mut ShareGrant)>,
    ) -> Result<Option<MemoryManager>, LoadError> {
        if let Some(trouble) = place.as_ref().and_then(|(place, _)| place.ledger.damage()) {
            // A damaged ledger grants nothing any more. The next start creates a new one.
            return Err(LoadError::Ledger(trouble));
        }
        let share = self.source.target().share_chunks;
        let Some(activation) = self.startup_inbox.engine().map(|engine| engine.activation) else {
            if let Some((place, grant)) = place {
                // The assigned share may have fallen since.
                grant.shrink(share);
                self.startup_inbox.set_peer_state(self.granted_state(place, grant.chunks(), share));
            }
            return Ok(None);
        };
        let geometry = geometry(self.loaded, layout, activation);
        let (params, floor) = self.feasible_params(&geometry)?;
        let want = share.max(floor).min(geometry.capacity_chunks);
        let Some((place, grant)) = place else {
            return manager(Params { share_chunks: want, ..params }, geometry);
        };
        grant.grow(want);
        grant.shrink(want);
        let granted = grant.chunks();
        if granted < floor {
            let waiting = self.waiting_state(place, granted, want, floor);
            if !std::mem::replace(&mut self.status.is_waiting, true) {
                // Peers never release more than the share assigned to this tenant. A larger floor needs another
                // assignment.
                let dealt = self.bytes(share);
                tracing::warn!(
                    dealt,
                    floor = waiting.floor_bytes,
                    granted = waiting.share_bytes,
                    "waiting until peers release memory for the floor"
                );
            }
            self.startup_inbox.set_peer_state(waiting);
            return Ok(None);
        }
        manager(Params { share_chunks: granted, ..params }, geometry)
    }

    /// Returns the parameters and their floor: for the terms of the directive, or for those of the configuration if the
    /// directive's do not fit on the whole GPU.
    fn feasible_params(&mut self, geometry: &Geometry) -> Result<(Params, u32), LoadError> {
        let terms = self.source.target();
        let requested = params(self.loaded, terms);
        let refused = match memory_manager::floor(&requested, geometry) {
            Ok(floor) => return Ok((requested, floor)),
            Err(refused) => refused,
        };
        let configured = params(self.loaded, self.source.configured());
        let floor = memory_manager::floor(&configured, geometry).map_err(LoadError::Unsatisfiable)?;
        if !std::mem::replace(&mut self.status.is_unsatisfiable, true) {
            tracing::error!(?terms, %refused, "the directive does not fit the GPU: using the share, cap and \
                                               policy of the configuration");
        }
        Ok((configured, floor))
    }

    fn waiting_state(&self, place: &LedgerMembership, granted: u32, want: u32, floor: u32) -> SharingState {
        let (missing, floor_bytes) = (self.bytes(floor - granted), self.bytes(floor));
        let waits_for = format!(
            "{missing} of the {floor_bytes} bytes of its floor, which are in the shares of its peers"
        );
        SharingState { floor_bytes, waits_for: Some(waits_for), ..self.granted_state(place, granted, want) }
    }

    fn granted_state(&self, place: &LedgerMembership, granted: u32, want: u32) -> SharingState {
        let share_bytes = self.bytes(granted);
        SharingState {
            instance: place.ledger.instance(),
            share_bytes,
            budget_bytes: share_bytes,
            wanted_share_bytes: self.bytes(want),
            ..SharingState::default()
        }
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.loaded.config.gpu.chunk_bytes
    }
}

fn manager(params: Params, geometry: Geometry) -> Result<Option<MemoryManager>, LoadError> {
    MemoryManager::new(params, geometry).map(Some).map_err(LoadError::Unsatisfiable)
}

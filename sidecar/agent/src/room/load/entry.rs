//! A tenant's way in: its record in the ledger, its first engine, and its floor among shares that neighbours still have.
//!
//! Whoever comes to a GPU that is dealt out takes what is left and asks for the rest; neighbours leave it as they are told. No
//! chunk is created before the floor is granted.

use sluice_link::slab::SlabLayout;
use sluice_policy::geometry::Geometry;
use sluice_policy::memory_manager::{self, MemoryManager};
use sluice_policy::params::Params;
use sluice_wire::state::Neighbourhood;

use super::anteroom::Anteroom;
use super::sizes::{capacity_chunks, geometry, params};
use super::{LoadError, Loaded};
use crate::neighbours::place::{Patience, Place};
use crate::room::bounds::{Grant, LONGEST, Rule, SHORTEST};

/// Who comes in.
pub(super) struct Entry<'a> {
    pub loaded: &'a Loaded,
    pub rule: &'a mut Rule,
    pub anteroom: &'a mut Anteroom,
    pub told: Told,
}

/// What was said already of the terms of now.
#[derive(Debug, Default)]
pub(super) struct Told {
    waits: bool,
    impossible: bool,
}

impl Entry<'_> {
    /// Takes the tenant's record on the GPU that it shares, if it shares one.
    ///
    /// # Errors
    /// It cannot be had, or the tenant was told to stop.
    pub fn place(&mut self) -> Result<Option<Place>, LoadError> {
        let loaded = self.loaded;
        let (config, faults) = (&loaded.config, &loaded.faults.ledger);
        let Some(wanted) = &config.neighbourhood else { return Ok(None) };
        let mut patience = Patience::new();
        loop {
            self.rule.look();
            let share_bytes = self.bytes(self.rule.terms().share_chunks.min(capacity_chunks(config)));
            match Place::take(config, wanted, faults, share_bytes) {
                Ok(place) => return Ok(Some(place)),
                Err(error) => {
                    let again = patience.after(error)?;
                    let waits_for = patience.awaits().map(str::to_owned);
                    let wanted_share_bytes = share_bytes;
                    self.anteroom.say(Neighbourhood { wanted_share_bytes, waits_for, ..Default::default() });
                    self.anteroom.wait(again)?;
                }
            }
        }
    }

    /// Waits for the first engine, which alone can say what activations cost, and for the floor that follows from it. The memory manager
    /// begins with what is granted.
    ///
    /// # Errors
    /// The tenant cannot be served, or was told to stop.
    pub fn manager(
        &mut self,
        layout: &SlabLayout,
        place: Option<&Place>,
    ) -> Result<MemoryManager, LoadError> {
        let chunk_bytes = self.loaded.config.gpu.chunk_bytes;
        let mut grant = place.map(|place| Grant::new(Some(place.seat.clone()), 0, chunk_bytes));
        let mut pause = SHORTEST;
        loop {
            let before = grant.as_ref().map(Grant::chunks);
            let changed = self.rule.look();
            if changed {
                self.told = Told::default();
            }
            let manager = self.begin(layout, place.zip(grant.as_mut()));
            if let Some(manager) = manager.inspect_err(|_| self.anteroom.dismiss())? {
                return Ok(manager);
            }
            let more = grant.as_ref().map(Grant::chunks) > before;
            pause = if more || changed { SHORTEST } else { (pause * 2).min(LONGEST) };
            self.anteroom.wait(pause).inspect_err(|_| self.anteroom.dismiss())?;
        }
    }

    /// `None` = not yet.
    fn begin(
        &mut self,
        layout: &SlabLayout,
        place: Option<(&Place, &mut Grant)>,
    ) -> Result<Option<MemoryManager>, LoadError> {
        if let Some(trouble) = place.as_ref().and_then(|(place, _)| place.seat.damage()) {
            // Nothing is granted by it any more; another start makes a new one.
            return Err(LoadError::Ledger(trouble));
        }
        let share = self.rule.terms().share_chunks;
        let Some(activation) = self.anteroom.engine().map(|engine| engine.activation) else {
            if let Some((place, grant)) = place {
                // Its share may have been dealt out anew meanwhile.
                grant.fall(share);
                self.anteroom.say(self.granted(place, grant.chunks(), share));
            }
            return Ok(None);
        };
        let geometry = geometry(self.loaded, layout, activation);
        let (params, floor) = self.possible(&geometry)?;
        let want = share.max(floor).min(geometry.capacity_chunks);
        let Some((place, grant)) = place else {
            return manager(Params { share_chunks: want, ..params }, geometry);
        };
        grant.rise(want);
        grant.fall(want);
        let granted = grant.chunks();
        if granted < floor {
            let waiting = self.waiting(place, granted, want, floor);
            if !std::mem::replace(&mut self.told.waits, true) {
                // More than it was dealt nobody may ever leave: then only another deal helps.
                let dealt = self.bytes(share);
                tracing::warn!(
                    dealt,
                    floor = waiting.floor_bytes,
                    granted = waiting.share_bytes,
                    "waiting for room for the floor"
                );
            }
            self.anteroom.say(waiting);
            return Ok(None);
        }
        manager(Params { share_chunks: granted, ..params }, geometry)
    }

    /// Parameters on the terms of the directive, or on those of the configuration where the whole GPU would not do for the
    /// former; and their floor.
    fn possible(&mut self, geometry: &Geometry) -> Result<(Params, u32), LoadError> {
        let terms = self.rule.terms();
        let told = params(self.loaded, terms);
        let refused = match memory_manager::floor(&told, geometry) {
            Ok(floor) => return Ok((told, floor)),
            Err(refused) => refused,
        };
        let configured = params(self.loaded, self.rule.configured());
        let floor = memory_manager::floor(&configured, geometry).map_err(LoadError::Refused)?;
        if !std::mem::replace(&mut self.told.impossible, true) {
            tracing::error!(?terms, %refused, "the tenant cannot follow its directive and follows its configuration");
        }
        Ok((configured, floor))
    }

    fn waiting(&self, place: &Place, granted: u32, want: u32, floor: u32) -> Neighbourhood {
        let (missing, floor_bytes) = (self.bytes(floor - granted), self.bytes(floor));
        let waits_for = format!(
            "{missing} of the {floor_bytes} bytes of its floor, which are in the shares of its neighbours"
        );
        Neighbourhood { floor_bytes, waits_for: Some(waits_for), ..self.granted(place, granted, want) }
    }

    fn granted(&self, place: &Place, granted: u32, want: u32) -> Neighbourhood {
        let share_bytes = self.bytes(granted);
        Neighbourhood {
            instance: place.seat.instance(),
            share_bytes,
            budget_bytes: share_bytes,
            wanted_share_bytes: self.bytes(want),
            ..Neighbourhood::default()
        }
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.loaded.config.gpu.chunk_bytes
    }
}

fn manager(params: Params, geometry: Geometry) -> Result<Option<MemoryManager>, LoadError> {
    MemoryManager::new(params, geometry).map(Some).map_err(LoadError::Refused)
}

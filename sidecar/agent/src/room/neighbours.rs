//! A tenant's place among its neighbours: what is opened for it at load, and what the state says of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use sluice_policy::neighbours::Peer;
use sluice_policy::trader::Terms;
use sluice_ports::neighbourhood::{Neighbourhood, Nobody};
use sluice_scheduler::{Config, Core, Membership};
use sluice_wire::state::{Activity, Direction, GrantState, Neighbourhood as PlaceState, State, TurnState};
use tokio::runtime::Handle;

use super::load::LoadError;
use super::state::Diary;
use crate::directive::Directives;
use crate::neighbours::client::Client;
use crate::neighbours::desk::Desk;
use crate::neighbours::office::Office;
use crate::neighbours::place::Place;
use crate::neighbours::shell::Shell;
use crate::neighbours::{turns, watch};
use crate::service::Inbox;

/// The way to neighbours, for a tenant that has some.
#[derive(Clone, Debug)]
pub struct Among {
    /// Who they are, and by which rule.
    pub directives: Arc<Directives>,
    /// Calls to them.
    pub client: Arc<Client>,
    /// Where calls are made.
    pub runtime: Handle,
}

impl Among {
    /// Opens the scheduler's port to its neighbours: the office, the watch, the thread of turns.
    pub(super) fn open(
        &self,
        place: &Place,
        desk: &Arc<Desk>,
        inbox: &Inbox,
        origin: Instant,
    ) -> Result<Box<dyn Neighbourhood>, LoadError> {
        let (seat, desk) = (place.seat.clone(), desk.clone());
        let (letters, written) = tokio::sync::mpsc::unbounded_channel();
        let office = Office {
            seat: seat.clone(),
            desk: desk.clone(),
            directives: self.directives.clone(),
            client: self.client.clone(),
            inbox: inbox.clone(),
            origin,
        };
        if place.trades() {
            self.runtime.spawn(watch::watch(office.clone()));
            self.runtime.spawn(office.work(written));
        }
        let spawn = |order| turns::spawn(seat.clone(), order, place.config.priority, inbox.clone());
        let turns = place.turns().map(spawn).transpose();
        let turns = turns.map_err(|source| LoadError::Io { path: "a thread".into(), source })?;
        Ok(Box::new(Shell { seat, desk, letters, turns }))
    }
}

/// The port of a tenant: to its neighbours, or to nobody.
pub(super) fn port(
    among: Option<&Among>,
    place: Option<(&Place, &Arc<Desk>)>,
    inbox: &Inbox,
    origin: Instant,
) -> Result<Box<dyn Neighbourhood>, LoadError> {
    match (place, among) {
        (Some((place, desk)), Some(among)) => among.open(place, desk, inbox, origin),
        _ => Ok(Box::new(Nobody)),
    }
}

/// What engines keep as long as they live: the description with the tenant's locks, where there are any.
pub(super) fn life(place: Option<&Place>) -> Result<OwnedFd, LoadError> {
    let io = |source| LoadError::Io { path: "/dev/null".into(), source };
    match place {
        Some(place) => place.seat.liveness().try_clone_to_owned().map_err(io),
        None => std::fs::File::open("/dev/null").map(OwnedFd::from).map_err(io),
    }
}

/// The scheduler's limits, with the tenant's place among its neighbours.
pub(super) fn scheduling(limits: Config, place: Option<&Place>) -> Config {
    let Some(place) = place else { return limits };
    let terms = Terms { priority: place.config.priority, ..Terms::default() };
    let neighbours = place.trades().then(|| Membership { me: place.me(), terms });
    Config { sharing: place.sharing(), neighbours, ..limits }
}

/// Adds to a state what concerns neighbours.
pub(super) fn fill(state: &mut State, core: &Core, diary: &Diary, place: &Place) {
    let brain = core.brain();
    let bytes = |chunks: u32| u64::from(chunks) * brain.geometry().chunk_bytes;
    state.neighbourhood = Some(PlaceState {
        instance: place.seat.instance(),
        share_bytes: bytes(brain.share_chunks()),
        floor_bytes: bytes(brain.floor_chunks()),
        budget_bytes: bytes(brain.budget_chunks()),
        lendable_bytes: bytes(brain.lendable_chunks()),
        held_bytes: place.seat.held_bytes(),
        lent_bytes: bytes(brain.lent_chunks()),
        borrowed_bytes: bytes(brain.borrowed_chunks()),
        grants: grants(core, place),
        turn: place.turns().map(|_| turn(core, place)),
    });
    state.activity = Activity {
        inactive_since_unix_ms: diary.inactive_since_unix_ms(),
        last_used_unix_ms: diary.last_used_unix_ms(),
        resident_since_unix_ms: diary.resident_since_unix_ms(),
        absent_layers: brain.absent_layers(),
    };
}

fn grants(core: &Core, place: &Place) -> Vec<GrantState> {
    let Some(book) = core.trader().map(|trader| trader.book()) else { return Vec::new() };
    let chunk_bytes = core.brain().geometry().chunk_bytes;
    let survey = place.seat.survey().unwrap_or_default();
    let grant = |who: Peer, direction, nonce, chunks: u32| {
        let named = survey.iter().find(|p| p.peer == who).map(|p| p.name.as_str());
        let (namespace, name) = named.and_then(|name| name.split_once('/')).unwrap_or_default();
        GrantState {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            direction,
            nonce,
            bytes: u64::from(chunks) * chunk_bytes,
            expires_in_ms: 0,
        }
    };
    let given = book.given().iter().map(|g| grant(g.peer, Direction::Given, g.nonce.0, g.chunks));
    let taken = book.taken().iter().filter(|t| t.held() > 0);
    let taken = taken.map(|t| grant(t.peer, Direction::Taken, t.nonce.0, t.held()));
    given.chain(taken).collect()
}

fn turn(core: &Core, place: &Place) -> TurnState {
    let counters = core.snapshot().counters;
    let line = place.seat.turn();
    TurnState {
        holds: core.holds_turn(),
        epoch: line.held().map_or(0, |epoch| epoch.0),
        waiting: line.waiters().map_or(0, |waiters| u32::try_from(waiters).unwrap_or(u32::MAX)),
        held_ns_total: counters.turn_held_ns,
        turns_total: counters.turns,
        ..TurnState::default()
    }
}

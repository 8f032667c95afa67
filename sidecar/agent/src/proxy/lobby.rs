//! Where requests wait for the engine, and what everybody knows about it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sluice_scheduler::UnavailableReason;
use tokio::sync::{Notify, watch};

use crate::gateway::error::{ApiError, RETRY_SOON_SECONDS};
use crate::metrics::Metrics;

/// What the engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not answered yet.
    Starting,
    /// It answers.
    Awake,
    /// It was told to sleep.
    FallingAsleep,
    /// It has given up its device memory.
    Asleep,
    /// It was told to wake.
    Waking,
    /// It answered once and does so no more.
    Lost,
}

/// What was seen of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// What it is doing.
    pub phase: Phase,
    /// Looks at it so far.
    pub looks: u64,
}

/// Requests, counted.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// That came and have not ended.
    pub open: u32,
    /// Of these, those that wait here.
    pub held: u32,
    /// That wait in the engine, as it said when it was looked at last.
    pub waiting_there: u32,
    /// When the last one came or ended, or the engine was found or woken.
    pub changed: (Instant, SystemTime),
    /// When the last one came or ended; `None` = none has come.
    pub used: Option<SystemTime>,
}

impl Counts {
    fn touch(&mut self) {
        let now = SystemTime::now();
        (self.changed, self.used) = ((Instant::now(), now), Some(now));
    }
}

/// Shared by the requests, the keeper of the engine and whoever tells the state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lobby {
    counts: Arc<Mutex<Counts>>,
    view: watch::Sender<View>,
    /// For the keeper: something is wanted, or something is wrong.
    pub nudge: Arc<Notify>,
    metrics: Arc<Metrics>,
}

/// The place of a request that has not ended.
#[derive(Debug)]
pub struct Place {
    lobby: Lobby,
    /// How long it may still be held.
    budget: Duration,
}

impl Lobby {
    /// Nobody has come, and the engine has not been seen.
    pub fn new(metrics: Arc<Metrics>) -> Lobby {
        let changed = (Instant::now(), SystemTime::now());
        let counts = Counts { open: 0, held: 0, waiting_there: 0, changed, used: None };
        let view = watch::Sender::new(View { phase: Phase::Starting, looks: 0 });
        Lobby { counts: Arc::new(Mutex::new(counts)), view, nudge: Arc::default(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Plain counters: a panic elsewhere leaves nothing half done in them.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests now.
    pub fn counts(&self) -> Counts {
        *self.lock()
    }

    /// What the engine is doing.
    pub fn phase(&self) -> Phase {
        self.view.borrow().phase
    }

    /// The engine, now and whenever something about it changes.
    pub fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// A look at the engine has ended; so many requests wait in it.
    pub fn looked(&self, phase: Phase, waiting_there: Option<u64>) {
        if let Some(waiting) = waiting_there {
            self.lock().waiting_there = u32::try_from(waiting).unwrap_or(u32::MAX);
        }
        self.view.send_modify(|view| *view = View { phase, looks: view.looks + 1 });
    }

    /// The engine does something else now.
    pub fn set(&self, phase: Phase) {
        self.view.send_modify(|view| view.phase = phase);
    }

    /// The engine is about to sleep, unless a request is open: who comes later finds it asleep.
    ///
    /// # Errors
    /// How many are open.
    pub fn close(&self) -> Result<(), u32> {
        let counts = self.lock();
        if counts.open > 0 {
            return Err(counts.open);
        }
        self.set(Phase::FallingAsleep);
        Ok(())
    }

    /// Whoever is idle is so from now on: it has just been woken.
    pub fn stir(&self) {
        self.lock().changed = (Instant::now(), SystemTime::now());
    }

    /// A place for a request that may be held for `budget`.
    ///
    /// # Errors
    /// 429: `queue` requests wait already, here or in the engine.
    pub fn enter(&self, queue: u32, budget: Duration) -> Result<Place, ApiError> {
        let mut counts = self.lock();
        let waiting = counts.held.saturating_add(counts.waiting_there);
        if waiting >= queue {
            return Err(ApiError::busy(format!("{waiting} requests wait, which is the limit")));
        }
        counts.open += 1;
        counts.touch();
        drop(counts);
        Ok(Place { lobby: self.clone(), budget })
    }
}

impl Place {
    /// Waits until the engine answers requests, if need be until it has been woken.
    ///
    /// # Errors
    /// 503: the budget is over.
    pub async fn awake(&mut self) -> Result<(), ApiError> {
        let Place { lobby, budget } = self;
        lobby.until(budget, |view| view.phase == Phase::Awake).await
    }

    /// Something went wrong with the engine: waits until it has been looked at again.
    ///
    /// # Errors
    /// 503: the budget is over.
    pub async fn looked_at(&mut self) -> Result<(), ApiError> {
        let Place { lobby, budget } = self;
        let looks = lobby.view.borrow().looks;
        lobby.until(budget, |view| view.looks > looks).await
    }
}

impl Lobby {
    /// Waits until the engine's process answers, awake or not. Keeps nobody from sleeping, and wakes nobody.
    ///
    /// # Errors
    /// 503: it took longer than `budget`.
    pub async fn there(&self, mut budget: Duration) -> Result<(), ApiError> {
        self.until(&mut budget, |view| !matches!(view.phase, Phase::Starting | Phase::Lost)).await
    }

    async fn until(&self, budget: &mut Duration, wanted: impl Fn(&View) -> bool) -> Result<(), ApiError> {
        let mut view = self.watch();
        if wanted(&view.borrow_and_update()) {
            return Ok(());
        }
        self.nudge.notify_one();
        let (held, start) = (Held::new(self), Instant::now());
        let come = tokio::time::timeout(*budget, view.wait_for(wanted)).await;
        drop(held);
        *budget = budget.saturating_sub(start.elapsed());
        self.metrics.held(start.elapsed());
        match come {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ApiError::outage(&UnavailableReason::ShuttingDown)),
            Err(_) => Err(self.not_yet()),
        }
    }

    fn not_yet(&self) -> ApiError {
        let what = match self.phase() {
            Phase::Starting => "the engine has not started yet",
            Phase::Lost => "the engine restarts",
            Phase::FallingAsleep | Phase::Asleep | Phase::Waking => "the engine has not woken yet",
            Phase::Awake => "the engine broke off",
        };
        ApiError::unavailable(what, RETRY_SOON_SECONDS)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.lobby.lock();
        counts.open -= 1;
        counts.touch();
    }
}

/// A request that waits here.
struct Held<'a>(&'a Lobby);

impl Held<'_> {
    fn new(lobby: &Lobby) -> Held<'_> {
        lobby.lock().held += 1;
        lobby.metrics.held_requests.add(1);
        Held(lobby)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock().held -= 1;
        self.0.metrics.held_requests.add(-1);
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::config::SloConfig;

    use super::*;

    fn lobby() -> Lobby {
        Lobby::new(Arc::new(Metrics::proxied("tiny", &SloConfig::default())))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn it_closes_only_when_nobody_is_in_and_a_place_is_given_back() {
        let lobby = lobby();
        let places = [lobby.enter(9, LONG).unwrap(), lobby.enter(9, LONG).unwrap()];
        assert_eq!(lobby.close(), Err(2));
        drop(places);
        assert_eq!((lobby.close(), lobby.phase()), (Ok(()), Phase::FallingAsleep));
    }

    #[tokio::test]
    async fn a_request_is_held_until_the_engine_is_awake_and_wakes_its_keeper() {
        let lobby = lobby();
        lobby.set(Phase::Asleep);
        let mut place = lobby.enter(9, LONG).unwrap();
        let held = tokio::spawn(async move { place.awake().await.map(|()| place.budget) });
        lobby.nudge.notified().await;
        let mut view = lobby.watch();
        while lobby.counts().held == 0 {
            tokio::task::yield_now().await;
        }
        lobby.looked(Phase::Waking, Some(3));
        view.changed().await.unwrap();
        assert_eq!((lobby.counts().held, lobby.counts().open, lobby.counts().waiting_there), (1, 1, 3));
        lobby.set(Phase::Awake);
        assert!(held.await.unwrap().unwrap() < LONG);
        assert_eq!((lobby.counts().held, lobby.counts().open), (0, 0));
    }

    #[tokio::test]
    async fn nobody_is_held_beyond_the_budget_and_nobody_waits_beyond_the_queue() {
        let lobby = lobby();
        lobby.set(Phase::Lost);
        let mut place = lobby.enter(1, Duration::ZERO).unwrap();
        let refused = place.awake().await.unwrap_err();
        assert!(refused.body().to_string().contains("restarts"), "{refused:?}");
        lobby.looked(Phase::Awake, Some(1));
        assert!(lobby.enter(1, LONG).is_err(), "one waits in the engine");
        assert!(lobby.enter(2, LONG).is_ok());
    }
}

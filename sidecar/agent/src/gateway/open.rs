//! What clients may cost at one time: open requests, bytes of bodies, processors busy with large bodies. Each is bounded,
//! and given back when its holder is gone, however it went.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::metrics::Metrics;

/// Bodies being read or parsed, all together.
const BODIES_KIB: usize = 256 << 10;
/// Bodies above this are parsed aside, so that no stream waits for them.
const LARGE_BYTES: usize = 8 << 10;
/// Large bodies that are parsed at the same time, by size: the largest size in bytes, and their number. A body waits for those of its
/// own size alone, which take up to eight times as long as it does: a huge prompt takes seconds to tokenise.
const PARSERS: [(usize, usize); 3] = [(64 << 10, 2), (512 << 10, 1), (usize::MAX, 1)];

/// How much may be open.
#[derive(Clone, Debug)]
pub struct OpenRequests {
    places: Arc<Semaphore>,
    bodies_kib: Arc<Semaphore>,
    parsers: Arc<[Semaphore; PARSERS.len()]>,
    limit: u32,
    metrics: Arc<Metrics>,
}

/// Places among the open requests.
#[derive(Debug)]
pub struct OpenRequest {
    places: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

/// Room for the bytes of one body.
#[derive(Debug, Default)]
pub struct BodyRoom(Option<OwnedSemaphorePermit>);

impl OpenRequests {
    /// At most `limit` requests; every choice of an answer counts as one.
    pub fn new(limit: u32, metrics: Arc<Metrics>) -> Self {
        let places = Arc::new(Semaphore::new(limit as usize));
        let bodies_kib = Arc::new(Semaphore::new(BODIES_KIB));
        let parsers = Arc::new(PARSERS.map(|(_, parsers)| Semaphore::new(parsers)));
        OpenRequests { places, bodies_kib, parsers, limit, metrics }
    }

    /// Takes places.
    ///
    /// # Errors
    /// 429 when too few are left, 400 when there never are so many.
    pub fn enter(&self, count: u32) -> Result<OpenRequest, ApiError> {
        if count > self.limit {
            let message = format!("{count} answers were asked for, at most {} can be open", self.limit);
            return Err(ApiError::param("n", message));
        }
        let places = self.places.clone().try_acquire_many_owned(count);
        let places = places
            .map_err(|_| ApiError::busy(format!("{} requests are open, which is the limit", self.count())))?;
        self.metrics.open_requests.add(i64::from(count));
        Ok(OpenRequest { places, metrics: self.metrics.clone() })
    }

    /// Requests open now.
    pub fn count(&self) -> u32 {
        self.limit - u32::try_from(self.places.available_permits()).unwrap_or(self.limit)
    }

    /// Makes `room` large enough for a body that has grown to `bytes`.
    ///
    /// # Errors
    /// 429 when bodies take too much memory already.
    pub fn make_room(&self, room: &mut BodyRoom, bytes: usize) -> Result<(), ApiError> {
        let have = room.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(have)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let refused = |_| ApiError::busy("too many large bodies are being read");
        let permit = self.bodies_kib.clone().try_acquire_many_owned(more).map_err(refused)?;
        match &mut room.0 {
            Some(room) => room.merge(permit),
            None => room.0 = Some(permit),
        }
        Ok(())
    }

    /// Runs what parses a body of `bytes`; a large one aside, and few of those at a time. Needs a runtime of many threads.
    ///
    /// # Panics
    /// Broken invariant: a size has no parsers.
    pub async fn parse<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= LARGE_BYTES {
            return work();
        }
        let lane =
            PARSERS.iter().position(|(most, _)| bytes <= *most).expect("the last lane takes every size");
        let _turn = self.parsers[lane].acquire().await.expect("nobody closes it");
        tokio::task::block_in_place(work)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.metrics.open_requests.add(-(self.places.num_permits() as i64));
    }
}

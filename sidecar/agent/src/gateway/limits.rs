//! What clients may cost at one time: open requests, bytes of bodies, processors busy with large bodies. Each is bounded,
//! and given back when its holder is gone, however it went.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::ApiError;
use crate::metrics::Metrics;

/// Bodies being read or parsed, all together.
const BODIES_KIB: usize = 256 << 10;
/// Bodies above this are parsed aside, so that no stream waits for them.
const LARGE_BYTES: usize = 8 << 10;
/// A thread of its own reads a body above this, and yields to everything else that the process does.
const HUGE_BYTES: usize = 64 << 10;
/// Large bodies that are parsed at the same time, by size: the largest size in bytes, and their number. A body waits for those of its
/// own size alone, which take up to eight times as long as it does: a huge prompt takes seconds to tokenise.
const PARSERS: [(usize, usize); 3] = [(HUGE_BYTES, 2), (512 << 10, 1), (usize::MAX, 1)];
/// How much nicer the thread of a huge body is: it has about a tenth of what any other has that wants the same processor.
const NICENESS_INCREMENT: i32 = 10;
/// The nicest that there is.
const NICENESS_MAX: i32 = 19;

/// How much may be open.
#[derive(Clone, Debug)]
pub struct RequestLimiter {
    permits: Arc<Semaphore>,
    bodies_kib: Arc<Semaphore>,
    parsers: [Arc<Semaphore>; PARSERS.len()],
    limit: u32,
    metrics: Arc<Metrics>,
}

/// Places among the open requests.
#[derive(Debug)]
pub struct RequestPermit {
    permits: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

/// Room for the bytes of one body.
#[derive(Debug, Default)]
pub struct BodyBudget(Option<OwnedSemaphorePermit>);

impl RequestLimiter {
    /// At most `limit` requests; every choice of an answer counts as one.
    pub fn new(limit: u32, metrics: Arc<Metrics>) -> Self {
        let places = Arc::new(Semaphore::new(limit as usize));
        let bodies_kib = Arc::new(Semaphore::new(BODIES_KIB));
        let parsers = PARSERS.map(|(_, parsers)| Arc::new(Semaphore::new(parsers)));
        RequestLimiter { permits: places, bodies_kib, parsers, limit, metrics }
    }

    /// Takes places.
    ///
    /// # Errors
    /// 429 when too few are left, 400 when there never are so many.
    pub fn acquire(&self, count: u32) -> Result<RequestPermit, ApiError> {
        if count > self.limit {
            let message = format!("{count} answers were asked for, at most {} can be open", self.limit);
            return Err(ApiError::invalid_param("n", message));
        }
        let places = self.permits.clone().try_acquire_many_owned(count);
        let places = places.map_err(|_| {
            ApiError::rate_limited(format!("{} requests are open, which is the limit", self.open_count()))
        })?;
        self.metrics.open_requests.add(i64::from(count));
        Ok(RequestPermit { permits: places, metrics: self.metrics.clone() })
    }

    /// Requests open now.
    pub fn open_count(&self) -> u32 {
        self.limit - u32::try_from(self.permits.available_permits()).unwrap_or(self.limit)
    }

    /// Makes `room` large enough for a body that has grown to `bytes`.
    ///
    /// # Errors
    /// 429 when bodies take too much memory already.
    pub fn reserve_body(&self, room: &mut BodyBudget, bytes: usize) -> Result<(), ApiError> {
        let have = room.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(have)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let refused = |_| ApiError::rate_limited("too many large bodies are being read");
        let permit = self.bodies_kib.clone().try_acquire_many_owned(more).map_err(refused)?;
        match &mut room.0 {
            Some(room) => room.merge(permit),
            None => room.0 = Some(permit),
        }
        Ok(())
    }

    /// Runs what parses a body of `bytes`: a large one aside, a huge one on a thread that yields to all others, and few of
    /// either at a time. Needs a runtime of many threads.
    ///
    /// # Errors
    /// Those of `work`; 429 where the machine has no room for another thread.
    ///
    /// # Panics
    /// When `work` does. Broken invariant: a size has no parsers.
    pub async fn parse<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= LARGE_BYTES {
            return work();
        }
        let lane =
            PARSERS.iter().position(|(most, _)| bytes <= *most).expect("the last lane takes every size");
        let turn = self.parsers[lane].clone().acquire_owned().await.expect("nobody closes it");
        match bytes > HUGE_BYTES {
            true => run_at_low_priority(turn, work).await,
            false => tokio::task::block_in_place(work),
        }
    }
}

/// Runs `work` on a thread of low priority. It keeps its `turn` until it ends, also when the client has left.
async fn run_at_low_priority<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (done, result) = oneshot::channel();
    let run = move || {
        lower_thread_priority();
        let result = catch_unwind(AssertUnwindSafe(work));
        drop(turn);
        // The client may be gone.
        let _ = done.send(result);
    };
    let thread = std::thread::Builder::new().name("huge-body".into()).spawn(run);
    thread.map_err(|error| {
        ApiError::rate_limited(format!("no thread can be started for a large body: {error}"))
    })?;
    match result.await.expect("the thread sends its result") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

/// Makes this thread nicer; on Linux a thread has a niceness of its own.
fn lower_thread_priority() {
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    if let Err(error) =
        rustix::process::setpriority_process(None, (now + NICENESS_INCREMENT).min(NICENESS_MAX))
    {
        tracing::debug!(%error, "the thread of a huge body cannot be made nicer");
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.metrics.open_requests.add(-(self.permits.num_permits() as i64));
    }
}

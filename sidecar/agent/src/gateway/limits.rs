//! Limits on concurrent work of clients: open requests, bytes of bodies, threads that parse large bodies. Each permit
//! is released when its holder is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::ApiError;
use crate::metrics::Metrics;

/// Total size of all bodies in memory, KiB.
const BODIES_KIB: usize = 256 << 10;
/// Bodies above this size are parsed outside of the async tasks, so that they delay no stream.
const LARGE_BYTES: usize = 8 << 10;
/// Bodies above this size are parsed on a thread of their own with low priority.
const HUGE_BYTES: usize = 64 << 10;
/// Size classes of large bodies: largest size in bytes, and how many are parsed at the same time. A body waits only for
/// bodies of its own class; parsing a huge prompt takes seconds.
const PARSERS: [(usize, usize); 3] = [(HUGE_BYTES, 2), (512 << 10, 1), (usize::MAX, 1)];
/// Niceness increment of the thread of a huge body, which gives it about a tenth of a contended processor.
const NICENESS_INCREMENT: i32 = 10;
/// Largest niceness of Linux.
const NICENESS_MAX: i32 = 19;

/// Limiter of the work that clients cause.
#[derive(Clone, Debug)]
pub struct RequestLimiter {
    permits: Arc<Semaphore>,
    bodies_kib: Arc<Semaphore>,
    parsers: [Arc<Semaphore>; PARSERS.len()],
    limit: u32,
    metrics: Arc<Metrics>,
}

/// Permits for open requests.
#[derive(Debug)]
pub struct RequestPermit {
    permits: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

/// Memory reserved for the bytes of one body.
#[derive(Debug, Default)]
pub struct BodyBudget(Option<OwnedSemaphorePermit>);

impl RequestLimiter {
    /// Allows at most `limit` open requests; each choice of a response counts as one.
    pub fn new(limit: u32, metrics: Arc<Metrics>) -> Self {
        let places = Arc::new(Semaphore::new(limit as usize));
        let bodies_kib = Arc::new(Semaphore::new(BODIES_KIB));
        let parsers = PARSERS.map(|(_, parsers)| Arc::new(Semaphore::new(parsers)));
        RequestLimiter { permits: places, bodies_kib, parsers, limit, metrics }
    }

    /// Acquires `count` permits.
    ///
    /// # Errors
    /// 429 if too few permits are free, 400 if `count` exceeds the limit.
    pub fn acquire(&self, count: u32) -> Result<RequestPermit, ApiError> {
        if count > self.limit {
            let message = format!(
                "the request asks for {count} answers, but at most {} requests can be open",
                self.limit
            );
            return Err(ApiError::invalid_param("n", message));
        }
        let places = self.permits.clone().try_acquire_many_owned(count);
        let places = places.map_err(|_| {
            ApiError::rate_limited(format!("{} requests are open, which is the limit", self.open_count()))
        })?;
        self.metrics.open_requests.add(i64::from(count));
        Ok(RequestPermit { permits: places, metrics: self.metrics.clone() })
    }

    /// Returns the number of open requests.
    pub fn open_count(&self) -> u32 {
        self.limit - u32::try_from(self.permits.available_permits()).unwrap_or(self.limit)
    }

    /// Grows `budget` for a body that has reached `bytes`.
    ///
    /// # Errors
    /// 429 if all bodies together would exceed their limit.
    pub fn reserve_body(&self, budget: &mut BodyBudget, bytes: usize) -> Result<(), ApiError> {
        let have = budget.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(have)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let refused = |_| ApiError::rate_limited("too many large bodies are read at the same time");
        let permit = self.bodies_kib.clone().try_acquire_many_owned(more).map_err(refused)?;
        match &mut budget.0 {
            Some(budget) => budget.merge(permit),
            None => budget.0 = Some(permit),
        }
        Ok(())
    }

    /// Runs `work`, which parses a body of `bytes`. Large bodies run outside of the async tasks and huge ones on a
    /// thread of low priority, a limited number of each at a time. Needs a multi-threaded runtime.
    ///
    /// # Errors Those of `work`; 429 if no thread can be started.
    ///
    /// # Panics When `work` does. Broken invariant: no size class fits `bytes`.
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
        let permit = self.parsers[lane].clone().acquire_owned().await.expect("the semaphore is never closed");
        match bytes > HUGE_BYTES {
            true => run_at_low_priority(permit, work).await,
            false => tokio::task::block_in_place(work),
        }
    }
}

/// Runs `work` on a thread of low priority. The thread keeps its permit until it ends, even if the client disconnects.
async fn run_at_low_priority<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (done, result) = oneshot::channel();
    let run = move || {
        lower_thread_priority();
        let result = catch_unwind(AssertUnwindSafe(work));
        drop(permit);
        // Fails if the client has disconnected.
        let _ = done.send(result);
    };
    let thread = std::thread::Builder::new().name("huge-body".into()).spawn(run);
    thread.map_err(|error| {
        ApiError::rate_limited(format!("cannot start a thread for a large body: {error}"))
    })?;
    match result.await.expect("the thread sends its result") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

/// Raises the niceness of this thread; on Linux each thread has its own.
fn lower_thread_priority() {
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    if let Err(error) =
        rustix::process::setpriority_process(None, (now + NICENESS_INCREMENT).min(NICENESS_MAX))
    {
        tracing::debug!(%error, "cannot lower the priority of the thread for a huge body");
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.metrics.open_requests.add(-(self.permits.num_permits() as i64));
    }
}

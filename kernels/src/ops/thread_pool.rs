//! The threads that share a step. Work is split only by output element, so no result depends on the split.

use crate::forward::error::ModelError;

/// Multiply-adds below which a second thread costs more than it saves.
const MIN_PARALLEL_COST: usize = 100_000;

/// A fixed number of compute threads.
pub struct StepThreads {
    pool: Option<rayon::ThreadPool>,
    threads: usize,
}

impl StepThreads {
    /// Starts `threads` threads. With one thread, work runs on the caller's thread.
    pub fn new(threads: usize) -> Result<Self, ModelError> {
        if threads == 0 {
            return Err(ModelError::Shape("at least one compute thread"));
        }
        let build =
            || rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("compute-{n}"));
        let failed =
            |error: rayon::ThreadPoolBuildError| ModelError::Threads { threads, reason: error.to_string() };
        let pool = (threads > 1).then(|| build().build().map_err(failed)).transpose()?;
        Ok(StepThreads { pool, threads })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on a thread of the pool, so that its [`StepThreads::for_each`] calls start without a hand-over.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Calls `work` once for each task in `0..tasks`, in any order and on any thread. `cost` is the total work in
    /// multiply-adds; little work stays on the caller's thread. Call it only within [`StepThreads::enter`].
    pub fn for_each(&self, tasks: usize, cost: usize, work: impl Fn(usize) + Sync) {
        if self.pool.is_none() || tasks < 2 || cost < MIN_PARALLEL_COST {
            (0..tasks).for_each(work);
        } else {
            halve(0, tasks, &work);
        }
    }

    /// Returns the index of the calling thread, below [`StepThreads::threads`].
    pub fn thread_index(&self) -> usize {
        if self.pool.is_none() { 0 } else { rayon::current_thread_index().unwrap_or(0) }
    }
}

fn halve(first: usize, end: usize, work: &(impl Fn(usize) + Sync)) {
    if end - first == 1 {
        return work(first);
    }
    let middle = first + (end - first) / 2;
    rayon::join(|| halve(first, middle, work), || halve(middle, end, work));
}

//! Runs many jobs in parallel, as many as there are processors. The results do not depend on the scheduling.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::serve::{self, ServeConfig, ServeStats};
use crate::workload::Arrival;

/// One load under one policy.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name for progress reports.
    pub name: String,
    /// Configuration of the run.
    pub case: ServeConfig,
    /// Load to serve.
    pub load: Arc<Vec<Arrival>>,
}

/// Runs all jobs and returns their results in the same order. Calls `on_done` after each job with its name, the number
/// of finished jobs and the total.
///
/// # Errors
/// The error of the first job, in job order, that cannot be served.
pub fn run_all(jobs: &[Job], on_done: &dyn Fn(&str, usize, usize)) -> Result<Vec<ServeStats>, String> {
    let (next, (sender, done)) = (AtomicUsize::new(0), mpsc::channel());
    let workers = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut served: Vec<Option<Result<ServeStats, String>>> = vec![None; jobs.len()];
    thread::scope(|scope| {
        for sender in (0..workers).map(|_| sender.clone()) {
            scope.spawn(|| run_worker(jobs, &next, sender));
        }
        drop(sender);
        for (count, (at, result)) in (1..).zip(done) {
            served[at] = Some(result);
            on_done(&jobs[at].name, count, jobs.len());
        }
    });
    served.into_iter().map(|result| result.expect("every job was done")).collect()
}

fn run_worker(jobs: &[Job], next: &AtomicUsize, done: mpsc::Sender<(usize, Result<ServeStats, String>)>) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(job) = jobs.get(at) else { return };
        let served = serve::serve(&job.case, &job.load, &mut |_| {});
        let sent = done.send((at, served.map_err(|problem| format!("{}: {problem}", job.name))));
        sent.expect("the receiver listens until the worker ends");
    }
}

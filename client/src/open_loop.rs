//! Sends a load in an open loop: each request at its planned time, whether or not earlier ones were answered.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Runs each job in a task of its own, from its time after `start` on. Returns the results in the order of the jobs.
/// Dropping the future ends all jobs.
///
/// # Panics
/// If a job panics.
pub async fn run_at<J>(start: Instant, jobs: impl IntoIterator<Item = (Duration, J)>) -> Vec<J::Output>
where
    J: Future<Output: Send> + Send + 'static,
{
    let mut running = JoinSet::new();
    for (index, (at, job)) in jobs.into_iter().enumerate() {
        running.spawn(async move {
            sleep_until(start + at).await;
            (index, job.await)
        });
    }
    let mut results = running.join_all().await;
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;

    use super::*;

    #[tokio::test]
    async fn a_job_starts_at_its_time_although_an_earlier_one_still_runs() {
        let (start, hour) = (Instant::now(), Duration::from_secs(3600));
        let (sender, first_ends) = tokio::sync::oneshot::channel::<Duration>();
        let first = async move { tokio::time::timeout(hour, first_ends).await.unwrap().unwrap() };
        let second = async move {
            sender.send(start.elapsed()).unwrap();
            Duration::ZERO
        };
        let jobs: [(Duration, BoxFuture<'static, Duration>); 2] =
            [(Duration::ZERO, Box::pin(first)), (Duration::from_millis(20), Box::pin(second))];
        let results = run_at(start, jobs).await;
        assert!(results[0] >= Duration::from_millis(20), "{results:?}");
        assert_eq!(results[1], Duration::ZERO, "results have the order of the jobs");
    }
}

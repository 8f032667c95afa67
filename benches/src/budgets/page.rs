//! What five viewers of the live page cost a sidecar that serves: the same bursts with `sluice up --page` and without.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::tenant::{Burst, start_with};
use super::verdict::BudgetCheck;
use crate::statistics::Interval;
use crate::tenant::{BenchEnv, Tenant};

/// Most of a core that the page may take from a sidecar, percent.
const LIMIT_PERCENT: f64 = 1.0;
const VIEWERS: usize = 5;
/// Pairs of runs of the tenant.
const PAIRS: usize = 6;
/// How long each life is measured.
const WATCH: Duration = Duration::from_secs(15);
/// Longest silence of the page: it has news once a second.
const SILENCE: Duration = Duration::from_secs(20);
const BURST: Burst = Burst { requests: 4, prompt_tokens: 32, tokens: 200 };

/// What one life of the tenant showed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PageRun {
    /// Processor time of the sidecar by burst, seconds.
    sidecar: f64,
    /// Time of a burst, seconds.
    burst: f64,
}

/// Measures pairs of runs, one with viewers and one without a page, in the order ABBA.
pub fn measure(world: &BenchEnv) -> Result<Vec<BudgetCheck>> {
    let mut pairs = Vec::new();
    for index in 0..PAIRS {
        let (first, second) = (run_once(world, index % 2 == 0)?, run_once(world, index % 2 == 1)?);
        let pair = if index % 2 == 0 { (first, second) } else { (second, first) };
        eprintln!("pair {} of {PAIRS}: {:.2} % of a core", index + 1, percent(&pair));
        pairs.push(pair);
    }
    verdict(&pairs).map(|verdict| vec![verdict])
}

fn run_once(world: &BenchEnv, with_page: bool) -> Result<PageRun> {
    let tenant = start_with(world, if with_page { "page" } else { "no-page" }, "Oneiros", with_page)?;
    BURST.send(world, &tenant)?;
    let Some(page) = tenant.page() else { return watch(world, &tenant) };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let viewers: Vec<_> = (0..VIEWERS).map(|_| scope.spawn(|| view(page, &stop))).collect();
        let life = watch(world, &tenant);
        stop.store(true, Ordering::Relaxed);
        for viewer in viewers {
            let events = viewer.join().expect("a viewer does not panic").context("a viewer of the page")?;
            let least = WATCH.as_secs() / 2;
            ensure!(events >= least, "a viewer got {events} updates, fewer than {least}");
        }
        life
    })
}

/// Looks at the page until `stop`; returns how many updates came.
fn view(page: SocketAddr, stop: &AtomicBool) -> Result<u64> {
    let mut socket = TcpStream::connect(page)?;
    socket.set_read_timeout(Some(SILENCE))?;
    write!(socket, "GET /v1/page/events HTTP/1.1\r\nhost: {page}\r\n\r\n")?;
    let mut events = 0;
    for line in BufReader::new(socket).lines() {
        events += u64::from(line?.starts_with("event: gpu"));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(events)
}

/// Bursts, one after the other, for as long as a life is measured.
fn watch(world: &BenchEnv, tenant: &Tenant<'_>) -> Result<PageRun> {
    let (begun, before) = (Instant::now(), tenant.processor_ns()?);
    let mut bursts = 0.0;
    while begun.elapsed() < WATCH {
        BURST.send(world, tenant)?;
        bursts += 1.0;
    }
    let used = tenant.processor_ns()?.saturating_sub(before) as f64 / 1e9;
    Ok(PageRun { sidecar: used / bursts, burst: begun.elapsed().as_secs_f64() / bursts })
}

/// What viewers add to the sidecar's processor time, percent of the time that a burst takes.
fn percent((with, without): &(PageRun, PageRun)) -> f64 {
    (with.sidecar - without.sidecar) / ((with.burst + without.burst) / 2.0) * 100.0
}

fn verdict(pairs: &[(PageRun, PageRun)]) -> Result<BudgetCheck> {
    let percents: Vec<f64> = pairs.iter().map(percent).collect();
    let Interval { mean, low, high } = Interval::of_mean(&percents).context("too few pairs")?;
    let name = format!("sidecar under load, {VIEWERS} viewers, lower bound (mean {mean:.2} %)");
    let detail = json!({"percent_of_a_core_by_pair": percents, "mean": mean, "low": low, "high": high});
    Ok(BudgetCheck::at_most(&name, low, "%", LIMIT_PERCENT).of_interval(high).with(detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_difference_by_the_time_of_a_burst() {
        let without = PageRun { sidecar: 0.1, burst: 2.0 };
        let with = |sidecar| (PageRun { sidecar, burst: 2.0 }, without);
        assert!((percent(&with(0.12)) - 1.0).abs() < 1e-9);
        assert!(verdict(&[with(0.11); 6]).unwrap().passed);
        assert!(!verdict(&[with(0.13); 6]).unwrap().passed);
    }
}

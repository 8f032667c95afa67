//! The load of a day: one tenant after the other gets a burst. A burst begins once the previous one is answered;
//! the other tenants are idle.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluice_wire::State;
use tokio::time::sleep;

use super::config::{DemoConfig, LatencySlo, RequestLengths, TENANTS};
use super::machine::CpuUsage;
use super::run_stats::{Burst, Figures, Round, RunStats, absent_layers};
use super::screen::LiveOutput;
use crate::admin::AdminClient;
use crate::bench::{self, Arrivals, BenchArgs};
use crate::runtime_dir;

/// Interval of state samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Fewest rounds: a single round does not show the variation between rounds.
pub const MIN_ROUNDS: usize = 2;
/// Timeout of a request, seconds.
const TIMEOUT_S: u64 = 120;

/// Length of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadLength {
    /// No round begins after this time, except for the first [`MIN_ROUNDS`].
    Time(Duration),
    /// This number of rounds.
    Rounds(usize),
}

impl WorkloadLength {
    fn is_over(self, rounds: usize, since: Instant) -> bool {
        match self {
            WorkloadLength::Time(time) => rounds >= MIN_ROUNDS && since.elapsed() >= time,
            WorkloadLength::Rounds(all) => rounds >= all,
        }
    }
}

/// The running tenants.
pub struct RunningTenants {
    /// Base URL of each tenant's API, in the order of [`TENANTS`].
    pub urls: Vec<String>,
    /// Runtime folder of each tenant.
    pub folders: Vec<PathBuf>,
    /// Client of the admin ports.
    pub admin: AdminClient,
}

impl RunningTenants {
    /// The state of each tenant; `None` = it does not answer in time, as on a busy machine. A tenant that has died
    /// fails its requests.
    async fn states(&self) -> Vec<Option<State>> {
        let ask = |folder: &PathBuf| {
            let record = runtime_dir::read_record(folder).ok().flatten();
            async move { self.admin.state(&record?).await.ok() }
        };
        join_all(self.folders.iter().map(ask)).await
    }

    /// Sends each tenant as many requests as fit into its share. Returns the latency targets for bursts.
    ///
    /// # Errors
    /// A request failed, or a tenant does not report its step time.
    pub async fn warm_up(&self, setting: &DemoConfig) -> anyhow::Result<LatencySlo> {
        let few = DemoConfig { requests: 2, lengths: RequestLengths::QUICK, ..*setting };
        let mut last = None;
        for tenant in 0..TENANTS.len() {
            last = Some(self.send_burst(tenant, &few, 1000 + tenant as u64).await?);
        }
        let figures = Figures::from_bursts(last.iter()).map_err(anyhow::Error::msg)?;
        let states = self.states().await;
        let step_ns = states.iter().flatten().filter_map(|state| {
            Some(state.figures.t_compute_ns? * state.layers.len() as u64).filter(|ns| *ns > 0)
        });
        let Some(step_ns) = step_ns.max() else {
            anyhow::bail!("no tenant reports the duration of its steps")
        };
        Ok(LatencySlo::from_warm_up(figures.ttft_p99_ms, step_ns, setting.requests))
    }

    /// Plays a day under `promise` and returns its results.
    ///
    /// # Errors
    /// A request failed.
    pub async fn run(
        &self,
        setting: &DemoConfig,
        promise: LatencySlo,
        length: WorkloadLength,
        screen: &mut LiveOutput,
    ) -> anyhow::Result<RunStats> {
        let (usage, since) = (CpuUsage::start(), Instant::now());
        let (mut absent, mut rounds) = (0, Vec::<Round>::new());
        while !length.is_over(rounds.len(), since) {
            let mut round = Round::new();
            for tenant in 0..TENANTS.len() {
                let seed = (rounds.len() * TENANTS.len() + tenant + 1) as u64;
                round.push(tokio::select! {
                    burst = self.send_burst(tenant, setting, seed) => burst?,
                    never = self.sample_states(&mut absent, screen) => match never {},
                });
            }
            let figures = Figures::from_bursts(round.iter()).map_err(anyhow::Error::msg)?;
            rounds.push(round);
            screen.print_round(rounds.len(), &figures);
        }
        let states = self.states().await;
        absent = absent.max(absent_layers(states.iter().flatten()));
        screen.clear();
        RunStats::new(&rounds, promise, &states, absent, usage.other_cpu_permille())
            .map_err(anyhow::Error::msg)
    }

    /// Shows the tenants periodically. Sets `absent` to the highest number of absent layers.
    async fn sample_states(&self, absent: &mut u32, screen: &mut LiveOutput) -> Infallible {
        loop {
            let states: Vec<_> = self.states().await.into_iter().flatten().collect();
            *absent = (*absent).max(absent_layers(states.iter()));
            screen.show(&states);
            sleep(SAMPLE_INTERVAL).await;
        }
    }

    async fn send_burst(&self, tenant: usize, setting: &DemoConfig, seed: u64) -> anyhow::Result<Burst> {
        let RequestLengths { prompt, output } = setting.lengths;
        let args = BenchArgs {
            url: self.urls[tenant].clone(),
            model: None,
            api_key: None,
            requests: usize::try_from(setting.requests)?,
            arrivals: Arrivals::Burst,
            lengths: bench::Lengths::Uniform((prompt, prompt), (output, output)),
            max_total: u32::MAX,
            concurrency: None,
            // Every model has these token ids.
            vocab: 256,
            respect_eos: false,
            slo_ttft: 0,
            slo_tbt: 0,
            seed,
            timeout: TIMEOUT_S,
            json: false,
            outputs: None,
        };
        Ok(Burst { records: bench::run_load_quietly(&args).await? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_has_at_least_two_rounds() {
        let now = Instant::now();
        let over = |length: WorkloadLength| [0, 1, 2, 3].map(|rounds| length.is_over(rounds, now));
        assert_eq!(over(WorkloadLength::Time(Duration::ZERO)), [false, false, true, true]);
        assert_eq!(over(WorkloadLength::Time(Duration::from_secs(3600))), [false; 4]);
        assert_eq!(over(WorkloadLength::Rounds(3)), [false, false, false, true]);
    }
}

//! A day of the tenants: one tenant after the other gets a burst. A burst begins when the one before is answered; the other
//! tenants are idle.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluice_wire::State;
use tokio::time::sleep;

use super::machine::Usage;
use super::outcome::{Burst, Figures, Outcome, Round, absent_layers};
use super::screen::Screen;
use super::setting::{Lengths, Promise, Setting, TENANTS};
use crate::admin::Admin;
use crate::bench::{self, Arrivals, BenchArgs};
use crate::runtime;

/// Between two looks at the tenants.
const LOOK: Duration = Duration::from_millis(500);
/// Fewest rounds: a single one does not show how much two of them differ.
pub const FEWEST_ROUNDS: usize = 2;
/// A request that takes longer has failed, seconds.
const TIMEOUT_S: u64 = 120;

/// How long a day is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// No round begins after this time, but [`FEWEST_ROUNDS`] do.
    Time(Duration),
    /// This number of rounds.
    Rounds(usize),
}

impl Length {
    fn is_over(self, rounds: usize, since: Instant) -> bool {
        match self {
            Length::Time(time) => rounds >= FEWEST_ROUNDS && since.elapsed() >= time,
            Length::Rounds(all) => rounds >= all,
        }
    }
}

/// Tenants that serve.
pub struct Tenants {
    /// Base URL of each one's API, in the order of [`TENANTS`].
    pub urls: Vec<String>,
    /// Runtime folder of each.
    pub folders: Vec<PathBuf>,
    /// Asks them for their states.
    pub admin: Admin,
}

impl Tenants {
    /// The state of each tenant; `None` = it does not answer in time, as on a busy machine. A tenant that has died fails its
    /// requests.
    async fn states(&self) -> Vec<Option<State>> {
        let ask = |folder: &PathBuf| {
            let record = runtime::record(folder).ok().flatten();
            async move { self.admin.state(&record?).await.ok() }
        };
        join_all(self.folders.iter().map(ask)).await
    }

    /// Sends each tenant as many requests as its share has room for; gives what a burst may promise.
    ///
    /// # Errors
    /// A request failed, or a tenant does not say how fast it computes.
    pub async fn warm_up(&self, setting: &Setting) -> anyhow::Result<Promise> {
        let few = Setting { requests: 2, lengths: Lengths::QUICK, ..*setting };
        let mut last = None;
        for tenant in 0..TENANTS.len() {
            last = Some(self.burst(tenant, &few, 1000 + tenant as u64).await?);
        }
        let figures = Figures::of(last.iter()).map_err(anyhow::Error::msg)?;
        let states = self.states().await;
        let step_ns = states.iter().flatten().filter_map(|state| {
            Some(state.figures.t_compute_ns? * state.layers.len() as u64).filter(|ns| *ns > 0)
        });
        let Some(step_ns) = step_ns.max() else { anyhow::bail!("no tenant says how fast it computes") };
        Ok(Promise::of(figures.ttft_p99_ms, step_ns, setting.requests))
    }

    /// Plays a day under `promise` and says how it was.
    ///
    /// # Errors
    /// A request failed.
    pub async fn play(
        &self,
        setting: &Setting,
        promise: Promise,
        length: Length,
        screen: &mut Screen,
    ) -> anyhow::Result<Outcome> {
        let (usage, since) = (Usage::begin(), Instant::now());
        let (mut absent, mut rounds) = (0, Vec::<Round>::new());
        while !length.is_over(rounds.len(), since) {
            let mut round = Round::new();
            for tenant in 0..TENANTS.len() {
                let seed = (rounds.len() * TENANTS.len() + tenant + 1) as u64;
                round.push(tokio::select! {
                    burst = self.burst(tenant, setting, seed) => burst?,
                    never = self.look(&mut absent, screen) => match never {},
                });
            }
            let figures = Figures::of(round.iter()).map_err(anyhow::Error::msg)?;
            rounds.push(round);
            screen.round(rounds.len(), &figures);
        }
        let states = self.states().await;
        absent = absent.max(absent_layers(states.iter().flatten()));
        screen.end();
        Outcome::new(&rounds, promise, &states, absent, usage.others_permille()).map_err(anyhow::Error::msg)
    }

    /// Shows the tenants again and again; `absent` becomes the most layers that were absent at once.
    async fn look(&self, absent: &mut u32, screen: &mut Screen) -> Infallible {
        loop {
            let states: Vec<_> = self.states().await.into_iter().flatten().collect();
            *absent = (*absent).max(absent_layers(states.iter()));
            screen.show(&states);
            sleep(LOOK).await;
        }
    }

    async fn burst(&self, tenant: usize, setting: &Setting, seed: u64) -> anyhow::Result<Burst> {
        let Lengths { prompt, output } = setting.lengths;
        let args = BenchArgs {
            url: self.urls[tenant].clone(),
            model: None,
            api_key: None,
            requests: usize::try_from(setting.requests)?,
            arrivals: Arrivals::Burst,
            lengths: bench::Lengths::Uniform((prompt, prompt), (output, output)),
            max_total: u32::MAX,
            concurrency: None,
            // Ids that every model has.
            vocab: 256,
            respect_eos: false,
            slo_ttft: 0,
            slo_tbt: 0,
            seed,
            timeout: TIMEOUT_S,
            json: false,
            outputs: None,
        };
        Ok(Burst { records: bench::drive_hidden(&args).await? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_two_rounds_however_short_it_is() {
        let now = Instant::now();
        let over = |length: Length| [0, 1, 2, 3].map(|rounds| length.is_over(rounds, now));
        assert_eq!(over(Length::Time(Duration::ZERO)), [false, false, true, true]);
        assert_eq!(over(Length::Time(Duration::from_secs(3600))), [false; 4]);
        assert_eq!(over(Length::Rounds(3)), [false, false, false, true]);
    }
}

//! Finds sidecars and asks each for its state. One that does not answer is a finding like any other.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use sluice_wire::State;

use crate::admin::Admin;
use crate::runtime::{Running, RuntimeFolder};

/// What was seen of one sidecar.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Its state, or why it could not be had.
    pub state: Result<State, String>,
    /// Tokens generated per second since the look before; `None` = there was none.
    pub tokens_per_s: Option<f64>,
}

/// Looks at all sidecars and remembers what a rate needs.
#[derive(Debug)]
pub struct Poller {
    runtime: RuntimeFolder,
    admin: Admin,
    before: BTreeMap<String, Count>,
}

/// A counter at a moment.
#[derive(Clone, Copy, Debug)]
struct Count {
    at_unix_ms: u64,
    tokens: u64,
}

impl Poller {
    /// A poller that has seen nothing.
    ///
    /// # Errors
    /// No HTTP client can be made.
    pub fn new(runtime: RuntimeFolder) -> anyhow::Result<Self> {
        Ok(Poller { runtime, admin: Admin::new()?, before: BTreeMap::new() })
    }

    /// One look at all, in order of their titles.
    ///
    /// # Errors
    /// The runtime folder cannot be read.
    pub async fn poll(&mut self) -> anyhow::Result<Vec<Sighting>> {
        let running = self.runtime.running()?;
        let states = join_all(running.into_iter().map(|sidecar| ask(&self.admin, sidecar))).await;
        let counts: BTreeMap<_, _> =
            states.iter().filter_map(|(title, s)| Some((title.clone(), count(s.as_ref().ok()?)))).collect();
        let sightings = states.into_iter().map(|(title, state)| Sighting {
            tokens_per_s: counts.get(&title).and_then(|now| rate(*self.before.get(&title)?, *now)),
            state: state.map_err(|error| format!("{error:#}")),
            title,
        });
        let sightings = sightings.collect();
        self.before = counts;
        Ok(sightings)
    }
}

fn count(state: &State) -> Count {
    Count { at_unix_ms: state.at_unix_ms, tokens: state.figures.decode_tokens_total }
}

/// `None` where a rate means nothing: no time went by, or the sidecar began anew.
fn rate(before: Count, now: Count) -> Option<f64> {
    let tokens = now.tokens.checked_sub(before.tokens)?;
    let ms = now.at_unix_ms.checked_sub(before.at_unix_ms).filter(|ms| *ms > 0)?;
    Some(tokens as f64 * 1e3 / ms as f64)
}

async fn ask(admin: &Admin, sidecar: Running) -> (String, anyhow::Result<State>) {
    let state = match sidecar.record {
        Ok(record) => admin.state(&record).await,
        Err(error) => Err(error),
    };
    (sidecar.title, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(at_unix_ms: u64, tokens: u64) -> Count {
        Count { at_unix_ms, tokens }
    }

    #[test]
    fn a_rate_is_tokens_over_the_sidecars_own_time() {
        assert_eq!(rate(at(1000, 10), at(1500, 60)), Some(100.0));
    }

    #[test]
    fn a_sidecar_that_began_anew_or_stood_still_has_no_rate() {
        assert_eq!(rate(at(1000, 10), at(1500, 4)), None);
        assert_eq!(rate(at(1000, 10), at(1000, 10)), None);
        assert_eq!(rate(at(1000, 10), at(900, 20)), None);
    }
}

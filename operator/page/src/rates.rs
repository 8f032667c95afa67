//! Computes tokens per second of each tenant from two readings.

use std::collections::BTreeMap;

use sluice_wire::State;

/// Counters of the previous readings, and the rates.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// When each tenant was read, by its own clock, and its tokens since the start then.
    counts: BTreeMap<String, (u64, u64)>,
    /// Tokens per second of each tenant.
    rates: BTreeMap<String, f32>,
}

impl Rates {
    /// Adds a reading: the tenants that answered, each with a unique key.
    pub fn read<'a>(&mut self, states: impl Iterator<Item = (String, &'a State)>) {
        let now: BTreeMap<_, _> =
            states.map(|(key, s)| (key, (s.at_unix_ms, s.figures.decode_tokens_total))).collect();
        let rate =
            |(key, now): (&String, &(u64, u64))| Some((key.clone(), rate(*self.counts.get(key)?, *now)?));
        self.rates = now.iter().filter_map(rate).collect();
        self.counts = now;
    }

    /// Returns a tenant's tokens per second between the last two readings; `None` = not known.
    pub fn get(&self, key: &str) -> Option<f32> {
        self.rates.get(key).copied()
    }
}

/// Returns `None` if the rate is undefined: no time passed, or the sidecar restarted.
fn rate(before: (u64, u64), now: (u64, u64)) -> Option<f32> {
    let tokens = now.1.checked_sub(before.1)?;
    let ms = now.0.checked_sub(before.0).filter(|ms| *ms > 0)?;
    Some(tokens as f32 * 1e3 / ms as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_tokens_over_the_sidecars_own_time() {
        assert_eq!(rate((1000, 10), (1500, 60)), Some(100.0));
    }

    #[test]
    fn a_sidecar_that_started_again_or_whose_clock_stood_still_has_no_rate() {
        assert_eq!(rate((1000, 10), (1500, 4)), None);
        assert_eq!(rate((1000, 10), (1000, 10)), None);
        assert_eq!(rate((1000, 10), (900, 20)), None);
    }

    #[test]
    fn a_tenant_that_missed_a_reading_has_no_rate_until_the_second_one_after_it() {
        let at = |at_unix_ms, tokens| {
            let mut state = State { at_unix_ms, ..State::default() };
            state.figures.decode_tokens_total = tokens;
            state
        };
        let mut rates = Rates::default();
        let mut read = |state: Option<State>| {
            rates.read(state.iter().map(|state| ("team/chat".to_owned(), state)));
            rates.get("team/chat")
        };
        let seen = [read(Some(at(0, 0))), read(Some(at(500, 50))), read(None), read(Some(at(1500, 90)))];
        assert_eq!(seen, [None, Some(100.0), None, None]);
        assert_eq!(read(Some(at(2000, 100))), Some(20.0));
    }
}

//! Keeps the data of one GPU across readings, and builds its view.

use crate::history::History;
use crate::palette::Palette;
use crate::rates::Rates;
use crate::shortages::Shortages;
use crate::view::{GpuView, Reading, states, title};

/// One GPU over time: its history, and the state of its rates and shortages.
#[derive(Debug)]
pub struct Tracker {
    read_unix_ms: Option<u64>,
    history: History,
    rates: Rates,
    shortages: Shortages,
}

impl Tracker {
    /// Creates a tracker of a GPU without readings. Samples and moves go into `history`.
    pub fn new(history: History) -> Tracker {
        Tracker { read_unix_ms: None, history, rates: Rates::default(), shortages: Shortages::default() }
    }

    /// Returns the time of the last reading, milliseconds since the Unix epoch; `None` = never.
    pub const fn read_unix_ms(&self) -> Option<u64> {
        self.read_unix_ms
    }

    /// Returns its last quarter of an hour.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Takes a reading and returns its view at `now_unix_ms`. A reading with the time of the last one is no
    /// sample, and rates stay.
    pub fn record(&mut self, reading: &Reading<'_>, now_unix_ms: u64, palette: &mut Palette) -> GpuView {
        let new_at = reading.read_unix_ms.filter(|at| self.read_unix_ms != Some(*at));
        let titled = || states(reading.tenants).map(|state| (title(state), state));
        if let Some(at) = new_at {
            self.rates.read(titled());
            self.shortages.read(at, titled());
        }
        let names: Vec<String> = titled().map(|(title, _)| title).collect();
        let view = GpuView::of(
            reading,
            now_unix_ms,
            |title| self.rates.get(title),
            |title| self.shortages.get(title),
            |title| palette.colour(title, &names),
        );
        if let Some(at) = new_at {
            self.history.add(at, &view, reading.tenants);
        }
        self.read_unix_ms = reading.read_unix_ms;
        view
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::State;
    use sluice_wire::state::TenantReport;

    use super::*;
    use crate::history::Metric;

    #[test]
    fn repeated_reading_adds_no_sample_and_keeps_rates() {
        let mut tracker = Tracker::new(History::new(8));
        let mut palette = Palette::default();
        let mut take = |read_unix_ms: u64, now_unix_ms: u64| {
            let mut state = State { at_unix_ms: read_unix_ms, ..State::default() };
            (state.tenant.namespace, state.tenant.name) = ("team".into(), "chat".into());
            state.figures.decode_tokens_total = read_unix_ms / 10;
            let tenants = [TenantReport::State(Box::new(state))];
            let read_unix_ms = Some(read_unix_ms);
            let reading = Reading { read_unix_ms, tenants: &tenants, ..Reading::default() };
            let view = tracker.record(&reading, now_unix_ms, &mut palette);
            (view.tenants[0].tokens_per_s, tracker.history().series("team/chat", Metric::Tokens).count())
        };
        assert_eq!(take(1000, 1000), (None, 1));
        assert_eq!(take(2000, 2000), (Some(100.0), 2));
        assert_eq!(take(2000, 2500), (Some(100.0), 2), "nothing was read since");
        assert_eq!(take(3000, 3000), (Some(100.0), 3));
    }
}

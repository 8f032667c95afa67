//! Reports of the worker's passes, from the control page.

use sluice_link::control::{ControlPage, PassRecord};
use sluice_policy::geometry::StepShape;
use sluice_policy::memory_manager::StepTimes;
use sluice_ports::block_budget::EngineReport;

/// Which passes were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedPasses {
    begun: u64,
    ended: u64,
}

impl ReportedPasses {
    /// Begins behind the passes of former workers.
    pub fn after_all(page: &ControlPage) -> ReportedPasses {
        let begun = page.passes_begun();
        ReportedPasses { begun, ended: begun }
    }

    /// Returns the next report: a pass begins, or it has ended. Passes whose times are lost are passed over.
    pub fn next(&mut self, page: &ControlPage, layers: u16) -> Option<EngineReport> {
        let ended = page.passes_ended();
        if self.begun > self.ended {
            let record = (ended >= self.begun).then(|| page.pass_record(self.begun));
            self.ended = record.map_or(self.ended, |_| self.begun);
            let times = |record: Option<PassRecord>| step_times(record.unwrap_or_default(), layers);
            return record.map(|record| EngineReport::PassEnded(times(record)));
        }
        // Only the pass under way waits for a lease; of those that have ended, the last one has recent times.
        let last = page.passes_begun();
        let pass = if ended > self.begun { ended } else { last };
        (pass > self.begun).then(|| {
            self.begun = pass;
            EngineReport::PassBegun { pass }
        })
    }
}

/// Returns the times of a pass. The worker measures whole passes: its layers count as equal, and it waits before the
/// first one.
fn step_times(record: PassRecord, layers: u16) -> StepTimes {
    let count = usize::from(layers);
    let compute_ns = record.total_ns.saturating_sub(record.stall_ns) / u64::from(layers).max(1);
    let mut stall_ns = vec![0; count];
    stall_ns.iter_mut().take(1).for_each(|first| *first = record.stall_ns);
    let PassRecord { tokens, sequences, .. } = record;
    StepTimes {
        shape: StepShape { tokens, sequences, logit_rows: sequences },
        decode_only: tokens == sequences,
        layer_ns: vec![compute_ns; count],
        stall_ns,
        kv_stall_ns: vec![0; count],
        total_ns: record.total_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(page: &ControlPage, pass: u64) {
        page.end_pass(PassRecord { pass, total_ns: 100 + pass, stall_ns: 20, tokens: 4, sequences: 2 });
    }

    fn numbers(reported: &mut ReportedPasses, page: &ControlPage) -> Vec<Option<u64>> {
        let number = |report| match report {
            EngineReport::PassBegun { pass } => Some(pass),
            EngineReport::PassEnded(times) => {
                assert_eq!(times.stall_ns, [20, 0]);
                None
            }
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| reported.next(page, 2)).map(number).collect()
    }

    #[test]
    fn a_pass_is_reported_when_it_begins_and_when_it_has_ended() {
        let page = ControlPage::create_with_passes(2).unwrap();
        let mut reported = ReportedPasses::after_all(&page);
        assert_eq!(numbers(&mut reported, &page), []);
        page.begin_pass();
        assert_eq!(numbers(&mut reported, &page), [Some(1)]);
        end(&page, 1);
        page.begin_pass();
        assert_eq!(numbers(&mut reported, &page), [None, Some(2)]);
        end(&page, 2);
        assert_eq!(numbers(&mut reported, &page), [None]);
    }

    #[test]
    fn of_several_passes_the_last_one_that_ended_is_reported() {
        let page = ControlPage::create_with_passes(2).unwrap();
        let mut reported = ReportedPasses::after_all(&page);
        (1..=5).for_each(|_| end(&page, page.begin_pass()));
        page.begin_pass();
        assert_eq!(numbers(&mut reported, &page), [Some(5), None, Some(6)]);
        assert_eq!(ReportedPasses::after_all(&page), ReportedPasses { begun: 6, ended: 6 });
    }

    #[test]
    fn compute_time_is_spread_over_the_layers() {
        let record = PassRecord { pass: 1, total_ns: 100, stall_ns: 20, tokens: 9, sequences: 2 };
        let times = step_times(record, 4);
        assert_eq!((times.layer_ns, times.stall_ns), (vec![20; 4], vec![20, 0, 0, 0]));
        assert!(!times.decode_only && times.shape.tokens == 9);
    }
}

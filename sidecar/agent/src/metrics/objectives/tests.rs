//! Tests with an explicit clock. The objectives are 2 s for a first token, and 50 ms plus 10 % for a later one.

use super::*;

struct TestClock {
    start: Instant,
    objectives: Objectives,
}

impl TestClock {
    fn new() -> TestClock {
        let start = Instant::now();
        let slo = SloConfig {
            ttft_milliseconds: 2_000,
            tbt_milliseconds: 50,
            window_seconds: 60,
            ..SloConfig::default()
        };
        TestClock { start, objectives: Objectives::new(start, &slo) }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn arrive(&mut self, ms: u64) -> usize {
        let at = self.at(ms);
        self.objectives.track_first(at)
    }

    /// Writes a token and with it everything that is ready.
    fn write(&mut self, key: usize, ms: u64) {
        let at = self.at(ms);
        self.objectives.on_written(key, at, 1);
        self.objectives.on_buffer_empty(key);
    }

    fn end(&mut self, key: usize, ms: u64, end: StreamEnd) {
        let at = self.at(ms);
        self.objectives.end(key, at, end);
    }

    /// Returns share, overdue, all and missed, for first tokens and for later ones.
    fn attainment_tuples(&mut self, ms: u64) -> [(Option<u32>, u32, u64, u64); 2] {
        let at = self.at(ms);
        let (ttft, tbt) = self.objectives.attainments(at);
        [ttft, tbt].map(|one| (one.permille, one.overdue, one.tokens, one.missed))
    }

    fn ttft(&mut self, ms: u64) -> (Option<u32>, u32, u64, u64) {
        self.attainment_tuples(ms)[0]
    }

    fn tbt(&mut self, ms: u64) -> (Option<u32>, u32, u64, u64) {
        self.attainment_tuples(ms)[1]
    }
}

const NONE: (Option<u32>, u32, u64, u64) = (None, 0, 0, 0);

#[test]
fn absent_first_token_is_missed_from_its_objective_on() {
    let mut run = TestClock::new();
    run.arrive(1_000);
    assert_eq!(run.attainment_tuples(3_000), [NONE, NONE], "2 s have passed, which is in time");
    assert_eq!(run.attainment_tuples(3_001), [(Some(0), 1, 1, 1), NONE]);
    assert_eq!(run.ttft(600_000), (Some(0), 1, 1, 1), "as long as it is awaited, whatever the window is");
}

#[test]
fn absent_next_token_is_missed_from_its_objective_on() {
    let mut run = TestClock::new();
    let answer = run.arrive(0);
    for ms in [100, 150, 200, 250] {
        run.write(answer, ms);
    }
    assert_eq!(run.tbt(305), (Some(1000), 0, 3, 0), "a tenth above the objective is in time");
    assert_eq!(run.attainment_tuples(306), [(Some(1000), 0, 1, 0), (Some(750), 1, 4, 1)]);
    assert_eq!(run.tbt(70_000), (Some(0), 1, 4, 1), "tokens in time have left the window, it has not");
}

#[test]
fn late_token_counts_once() {
    let mut run = TestClock::new();
    let answer = run.arrive(0);
    let overdue = run.ttft(5_000);
    assert_eq!(overdue, (Some(0), 1, 1, 1));
    run.write(answer, 5_000);
    assert_eq!(run.ttft(5_000), (Some(0), 0, 1, 1));
    let overdue = run.tbt(6_000);
    assert_eq!(overdue, (Some(0), 1, 1, 1));
    run.write(answer, 6_000);
    assert_eq!(run.tbt(6_000), (Some(0), 0, 1, 1));
    run.write(answer, 6_050);
    assert_eq!(run.tbt(6_050), (Some(500), 0, 2, 1));
}

#[test]
fn each_hung_stream_counts() {
    let mut run = TestClock::new();
    let answers: Vec<_> = (0..4).map(|_| run.arrive(0)).collect();
    answers[..3].iter().for_each(|answer| run.write(*answer, 1_000));
    run.write(answers[0], 1_050);
    assert_eq!(run.attainment_tuples(2_500), [(Some(750), 1, 4, 1), (Some(250), 3, 4, 3)]);
}

#[test]
fn ended_stream_has_no_pending_token() {
    let mut run = TestClock::new();
    let answer = run.arrive(0);
    run.write(answer, 100);
    run.end(answer, 150, StreamEnd::Closed);
    assert_eq!(run.attainment_tuples(9_000), [(Some(1000), 0, 1, 0), NONE]);
}

#[test]
fn client_disconnect_keeps_the_miss() {
    let mut run = TestClock::new();
    let [patient, hasty] = [run.arrive(0), run.arrive(0)];
    run.end(hasty, 1_999, StreamEnd::Closed);
    assert_eq!(run.ttft(1_999), NONE, "nothing was late when it left");
    run.end(patient, 2_001, StreamEnd::Closed);
    assert_eq!(run.ttft(2_001), (Some(0), 0, 1, 1));
}

#[test]
fn failed_token_is_missed_at_once() {
    let mut run = TestClock::new();
    let [first, later] = [run.arrive(0), run.arrive(0)];
    run.write(later, 100);
    run.end(first, 110, StreamEnd::Failed);
    run.end(later, 110, StreamEnd::Failed);
    assert_eq!(run.attainment_tuples(110), [(Some(500), 0, 2, 1), (Some(0), 0, 1, 1)]);
}

#[test]
fn slow_client_makes_nothing_overdue() {
    let mut run = TestClock::new();
    let answer = run.arrive(0);
    let at = run.at(100);
    run.objectives.on_written(answer, at, 1);
    assert_eq!(run.tbt(10_000), NONE, "more may be there, and the client takes none of it");
    run.objectives.on_buffer_empty(answer);
    assert_eq!(run.tbt(10_000), (Some(0), 1, 1, 1));
}

#[test]
fn tokens_written_together_count_one_wait() {
    let mut run = TestClock::new();
    let answer = run.arrive(0);
    assert_eq!(
        run.objectives.on_written(answer, run.start + Duration::from_millis(10), 3),
        TokenLatency::First(Duration::from_millis(10))
    );
    let took = run.objectives.on_written(answer, run.start + Duration::from_millis(110), 4);
    assert_eq!(took, TokenLatency::Next(Duration::from_millis(100)));
    assert_eq!(run.attainment_tuples(110), [(Some(1000), 0, 1, 0), (Some(750), 0, 4, 1)]);
}

/// Returns the tokens of the window, those that never arrived, and those that were missed asleep, for first tokens and
/// for later ones.
fn counts(run: &mut TestClock, ms: u64) -> [(u64, u64, u64); 2] {
    let at = run.at(ms);
    let (ttft, tbt) = run.objectives.attainments(at);
    [ttft, tbt].map(|one| (one.window.tokens, one.window.given_up, one.window.asleep))
}

#[test]
fn given_up_tokens_are_counted_apart_from_late_ones() {
    let mut run = TestClock::new();
    let [late, gone, failed, hasty] = [(); 4].map(|()| run.arrive(0));
    run.end(hasty, 100, StreamEnd::Closed);
    assert_eq!(counts(&mut run, 3_000), [(3, 0, 0), (0, 0, 0)], "overdue ones may still come");
    run.end(gone, 3_000, StreamEnd::Closed);
    run.end(failed, 3_000, StreamEnd::Failed);
    run.write(late, 3_000);
    assert_eq!(counts(&mut run, 3_000), [(3, 2, 0), (0, 0, 0)]);
    run.end(late, 4_000, StreamEnd::Closed);
    assert_eq!(counts(&mut run, 4_000), [(3, 2, 0), (1, 1, 0)], "it awaited its second token");
    assert_eq!(counts(&mut run, 70_000), [(0, 0, 0); 2], "out of the window");
}

#[test]
fn miss_during_ordered_sleep_is_attributed_to_sleep() {
    let mut run = TestClock::new();
    let [before, quick] = [run.arrive(0), run.arrive(0)];
    run.write(quick, 100);
    run.end(quick, 100, StreamEnd::Closed);
    run.objectives.set_asleep(true);
    let during = run.arrive(1_000);
    assert_eq!(
        counts(&mut run, 2_500)[0],
        (2, 0, 1),
        "the one that was in time, and the one that is overdue"
    );
    run.end(during, 4_000, StreamEnd::Failed);
    run.objectives.set_asleep(false);
    run.write(before, 5_000);
    assert_eq!(counts(&mut run, 5_000)[0], (3, 1, 2));
    let after = run.arrive(6_000);
    run.end(after, 9_000, StreamEnd::Closed);
    run.end(before, 9_000, StreamEnd::Closed);
    assert_eq!(counts(&mut run, 9_000), [(4, 2, 2), (1, 1, 0)], "what came later has other reasons");
}

#[test]
fn counters_never_fall() {
    let mut run = TestClock::new();
    let (mut before, mut keys) = ([(0, 0); 2], Vec::new());
    // A fixed sequence of arrivals, writes and ends, checked every 37 ms.
    for step in 0..2_000_u64 {
        let ms = step * 37;
        match step % 7 {
            0 => keys.push(run.arrive(ms)),
            1 | 3 => keys.iter().filter(|key| (**key as u64 + step).is_multiple_of(11)).for_each(|key| {
                let at = run.start + Duration::from_millis(ms);
                run.objectives.on_written(*key, at, 1);
                run.objectives.on_buffer_empty(*key);
            }),
            5 if keys.len() > 3 => {
                let end = [StreamEnd::Closed, StreamEnd::Failed][step as usize % 2];
                run.end(keys.remove(0), ms, end);
            }
            _ => {}
        }
        let now = run.attainment_tuples(ms).map(|(_, _, tokens, missed)| (tokens, missed));
        let falls = now.iter().zip(before).any(|(now, before)| now.0 < before.0 || now.1 < before.1);
        assert!(!falls, "at {ms} ms: {before:?}, then {now:?}");
        before = now;
    }
    assert!(before[0].1 > 0 && before[1].1 > 0, "the walk misses both objectives: {before:?}");
}

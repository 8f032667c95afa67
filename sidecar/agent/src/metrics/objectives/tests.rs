//! By an explicit clock: a first token has 2 s, a later one 50 ms and a tenth.

use super::*;

struct Run {
    start: Instant,
    objectives: Objectives,
}

impl Run {
    fn new() -> Run {
        let start = Instant::now();
        let slo = SloConfig {
            ttft_milliseconds: 2_000,
            tbt_milliseconds: 50,
            window_seconds: 60,
            ..SloConfig::default()
        };
        Run { start, objectives: Objectives::new(start, &slo) }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn arrives(&mut self, ms: u64) -> usize {
        let at = self.at(ms);
        self.objectives.first(at)
    }

    /// A token is written, and everything that has come is written with it.
    fn written(&mut self, key: usize, ms: u64) {
        let at = self.at(ms);
        self.objectives.written(key, at, 1);
        self.objectives.nothing_there(key);
    }

    fn end(&mut self, key: usize, ms: u64, end: End) {
        let at = self.at(ms);
        self.objectives.end(key, at, end);
    }

    /// Share, overdue, all and missed: of first tokens, and of later ones.
    fn told(&mut self, ms: u64) -> [(Option<u32>, u32, u64, u64); 2] {
        let at = self.at(ms);
        let (ttft, tbt) = self.objectives.attainments(at);
        [ttft, tbt].map(|one| (one.permille, one.overdue, one.tokens, one.missed))
    }

    fn ttft(&mut self, ms: u64) -> (Option<u32>, u32, u64, u64) {
        self.told(ms)[0]
    }

    fn tbt(&mut self, ms: u64) -> (Option<u32>, u32, u64, u64) {
        self.told(ms)[1]
    }
}

const NONE: (Option<u32>, u32, u64, u64) = (None, 0, 0, 0);

#[test]
fn a_first_token_that_does_not_come_is_missed_from_its_objective_on() {
    let mut run = Run::new();
    run.arrives(1_000);
    assert_eq!(run.told(3_000), [NONE, NONE], "2 s have passed, which is in time");
    assert_eq!(run.told(3_001), [(Some(0), 1, 1, 1), NONE]);
    assert_eq!(run.ttft(600_000), (Some(0), 1, 1, 1), "as long as it is awaited, whatever the window is");
}

#[test]
fn a_later_token_that_does_not_come_is_missed_from_its_objective_on() {
    let mut run = Run::new();
    let answer = run.arrives(0);
    for ms in [100, 150, 200, 250] {
        run.written(answer, ms);
    }
    assert_eq!(run.tbt(305), (Some(1000), 0, 3, 0), "a tenth above the objective is in time");
    assert_eq!(run.told(306), [(Some(1000), 0, 1, 0), (Some(750), 1, 4, 1)]);
    assert_eq!(run.tbt(70_000), (Some(0), 1, 4, 1), "tokens in time have left the window, it has not");
}

#[test]
fn a_token_that_comes_late_counts_once() {
    let mut run = Run::new();
    let answer = run.arrives(0);
    let overdue = run.ttft(5_000);
    assert_eq!(overdue, (Some(0), 1, 1, 1));
    run.written(answer, 5_000);
    assert_eq!(run.ttft(5_000), (Some(0), 0, 1, 1));
    let overdue = run.tbt(6_000);
    assert_eq!(overdue, (Some(0), 1, 1, 1));
    run.written(answer, 6_000);
    assert_eq!(run.tbt(6_000), (Some(0), 0, 1, 1));
    run.written(answer, 6_050);
    assert_eq!(run.tbt(6_050), (Some(500), 0, 2, 1));
}

#[test]
fn each_of_many_answers_that_hang_counts() {
    let mut run = Run::new();
    let answers: Vec<_> = (0..4).map(|_| run.arrives(0)).collect();
    answers[..3].iter().for_each(|answer| run.written(*answer, 1_000));
    run.written(answers[0], 1_050);
    assert_eq!(run.told(2_500), [(Some(750), 1, 4, 1), (Some(250), 3, 4, 3)]);
}

#[test]
fn an_answer_that_ends_awaits_nothing() {
    let mut run = Run::new();
    let answer = run.arrives(0);
    run.written(answer, 100);
    run.end(answer, 150, End::Gone);
    assert_eq!(run.told(9_000), [(Some(1000), 0, 1, 0), NONE]);
}

#[test]
fn a_client_that_gives_up_does_not_undo_the_miss() {
    let mut run = Run::new();
    let [patient, hasty] = [run.arrives(0), run.arrives(0)];
    run.end(hasty, 1_999, End::Gone);
    assert_eq!(run.ttft(1_999), NONE, "nothing was late when it left");
    run.end(patient, 2_001, End::Gone);
    assert_eq!(run.ttft(2_001), (Some(0), 0, 1, 1));
}

#[test]
fn a_token_that_the_server_fails_to_make_is_missed_at_once() {
    let mut run = Run::new();
    let [first, later] = [run.arrives(0), run.arrives(0)];
    run.written(later, 100);
    run.end(first, 110, End::Failed);
    run.end(later, 110, End::Failed);
    assert_eq!(run.told(110), [(Some(500), 0, 2, 1), (Some(0), 0, 1, 1)]);
}

#[test]
fn a_client_that_does_not_read_makes_nothing_overdue() {
    let mut run = Run::new();
    let answer = run.arrives(0);
    let at = run.at(100);
    run.objectives.written(answer, at, 1);
    assert_eq!(run.tbt(10_000), NONE, "more may be there, and the client takes none of it");
    run.objectives.nothing_there(answer);
    assert_eq!(run.tbt(10_000), (Some(0), 1, 1, 1));
}

#[test]
fn tokens_that_are_written_together_waited_once() {
    let mut run = Run::new();
    let answer = run.arrives(0);
    assert_eq!(
        run.objectives.written(answer, run.start + Duration::from_millis(10), 3),
        Took::First(Duration::from_millis(10))
    );
    let took = run.objectives.written(answer, run.start + Duration::from_millis(110), 4);
    assert_eq!(took, Took::Later(Duration::from_millis(100)));
    assert_eq!(run.told(110), [(Some(1000), 0, 1, 0), (Some(750), 0, 4, 1)]);
}

/// Tokens of the window, those that never came, and those that were missed asleep: of first tokens, and of later ones.
fn counts(run: &mut Run, ms: u64) -> [(u64, u64, u64); 2] {
    let at = run.at(ms);
    let (ttft, tbt) = run.objectives.attainments(at);
    [ttft, tbt].map(|one| (one.window.tokens, one.window.given_up, one.window.asleep))
}

#[test]
fn tokens_that_never_come_are_counted_apart_from_late_ones() {
    let mut run = Run::new();
    let [late, gone, failed, hasty] = [(); 4].map(|()| run.arrives(0));
    run.end(hasty, 100, End::Gone);
    assert_eq!(counts(&mut run, 3_000), [(3, 0, 0), (0, 0, 0)], "overdue ones may still come");
    run.end(gone, 3_000, End::Gone);
    run.end(failed, 3_000, End::Failed);
    run.written(late, 3_000);
    assert_eq!(counts(&mut run, 3_000), [(3, 2, 0), (0, 0, 0)]);
    run.end(late, 4_000, End::Gone);
    assert_eq!(counts(&mut run, 4_000), [(3, 2, 0), (1, 1, 0)], "it awaited its second token");
    assert_eq!(counts(&mut run, 70_000), [(0, 0, 0); 2], "out of the window");
}

#[test]
fn a_miss_is_put_down_to_sleep_where_the_tenant_slept_by_order_meanwhile() {
    let mut run = Run::new();
    let [before, quick] = [run.arrives(0), run.arrives(0)];
    run.written(quick, 100);
    run.end(quick, 100, End::Gone);
    run.objectives.set_asleep(true);
    let during = run.arrives(1_000);
    assert_eq!(
        counts(&mut run, 2_500)[0],
        (2, 0, 1),
        "the one that was in time, and the one that is overdue"
    );
    run.end(during, 4_000, End::Failed);
    run.objectives.set_asleep(false);
    run.written(before, 5_000);
    assert_eq!(counts(&mut run, 5_000)[0], (3, 1, 2));
    let after = run.arrives(6_000);
    run.end(after, 9_000, End::Gone);
    run.end(before, 9_000, End::Gone);
    assert_eq!(counts(&mut run, 9_000), [(4, 2, 2), (1, 1, 0)], "what came later has other reasons");
}

#[test]
fn counters_never_fall() {
    let mut run = Run::new();
    let (mut before, mut keys) = ([(0, 0); 2], Vec::new());
    // A fixed walk through arrivals, writes and ends, looked at every 37 ms.
    for step in 0..2_000_u64 {
        let ms = step * 37;
        match step % 7 {
            0 => keys.push(run.arrives(ms)),
            1 | 3 => keys.iter().filter(|key| (**key as u64 + step).is_multiple_of(11)).for_each(|key| {
                let at = run.start + Duration::from_millis(ms);
                run.objectives.written(*key, at, 1);
                run.objectives.nothing_there(*key);
            }),
            5 if keys.len() > 3 => {
                let end = [End::Gone, End::Failed][step as usize % 2];
                run.end(keys.remove(0), ms, end);
            }
            _ => {}
        }
        let now = run.told(ms).map(|(_, _, tokens, missed)| (tokens, missed));
        let falls = now.iter().zip(before).any(|(now, before)| now.0 < before.0 || now.1 < before.1);
        assert!(!falls, "at {ms} ms: {before:?}, then {now:?}");
        before = now;
    }
    assert!(before[0].1 > 0 && before[1].1 > 0, "the walk misses both objectives: {before:?}");
}

//! Tokens that never came, tokens that were missed in a sleep by order, and what ends such a sleep.

use sluice_wire::State;
use sluice_wire::config::LimitsConfig;
use sluice_wire::state::{Phase, SloState, TokenCounts};

use super::reason::{Level, Reason};

/// Whether an order put the tenant to sleep, and it sleeps.
pub fn is_manually_suspended(state: &State) -> bool {
    state.phase == Phase::Hibernated && state.sleep_ordered
}

/// How to wake a tenant that was put to sleep by a user. Shown while requests wait.
pub fn sleep_reason(state: &State) -> Option<Reason> {
    let level = if state.queue.waiting > 0 { Level::Watch } else { Level::Fine };
    let text = || {
        format!(
            "Asleep by hand: no request wakes it. On this machine: `sluice wake {}/{}`; in a cluster: POST \
             /wake_up at the admin port. Requests wait for at most limits.holdSeconds (default {} s) and \
             then fail.",
            state.tenant.namespace,
            state.tenant.name,
            LimitsConfig::default().hold_seconds
        )
    };
    is_manually_suspended(state).then(|| Reason::new(level, "sleep", text()))
}

/// Missing tokens of the windows of both objectives, and those missed during a sleep that a user ordered. Shown if
/// the objective is missed.
pub fn token_reasons(state: &State) -> Vec<Reason> {
    let slo = &state.slo;
    let level = |attained: Option<u32>| match attained {
        Some(attained) if attained < promised_permille(slo) => Level::Watch,
        _ => Level::Fine,
    };
    let (ttft, tbt) = (level(slo.ttft_attained_permille), level(slo.tbt_attained_permille));
    let (first, later, window) = (&slo.ttft_window, &slo.tbt_window, slo.window_seconds);
    let texts = [
        (ttft, abandoned_requests_text(first, window)),
        (ttft, missed_while_asleep_text(first, "first", window)),
        (tbt, abandoned_answers_text(later, window)),
        (tbt, missed_while_asleep_text(later, "later", window)),
    ];
    texts.into_iter().filter_map(|(level, text)| Some(Reason::new(level, "missed", text?))).collect()
}

/// Of the requests in the window.
fn abandoned_requests_text(first: &TokenCounts, window_seconds: u32) -> Option<String> {
    let of = format!("{} of {} requests of the last {window_seconds} s", first.given_up, first.tokens);
    match first.given_up {
        0 => None,
        1 => Some(format!(
            "{of} was given up before its first token. It counts as missed, and P99 does not include it."
        )),
        _ => Some(format!(
            "{of} were given up before their first token. They count as missed, and P99 does not include them."
        )),
    }
}

/// Of the answers that had begun.
fn abandoned_answers_text(later: &TokenCounts, window_seconds: u32) -> Option<String> {
    let window = format!("in the last {window_seconds} s");
    match later.given_up {
        0 => None,
        1 => Some(format!(
            "1 answer was given up {window} before its next token. That token counts as missed, and P99 \
             does not include it."
        )),
        many => Some(format!(
            "{many} answers were given up {window} before their next token. These tokens count as missed, \
             and P99 does not include them."
        )),
    }
}

fn missed_while_asleep_text(counts: &TokenCounts, which: &str, window_seconds: u32) -> Option<String> {
    let TokenCounts { asleep, tokens, .. } = *counts;
    let were = if asleep == 1 { "was" } else { "were" };
    (asleep > 0).then(|| {
        format!(
            "{asleep} of {tokens} {which} tokens of the last {window_seconds} s {were} missed because the tenant was asleep by \
             hand."
        )
    })
}

/// Share of tokens that the objectives promise in time, permille.
pub const fn promised_permille(slo: &SloState) -> u32 {
    1000_u32.saturating_sub(slo.allowed_miss_permille)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(first: TokenCounts, later: TokenCounts) -> State {
        let mut state = State::default();
        (state.tenant.namespace, state.tenant.name) = ("team".into(), "chat".into());
        (state.slo.window_seconds, state.slo.allowed_miss_permille) = (60, 10);
        (state.slo.ttft_window, state.slo.tbt_window) = (first, later);
        state
    }

    #[test]
    fn requests_without_a_first_token_explain_a_share_below_what_p99_says() {
        let given_up = |given_up| TokenCounts { tokens: 3, given_up, asleep: 0 };
        let mut state = state(given_up(1), TokenCounts::default());
        state.slo.ttft_attained_permille = Some(666);
        let one = "1 of 3 requests of the last 60 s was given up before its first token. It counts as \
                   missed, and P99 does not include it.";
        assert_eq!(token_reasons(&state), [Reason::new(Level::Watch, "missed", one.into())]);
        state.slo.ttft_window = given_up(2);
        let two = "2 of 3 requests of the last 60 s were given up before their first token. They count as \
                   missed, and P99 does not include them.";
        assert_eq!(token_reasons(&state)[0].text, two);
        state.slo.ttft_attained_permille = Some(990);
        assert_eq!(token_reasons(&state)[0].level, Level::Fine, "as many as may be");
        state.slo.ttft_window = given_up(0);
        assert!(token_reasons(&state).is_empty());
    }

    #[test]
    fn tokens_missed_while_asleep_are_reported_per_objective() {
        let first = TokenCounts { tokens: 3, given_up: 0, asleep: 1 };
        let mut state = state(first, TokenCounts { tokens: 90, given_up: 2, asleep: 2 });
        state.slo.tbt_attained_permille = Some(900);
        let found: Vec<_> = token_reasons(&state).into_iter().map(|one| (one.level, one.text)).collect();
        let expected = [
            (
                Level::Fine,
                "1 of 3 first tokens of the last 60 s was missed because the tenant was asleep by hand.",
            ),
            (
                Level::Watch,
                "2 answers were given up in the last 60 s before their next token. These tokens count as \
                 missed, and P99 does not include them.",
            ),
            (
                Level::Watch,
                "2 of 90 later tokens of the last 60 s were missed because the tenant was asleep by hand.",
            ),
        ];
        assert_eq!(found, expected.map(|(level, text)| (level, text.to_owned())));
    }

    #[test]
    fn suspended_tenant_names_wake_command() {
        let mut state = state(TokenCounts::default(), TokenCounts::default());
        (state.phase, state.sleep_ordered) = (Phase::Hibernated, true);
        let reason = sleep_reason(&state).unwrap();
        assert!(
            reason.text.contains("`sluice wake team/chat`; in a cluster: POST /wake_up at the admin port"),
            "{reason:?}"
        );
        assert_eq!(reason.level, Level::Fine);
        state.queue.waiting = 1;
        assert_eq!(
            sleep_reason(&state).map(|reason| reason.level),
            Some(Level::Watch),
            "a request waits for it"
        );
        for (phase, ordered) in [(Phase::Hibernated, false), (Phase::Active, true), (Phase::Waking, true)] {
            (state.phase, state.sleep_ordered) = (phase, ordered);
            assert_eq!(sleep_reason(&state), None, "{phase:?}");
        }
    }
}

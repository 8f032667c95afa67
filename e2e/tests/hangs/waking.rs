//! A process is stopped while its tenant wakes.

use std::time::Instant;

use rustix::process::Signal;
use sluice_e2e::hang_limit::HangLimit;
use sluice_wire::State;
use sluice_wire::state::Phase;

use super::{HANG_TIMEOUT, Stopped, process};
use crate::support::tenant::{greedy, prompt};
use crate::support::{TestEnv, Yaml, processes};

/// 16 layers of 1.3 MiB over a link of 8 MiB/s: it wakes for seconds.
const SLEEPER: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 8 --intermediate 512";
const ASLEEP: &str = "pacing: {mode: Immediate}, memory: {hostKv: 8Mi}, \
                      idle: {afterSeconds: 1, hibernateAfterSeconds: 2}, drainSeconds: 2";

#[tokio::test(flavor = "multi_thread")]
async fn process_stopped_during_wake_is_replaced_and_peer_continues() {
    let world = TestEnv::new();
    let mut yaml = Yaml::pool("72Mi");
    for (seed, (name, spec)) in
        [("sleeper", ASLEEP), ("other", "pacing: {mode: Immediate}, drainSeconds: 2")].into_iter().enumerate()
    {
        let folder = world.model(&format!("model-{name}"), &format!("{SLEEPER} --seed {seed}"));
        yaml = yaml.tenant(name, &folder, ", maxModelLen: 256", spec);
    }
    (yaml.link, yaml.chunk) = (Some("8Mi"), Some("64Ki"));
    yaml.sharing = Some("{mode: Temporal, temporal: {order: RoundRobin}}");
    let mut up = world.up(&yaml, &["--poison"]);
    let (mut sleeper, other) = (up.ready("sleeper").await, up.ready("other").await);
    let question = greedy(&prompt(1, 60), 20);
    let (answer, theirs) =
        (sleeper.complete(&question).await.unwrap(), other.complete(&question).await.unwrap());
    let begun = Instant::now();
    assert_eq!(other.complete(&question).await.unwrap(), theirs);
    let usual = begun.elapsed();
    for stopped in [Stopped::Worker, Stopped::Supervisor, Stopped::Sidecar] {
        let asleep = |state: &State| state.phase == Phase::Hibernated && state.engine.pid.is_some();
        sleeper.until("it hibernates", asleep).await;
        let woken = tokio::spawn({
            let (tenant, body) = (sleeper.clone(), question.clone());
            async move { tenant.complete(&body).await }
        });
        let state = sleeper.until("it wakes", |state| state.phase == Phase::Waking).await;
        let pid = process(&sleeper, &state, stopped);
        processes::signal(pid, Signal::STOP);
        let bound = HangLimit::start(&other.state().await, HANG_TIMEOUT);
        assert_eq!(other.complete(&question).await.unwrap(), theirs, "its peer");
        let (took, allowed) = (bound.elapsed(), bound.allows() + 3 * usual);
        eprintln!("{stopped:?} stopped while waking: the peer answered after {took:?}");
        assert!(took <= allowed, "{took:?}, {allowed:?} are allowed");
        let woken = woken.await.unwrap();
        match stopped {
            Stopped::Sidecar => {
                assert!(woken.is_err(), "what was cut must not look whole");
                sleeper = up.ready_again("sleeper", 2).await;
            }
            Stopped::Supervisor => {
                assert_eq!(woken.unwrap(), answer, "its tenant wakes without it");
                processes::signal(pid, Signal::CONT);
            }
            Stopped::Worker => assert_eq!(woken.unwrap(), answer),
        }
        assert_eq!(processes::alive(pid), stopped == Stopped::Supervisor, "{stopped:?}");
        assert_eq!(sleeper.complete(&question).await.unwrap(), answer);
    }
    up.end_cleanly().await;
}

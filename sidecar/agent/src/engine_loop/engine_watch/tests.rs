//! Tests with a sleeping process as engine, a control page, and simulated time.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sluice_policy::hang::{FLOOR_NS, UNKNOWN_NS};

use super::*;

const FLOOR: Duration = Duration::from_nanos(FLOOR_NS);
const UNKNOWN: Duration = Duration::from_nanos(UNKNOWN_NS);
const SECOND: Duration = Duration::from_secs(1);
const STEP: Work = Work::Step { tokens: 4 };

struct FakeEngine {
    engine: Child,
    supervisor: Child,
    page: Arc<ControlPage>,
    watch: EngineWatch,
    now: Instant,
}

/// Starts a process that exits by itself, so that a test never waits forever for its exit.
fn sleeper() -> Child {
    Command::new("sleep").arg("30").spawn().unwrap()
}

fn process(child: &Child) -> Arc<PeerProcess> {
    Arc::new(PeerProcess::new(pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap()))
}

impl FakeEngine {
    fn new(floor: Duration) -> FakeEngine {
        let page = Arc::new(ControlPage::create(2).unwrap());
        let (engine, supervisor) = (sleeper(), sleeper());
        let mut watch = EngineWatch::new(page.clone(), floor);
        watch.on_attached(process(&engine), process(&supervisor));
        FakeEngine { engine, supervisor, page, watch, now: Instant::now() }
    }

    /// Polls for `time` an engine that has `work`. Returns whether a poll found it hung.
    fn poll_for(&mut self, time: Duration, number: u64, work: Work) -> bool {
        let until = self.now + time;
        let mut hung = false;
        while self.now < until {
            self.now += POLL_INTERVAL;
            hung |= self.watch.poll(self.now, Some(PendingWork { number, work }), 0);
        }
        hung
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        for child in [&mut self.engine, &mut self.supervisor] {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn hung_engine_is_killed_at_deadline_and_reported() {
    let mut played = FakeEngine::new(FLOOR);
    assert!(!played.poll_for(UNKNOWN - SECOND, 1, STEP), "a first step has the limit of unknown work");
    played.watch.on_step_done(4, 100 * SECOND / 1000);
    assert!(!played.poll_for(FLOOR, 2, STEP));
    assert!(played.poll_for(SECOND, 2, STEP), "twice a step and the floor are over");
    assert_eq!(played.engine.wait().unwrap().signal(), Some(9));
    let hang = played.watch.last_hang().unwrap();
    assert_eq!((played.watch.hangs(), hang.during.as_str(), hang.alive), (1, "step", true));
    assert_eq!(hang.limit_ms, 2_200);
    assert!(!played.poll_for(10 * SECOND, 2, STEP), "it is killed once");
    played.watch.on_lost();
    assert!(!played.watch.last_hang().unwrap().alive, "its death is confirmed");
}

#[test]
fn engine_with_progress_is_not_killed() {
    let mut played = FakeEngine::new(FLOOR);
    played.watch.on_step_done(4, SECOND / 10);
    for _ in 0..30 {
        assert!(!played.poll_for(SECOND, 1, STEP));
        played.page.begin_layer();
    }
    let mut carried = 0;
    for _ in 0..600 {
        (played.now, carried) = (played.now + POLL_INTERVAL, carried + 1);
        assert!(!played.watch.poll(played.now, Some(PendingWork { number: 2, work: STEP }), carried));
    }
    assert!(!played.poll_for(SECOND, 3, STEP), "each order has its own time");
    assert!(!played.poll_for(SECOND, 4, STEP));
    played.now += UNKNOWN;
    assert!(
        !played.watch.poll(played.now, Some(PendingWork { number: 4, work: STEP }), carried),
        "one look, however long"
    );
}

#[test]
fn slice_is_extended_only_within_known_step_limit() {
    let mut played = FakeEngine::new(600 * SECOND);
    let most = FLOOR - SECOND / 2;
    let lasts = |played: &FakeEngine| played.watch.slice_extension(most);
    assert_eq!(lasts(&played), Some(most), "its engine has nothing to do");
    played.poll_for(FLOOR - SECOND, 1, STEP);
    let left = lasts(&played).expect("it has a second left");
    assert!(
        left > SECOND && left < SECOND + 4 * POLL_INTERVAL,
        "no further than its limit and a look: {left:?}"
    );
    assert!(!played.poll_for(2 * SECOND, 1, STEP), "by its own floor it does not hang");
    assert_eq!(lasts(&played), None, "its neighbours wait no longer");
    played.watch.on_overtaken();
    played.poll_for(2 * FLOOR - SECOND, 2, STEP);
    assert!(lasts(&played).is_some(), "the next turn is twice as long");
}

#[test]
fn stopped_supervisor_is_killed_after_other_engine_is_refused() {
    let mut played = FakeEngine::new(FLOOR);
    if WatchedProcess::new(process(&played.supervisor).pidfd()).run_count().is_none() {
        println!("skipped: this kernel has no schedstat");
        return;
    }
    let pid = Pid::from_child(&played.supervisor);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    played.watch.on_lost();
    // A refused engine was never attached, but its loss is reported as well.
    played.watch.on_lost();
    // At least a quarter of the time counts, however slow the node is.
    let until = played.now + 4 * SUPERVISOR_LIMIT + 10 * SECOND;
    while played.now < until {
        played.now += SECOND;
        assert!(!played.watch.poll(played.now, None, 0));
    }
    assert!(
        process(&played.supervisor).wait_exit(SECOND).unwrap(),
        "a process that is stopped ends by a signal alone"
    );
    assert_eq!(played.supervisor.wait().unwrap().signal(), Some(9));
    let hang = played.watch.last_hang().unwrap();
    assert_eq!((played.watch.hangs(), hang.during.as_str(), hang.alive), (1, "supervisor", false));
}

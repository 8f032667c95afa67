//! An engine that the test plays: a process that sleeps, and a control page. Time is the test's own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sluice_policy::hang::{FLOOR_NS, UNKNOWN_NS};

use super::*;

const FLOOR: Duration = Duration::from_nanos(FLOOR_NS);
const UNKNOWN: Duration = Duration::from_nanos(UNKNOWN_NS);
const SECOND: Duration = Duration::from_secs(1);
const STEP: Work = Work::Step { tokens: 4 };

struct Played {
    engine: Child,
    supervisor: Child,
    page: Arc<ControlPage>,
    watch: EngineWatch,
    now: Instant,
}

/// It ends by itself, so that a test that expects its death does not wait for ever.
fn sleeper() -> Child {
    Command::new("sleep").arg("30").spawn().unwrap()
}

fn process(child: &Child) -> Arc<PeerProcess> {
    Arc::new(PeerProcess::new(pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap()))
}

impl Played {
    fn new(floor: Duration) -> Played {
        let page = Arc::new(ControlPage::create(2).unwrap());
        let (engine, supervisor) = (sleeper(), sleeper());
        let mut watch = EngineWatch::new(page.clone(), floor);
        watch.attached(process(&engine), process(&supervisor));
        Played { engine, supervisor, page, watch, now: Instant::now() }
    }

    /// Looks for this long at an engine with `work`. Whether a look found that it hangs.
    fn look_for(&mut self, time: Duration, number: u64, work: Work) -> bool {
        let until = self.now + time;
        let mut hung = false;
        while self.now < until {
            self.now += LOOK;
            hung |= self.watch.look(self.now, Some(Ordered { number, work }), 0);
        }
        hung
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        for child in [&mut self.engine, &mut self.supervisor] {
            // It may be dead already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn an_engine_without_progress_is_killed_at_its_deadline_and_told() {
    let mut played = Played::new(FLOOR);
    assert!(!played.look_for(UNKNOWN - SECOND, 1, STEP), "a first step has the limit of unknown work");
    played.watch.step_done(4, 100 * SECOND / 1000);
    assert!(!played.look_for(FLOOR, 2, STEP));
    assert!(played.look_for(SECOND, 2, STEP), "twice a step and the floor are over");
    assert_eq!(played.engine.wait().unwrap().signal(), Some(9));
    let hang = played.watch.last_hang().unwrap();
    assert_eq!((played.watch.hangs(), hang.during.as_str(), hang.alive), (1, "step", true));
    assert_eq!(hang.limit_ms, 2_200);
    assert!(!played.look_for(10 * SECOND, 2, STEP), "it is killed once");
    played.watch.lost();
    assert!(!played.watch.last_hang().unwrap().alive, "its death is confirmed");
}

#[test]
fn an_engine_that_begins_layers_or_waits_for_a_copy_that_gets_on_is_not_killed() {
    let mut played = Played::new(FLOOR);
    played.watch.step_done(4, SECOND / 10);
    for _ in 0..30 {
        assert!(!played.look_for(SECOND, 1, STEP));
        played.page.begin_layer();
    }
    let mut carried = 0;
    for _ in 0..600 {
        (played.now, carried) = (played.now + LOOK, carried + 1);
        assert!(!played.watch.look(played.now, Some(Ordered { number: 2, work: STEP }), carried));
    }
    assert!(!played.look_for(SECOND, 3, STEP), "each order has its own time");
    assert!(!played.look_for(SECOND, 4, STEP));
    played.now += UNKNOWN;
    assert!(
        !played.watch.look(played.now, Some(Ordered { number: 4, work: STEP }), carried),
        "one look, however long"
    );
}

#[test]
fn a_holder_extends_its_turn_for_no_unknown_step_and_for_no_floor_of_its_own() {
    let mut played = Played::new(600 * SECOND);
    let most = FLOOR - SECOND / 2;
    let lasts = |played: &Played| played.watch.turn_lasts(most);
    assert_eq!(lasts(&played), Some(most), "its engine has nothing to do");
    played.look_for(FLOOR - SECOND, 1, STEP);
    let left = lasts(&played).expect("it has a second left");
    assert!(left > SECOND && left < SECOND + 4 * LOOK, "no further than its limit and a look: {left:?}");
    assert!(!played.look_for(2 * SECOND, 1, STEP), "by its own floor it does not hang");
    assert_eq!(lasts(&played), None, "its neighbours wait no longer");
    played.watch.overtaken();
    played.look_for(2 * FLOOR - SECOND, 2, STEP);
    assert!(lasts(&played).is_some(), "the next turn is twice as long");
}

#[test]
fn a_supervisor_that_does_not_run_is_killed_also_when_a_stranger_was_refused_meanwhile() {
    let mut played = Played::new(FLOOR);
    if Watched::of(process(&played.supervisor).pidfd()).runs().is_none() {
        println!("skipped: this kernel has no schedstat");
        return;
    }
    let pid = Pid::from_child(&played.supervisor);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    played.watch.lost();
    // An engine that was refused was never attached; its end is told as well.
    played.watch.lost();
    // A quarter of the time counts at least, however slow the node is meanwhile.
    let until = played.now + 4 * SUPERVISOR_LIMIT + 10 * SECOND;
    while played.now < until {
        played.now += SECOND;
        assert!(!played.watch.look(played.now, None, 0));
    }
    assert!(
        process(&played.supervisor).dead_within(SECOND).unwrap(),
        "a process that is stopped ends by a signal alone"
    );
    assert_eq!(played.supervisor.wait().unwrap().signal(), Some(9));
    let hang = played.watch.last_hang().unwrap();
    assert_eq!((played.watch.hangs(), hang.during.as_str(), hang.alive), (1, "supervisor", false));
}

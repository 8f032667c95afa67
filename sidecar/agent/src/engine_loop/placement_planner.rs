//! Computes plans on a separate thread, so that no step waits for one.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use sluice_policy::ids::Nanos;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};
use sluice_ports::PlacementPlanner;

/// Handle of the planner thread. The thread ends when the handle is dropped.
#[derive(Debug)]
pub struct PlannerThread {
    requests: Sender<PlanRequest>,
    answers: Receiver<PlanAnswer>,
}

impl PlannerThread {
    /// Starts the thread. Calls `wake` after each answer.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(wake: impl Fn() + Send + 'static) -> io::Result<PlannerThread> {
        let (questions, asked) = channel::<PlanRequest>();
        let (answer, answers) = channel();
        Builder::new().name("planner".into()).spawn(move || {
            while let Ok(request) = asked.recv() {
                if answer.send(request.solve()).is_err() {
                    return;
                }
                wake();
            }
        })?;
        Ok(PlannerThread { requests: questions, answers })
    }
}

impl PlacementPlanner for PlannerThread {
    fn submit(&mut self, _now: Nanos, request: PlanRequest) {
        self.requests.send(request).expect("the planner's thread runs as long as the engine loop");
    }

    fn poll(&mut self, _now: Nanos) -> Option<PlanAnswer> {
        self.answers.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluice_policy::placement_planner::link::Link;
    use sluice_policy::placement_planner::request::RequestState;

    use super::*;

    #[test]
    fn plan_is_made_off_thread_and_wakes_engine_loop() {
        let (woken, wakes) = channel();
        let mut planner = PlannerThread::start(move || {
            let _ = woken.send(());
        })
        .expect("a thread");
        let one = RequestState { full: 4, tails: 1, immune: true, ..RequestState::default() };
        let request = PlanRequest {
            id: 7,
            layers: 8,
            layer_block_bytes: 100,
            running: vec![one; 2],
            waiting: Vec::new(),
            capacity_bytes: 7_200,
            compute_ns: vec![1_000; 8],
            kv_block_ns: 0,
            overhead_ns: 0,
            link: Link::fluid(1_000_000_000),
            window: 4,
            tbt_ns: 0,
            allowed_permille: 0,
            expansions: 1_000,
            alike: false,
        };
        planner.submit(Nanos(0), request.clone());
        wakes.recv_timeout(Duration::from_secs(60)).expect("the room is woken");
        let answer = planner.poll(Nanos(1)).expect("an answer is there when the room is woken");
        assert_eq!(answer, request.solve());
        assert!(
            answer.result.is_some_and(|found| found.chosen.iter().any(|at| *at > 0)),
            "something is away"
        );
    }
}

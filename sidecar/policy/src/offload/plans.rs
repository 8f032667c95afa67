//! Plans of KV placement: the requested plan, the plan in force, and its steps that are still to be carried out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use sluice_common::random::mix;

use crate::ids::{LayerId, RequestId};
use crate::placement_planner::request::{PlanAnswer, PlanResult, options};

/// A requested plan, and the requests that it is for.
#[derive(Clone, Debug)]
pub struct PlanInFlight {
    id: u64,
    running: Vec<RequestId>,
    waiting: Vec<RequestId>,
}

impl PlanInFlight {
    /// Returns the running requests that the plan is for.
    pub fn running(&self) -> &[RequestId] {
        &self.running
    }

    /// Returns the running requests of the plan, in the order in which it places them.
    pub fn placed_requests(&self, found: &PlanResult) -> Vec<RequestId> {
        let (paused, admitted) = (usize::from(found.paused), usize::from(found.admitted));
        self.running[paused..].iter().chain(&self.waiting[..admitted]).copied().collect()
    }

    fn is_answered_by(&self, found: &PlanResult, options: usize) -> bool {
        let (paused, admitted) = (usize::from(found.paused), usize::from(found.admitted));
        paused <= self.running.len()
            && admitted <= self.waiting.len()
            && found.chosen.len() == self.running.len() - paused + admitted
            && found.chosen.iter().all(|at| usize::from(*at) < options)
    }
}

/// Requests for plans, and their answers. Steps are the clock.
#[derive(Clone, Debug)]
pub struct PlacementPlans {
    /// The sets of layers to choose from.
    options: Vec<Vec<u16>>,
    /// Plans requested so far: the id of the last one.
    last_plan_id: u64,
    /// A plan is due and was not requested yet.
    is_plan_due: bool,
    in_flight: Option<PlanInFlight>,
    answer: Option<PlanAnswer>,
    /// Requests that run by the plan, and those that it admitted, each with its offloaded layers.
    planned_requests: BTreeSet<RequestId>,
    admitted: BTreeMap<RequestId, Vec<LayerId>>,
    /// Requests that the plan pauses, until the scheduler takes them.
    pauses: Vec<RequestId>,
    /// The queue head that is not admitted yet, and the head for which the plan was requested.
    blocked_head: Option<RequestId>,
    planned_head: Option<RequestId>,
    /// An admitted request waits only for the end of fetches: the next step fetches nothing early.
    skips_early_fetches: bool,
    /// Admitted requests that joined with offloaded KV, until they are removed from `admitted`.
    joined_requests: BTreeSet<RequestId>,
    /// The plan no longer holds.
    is_stale: bool,
    /// No plan is requested before this step.
    next_plan_step: u64,
}

impl PlacementPlans {
    /// Returns the state of a tenant without a plan, for a model of `layers` layers.
    pub fn new(layers: u16) -> PlacementPlans {
        PlacementPlans {
            options: options(layers),
            last_plan_id: 0,
            is_plan_due: false,
            in_flight: None,
            answer: None,
            planned_requests: BTreeSet::new(),
            admitted: BTreeMap::new(),
            pauses: Vec::new(),
            blocked_head: None,
            planned_head: None,
            skips_early_fetches: false,
            joined_requests: BTreeSet::new(),
            is_stale: false,
            next_plan_step: 0,
        }
    }

    /// Returns the sets of layers to choose from; the first is empty, the last has the most layers.
    pub fn options(&self) -> &[Vec<u16>] {
        &self.options
    }

    /// Returns the layers of an option.
    pub fn set(&self, option: u16) -> Vec<LayerId> {
        self.options[usize::from(option)].iter().copied().map(LayerId).collect()
    }

    /// Returns the id of the next requested plan.
    pub fn next_id(&self) -> u64 {
        self.last_plan_id + 1
    }

    /// Whether a plan is due.
    pub fn is_due(&self) -> bool {
        self.is_plan_due
    }

    /// Records that the next plan is requested for these requests. No other one is due before `next_plan_step`.
    pub fn on_requested(&mut self, running: Vec<RequestId>, waiting: Vec<RequestId>, next_plan_step: u64) {
        self.last_plan_id += 1;
        (self.is_plan_due, self.is_stale, self.next_plan_step) = (false, false, next_plan_step);
        self.planned_head = self.blocked_head;
        self.in_flight = Some(PlanInFlight { id: self.last_plan_id, running, waiting });
    }

    /// Whether this may answer a plan that was requested: the requested one, or an earlier one.
    pub fn expects(&self, answer: &PlanAnswer) -> bool {
        let asked = self.in_flight.as_ref().filter(|asked| asked.id == answer.id);
        let fits = asked
            .zip(answer.result.as_ref())
            .is_none_or(|(asked, found)| asked.is_answered_by(found, self.options.len()));
        (1..=self.last_plan_id).contains(&answer.id) && fits
    }

    /// Handles an answer; that of an earlier plan is ignored.
    pub fn on_answer(&mut self, answer: PlanAnswer) {
        if self.in_flight.as_ref().is_some_and(|asked| asked.id == answer.id) {
            self.answer = Some(answer);
        }
    }

    /// Whether the requested plan was answered.
    pub fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    /// Takes the answer to carry it out.
    pub fn take_answer(&mut self) -> Option<PlanAnswer> {
        self.answer.take()
    }

    /// Takes the requested plan, which has been answered.
    pub fn take_in_flight(&mut self) -> Option<PlanInFlight> {
        self.in_flight.take()
    }

    /// Puts a plan in force: which of its requests wait to be admitted, with their layers, and which are paused.
    pub fn adopt(&mut self, asked: &PlanInFlight, found: &PlanResult) {
        let (placed, first) = (asked.placed_requests(found), usize::from(found.paused));
        let coming = placed.iter().zip(&found.chosen).skip(asked.running.len() - first);
        self.admitted = coming.map(|(request, at)| (*request, self.set(*at))).collect();
        self.pauses = asked.running[..first].to_vec();
        self.planned_requests = placed.into_iter().collect();
    }

    /// Records that the requested plan was declined: its running requests need no other one.
    pub fn decline(&mut self, asked: &PlanInFlight) {
        self.planned_requests = asked.running.iter().copied().collect();
    }

    /// Decides whether a plan is due at `step`: none is requested, and the one in force does not hold for the running
    /// requests and the queue head. `running` ascends.
    pub fn decide_due(&mut self, step: u64, running: impl Iterator<Item = RequestId>) {
        let waiting = self.in_flight.is_some() || self.next_plan_step > step;
        // Also if it offloads nothing: KV of a paused request stays on the device until a step needs the blocks.
        let holds = !self.is_stale && self.is_for(running, self.blocked_head);
        self.is_plan_due = !waiting && !holds;
    }

    /// Whether the plan was made for the running requests and the queue head.
    fn is_for(&self, mut runners: impl Iterator<Item = RequestId>, next: Option<RequestId>) -> bool {
        // Both ascend: a set, and the keys of a map.
        let (mut made_for, mut known) = (self.planned_requests.iter(), 0);
        let all = runners.all(|request| {
            known += 1;
            made_for.any(|one| *one == request)
        });
        // Requests that it admitted may still be waiting.
        all && self.planned_requests.len() - known <= self.admitted.len()
            && (next.is_none() || next == self.planned_head)
    }

    /// Marks the plan in force as no longer true.
    pub fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// Forgets the plan; a late answer is ignored.
    pub fn forget(&mut self) {
        (self.is_plan_due, self.in_flight, self.answer, self.planned_head) = (false, None, None, None);
        self.planned_requests.clear();
        self.admitted.clear();
        self.joined_requests.clear();
        self.pauses.clear();
        self.skips_early_fetches = false;
    }

    /// Returns the offloaded layers of a request that the plan admits; `None` = it admits no such request.
    pub fn admitted_layers(&self, request: RequestId) -> Option<&[LayerId]> {
        self.admitted.get(&request).map(Vec::as_slice)
    }

    /// Returns the sets of offloaded layers of all requests that wait to be admitted.
    pub fn coming_sets(&self) -> Vec<Vec<LayerId>> {
        self.admitted.values().filter(|set| !set.is_empty()).cloned().collect()
    }

    /// Records that an admitted request has joined the placement in force with offloaded KV.
    pub fn on_joined(&mut self, request: RequestId) {
        self.joined_requests.insert(request);
    }

    /// Removes the running requests from the admitted ones: they belong to the plan, which holds until one of its
    /// requests ends. Returns the number of those that joined with offloaded KV.
    pub fn remove_admitted(&mut self, running: impl Iterator<Item = RequestId>) -> u32 {
        if self.admitted.is_empty() {
            return 0;
        }
        let running: BTreeSet<_> = running.collect();
        self.admitted.retain(|request, _| !running.contains(request));
        self.joined_requests.extract_if(.., |request| running.contains(request)).count() as u32
    }

    /// Removes a request that waits no longer.
    pub fn drop_waiter(&mut self, request: RequestId) {
        self.blocked_head = self.blocked_head.filter(|held| *held != request);
        self.admitted.remove(&request);
        self.planned_requests.remove(&request);
        self.joined_requests.remove(&request);
    }

    /// Returns the requests that the plan pauses.
    pub fn pauses(&self) -> &[RequestId] {
        &self.pauses
    }

    /// The pauses of the plan are made.
    pub fn clear_pauses(&mut self) {
        self.pauses.clear();
    }

    /// Returns the queue head that admission skipped.
    pub fn blocked_head(&self) -> Option<RequestId> {
        self.blocked_head
    }

    /// Records the queue head that admission skipped; `None` = it skipped none. Steps fetch early again, until
    /// [`PlacementPlans::set_skips_early_fetches`].
    pub fn set_blocked_head(&mut self, request: Option<RequestId>) {
        self.blocked_head = request;
        self.skips_early_fetches = false;
    }

    /// Whether an admitted request waits only for the end of fetches: the next step fetches nothing early.
    pub fn skips_early_fetches(&self) -> bool {
        self.skips_early_fetches
    }

    /// Records whether an admitted request waits only for the end of fetches.
    pub fn set_skips_early_fetches(&mut self, skips: bool) {
        self.skips_early_fetches = skips;
    }

    /// Returns a number that changes with the requested plan or the plan in force.
    pub fn digest_word(&self) -> u64 {
        let flags = [self.is_plan_due, self.in_flight.is_some(), self.answer.is_some()];
        let flags = flags.iter().fold(0, |word, flag| word << 1 | u64::from(*flag));
        let named = self.admitted.keys().chain(&self.pauses).chain(&self.blocked_head);
        named.fold(self.last_plan_id << 3 | flags, |word, request| mix(word ^ request.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn ids(ids: &[u64]) -> Vec<RequestId> {
        ids.iter().copied().map(RequestId).collect()
    }

    fn is_due(plans: &mut PlacementPlans, step: u64, running: &[u64]) -> bool {
        plans.decide_due(step, ids(running).into_iter());
        plans.is_due()
    }

    fn result(paused: u16, admitted: u16, chosen: Vec<u16>) -> PlanResult {
        PlanResult { paused, admitted, chosen, step_ns: 0, bound_ns: 0 }
    }

    /// Plans for three running requests, of which the first is paused, and one that waits and is admitted.
    fn in_force() -> PlacementPlans {
        let mut plans = PlacementPlans::new(8);
        plans.set_blocked_head(Some(RequestId(9)));
        plans.on_requested(ids(&[1, 2, 3]), ids(&[9]), 10);
        plans.on_answer(PlanAnswer { id: 1, result: Some(result(1, 1, vec![0, 1, 2])) });
        let (asked, answer) = (plans.take_in_flight().unwrap(), plans.take_answer().unwrap());
        plans.adopt(&asked, &answer.result.unwrap());
        plans
    }

    #[test]
    fn plan_holds_until_its_requests_change() {
        let mut plans = in_force();
        assert_eq!(plans.pauses(), ids(&[1]));
        assert_eq!(plans.admitted_layers(RequestId(9)), Some(plans.set(2).as_slice()));
        assert!(!is_due(&mut plans, 5, &[2, 3]), "too soon, and it holds");
        assert!(!is_due(&mut plans, 10, &[2, 3]), "the admitted request still waits");
        assert_eq!(plans.remove_admitted(ids(&[2, 3, 9]).into_iter()), 0, "it joined without offloaded KV");
        assert!(!is_due(&mut plans, 10, &[2, 3, 9]), "it runs now");
        assert!(is_due(&mut plans, 10, &[3, 9]), "a request has ended");
        assert!(is_due(&mut plans, 10, &[2, 3, 4, 9]), "another one runs");
        plans.set_blocked_head(Some(RequestId(10)));
        assert!(is_due(&mut plans, 10, &[2, 3, 9]), "another one waits");
    }

    #[test]
    fn stale_plan_is_replaced_and_only_the_last_request_is_answered() {
        let mut plans = in_force();
        plans.mark_stale();
        assert!(!is_due(&mut plans, 9, &[2, 3]) && is_due(&mut plans, 10, &[2, 3]));
        plans.on_requested(ids(&[2, 3]), Vec::new(), 20);
        assert!(!is_due(&mut plans, 20, &[2, 3]), "it is requested already");
        plans.on_answer(PlanAnswer { id: 1, result: None });
        assert!(plans.take_answer().is_none(), "an answer to an earlier request");
        let wrong = PlanAnswer { id: 2, result: Some(result(0, 0, vec![0])) };
        assert!(!plans.expects(&wrong), "it places one of two requests");
        let unknown = PlanAnswer { id: 3, result: None };
        assert!(!plans.expects(&unknown), "no such plan was requested");
        let right = PlanAnswer { id: 2, result: Some(result(0, 0, vec![0, 1])) };
        assert!(plans.expects(&right));
    }

    #[test]
    fn cancelled_waiter_leaves_the_plan() {
        let mut plans = in_force();
        plans.on_joined(RequestId(9));
        plans.drop_waiter(RequestId(9));
        assert_eq!((plans.blocked_head(), plans.admitted_layers(RequestId(9))), (None, None));
        assert_eq!(plans.remove_admitted(ids(&[9]).into_iter()), 0);
    }

    #[test]
    fn each_plan_of_the_scheduler_says_again_whether_fetches_are_skipped() {
        let mut plans = in_force();
        plans.set_blocked_head(Some(RequestId(9)));
        plans.set_skips_early_fetches(true);
        plans.set_blocked_head(Some(RequestId(9)));
        assert!(!plans.skips_early_fetches(), "the same head no longer waits for fetches");
    }
}

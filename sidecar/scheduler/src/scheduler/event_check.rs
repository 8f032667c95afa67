//! Detects events that a correct backend never reports, which reveal a truncated or damaged journal.

use super::Scheduler;
use crate::event::Event;

impl Scheduler {
    /// Returns why `event` cannot occur now; `None` if [`Scheduler::handle`] can take it. A live backend is trusted,
    /// because a contract violation there is a bug; events from a file are checked first.
    pub fn check_event(&self, event: &Event) -> Option<String> {
        match event {
            Event::Memory(completion) if !self.manager.status().awaits(completion.id) => {
                Some(format!("memory completes action {}, which is not pending", completion.id.0))
            }
            Event::Submit(request) if self.requests.contains(request.id) => {
                Some(format!("request {} arrives a second time", request.id.0))
            }
            Event::Plan(answer) if !self.manager.offload_view().expects_plan(answer) => {
                Some(format!("plan {} does not match a pending request", answer.id))
            }
            _ => None,
        }
    }
}

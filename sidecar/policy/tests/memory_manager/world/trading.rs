//! The part of the scheduler that trades with peers.

use sluice_policy::action::Action;
use sluice_policy::event::Completion;
use sluice_policy::loan_negotiator::{LoanNegotiator, PeerEvent};
use sluice_policy::memory_manager::{MemoryManager, SleepState};

use super::super::device::chance;
use super::{World, audit};

impl World {
    /// Reports one completion of the device.
    pub fn poll(&mut self) -> bool {
        let Some(done) = self.next_completion() else { return false };
        self.sent_events = false;
        let now = self.now;
        self.send_event(|manager, out| manager.complete(now, &done, out));
        audit(&self.manager, &self.device);
        true
    }

    pub(super) fn drive<T>(
        &mut self,
        call: impl FnOnce(&mut MemoryManager, Option<&mut LoanNegotiator>, &mut Vec<Action>) -> T,
    ) -> T {
        let mut out = Vec::new();
        let answer = call(&mut self.manager, self.negotiator.as_mut(), &mut out);
        for mut action in out {
            if let Some(corrupt) = self.corrupt_action {
                corrupt(&mut action);
            }
            self.device.submit(action);
        }
        self.manager.check();
        if let Some(negotiator) = &self.negotiator {
            negotiator.check(&self.manager.loans().audit());
        }
        self.most_alpha = self.most_alpha.max(self.manager.figures().layout().alpha());
        answer
    }

    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        if self.late.is_some() && self.rng.chance(300) {
            return self.late.take();
        }
        let Some(done) = self.device.poll() else { return self.late.take() };
        if self.device.traded && self.late_permille > 0 && chance(&mut self.rng, self.late_permille) {
            self.late = Some(done);
            return None;
        }
        Some(done)
    }

    /// Starts to load a tenant whose floor its peers may hold.
    pub fn begin(&mut self) {
        let now = self.now;
        self.send_event(|manager, out| manager.start(now, out));
    }

    /// Continues to load, or claims the floor.
    pub(super) fn continue_load(&mut self) {
        assert_eq!(self.manager.status().failed(), None, "a floor is waited for");
        if self.poll() {
            return;
        }
        let now = self.now;
        let commands = self.drive(|manager, negotiator, out| {
            let (chunks, negotiator) = (manager.loans().missing_floor_chunks()?, negotiator?);
            negotiator.claim(now, chunks);
            manager.loans_mut().claim_floor(out);
            Some(negotiator.take_commands())
        });
        self.commands.extend(commands.into_iter().flatten());
    }

    /// Whether no action is in progress.
    pub fn idle(&self) -> bool {
        self.device.idle() && self.late.is_none()
    }

    /// Handles a message of a peer.
    pub fn receive(&mut self, event: PeerEvent) {
        let now = self.now;
        self.drive(|manager, negotiator, _| {
            negotiator.expect("a trader hears").on_event(now, event, &mut manager.loans_mut())
        });
        if self.step.is_none() {
            self.schedule();
        }
    }

    pub fn busy(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// Exchanges messages with peers, like the scheduler.
    pub(super) fn negotiate(&mut self) {
        let now = self.now;
        let commands = self.drive(|manager, negotiator, out| {
            negotiator.map(|negotiator| {
                negotiator.boundary(now, &mut manager.loans_mut(), out);
                negotiator.take_commands()
            })
        });
        self.sent_events = true;
        self.commands.extend(commands.into_iter().flatten());
        let alone = usize::from(self.negotiator.is_some());
        while self.manager.loans().debt_lacks_room() && self.running.len() > alone {
            self.preempt();
            self.send_event(|manager, out| manager.boundary(now, out));
        }
        if self.manager.loans().debt_lacks_room() {
            self.send_event(|manager, out| {
                manager.loans_mut().force_reclaim();
                manager.boundary(now, out);
            });
        }
        while self.manager.loans().debt_lacks_room()
            && self.manager.status().sleep_state() == SleepState::Awake
            && self.drop_suspended_kv(|manager, id| manager.kv_of(id).on_device())
        {
            self.send_event(|manager, out| manager.boundary(now, out));
        }
    }

    /// Asks peers for memory; returns true if they denied it, so that another reclaim option is due.
    pub(super) fn denied(&mut self) -> bool {
        if self.manager.loans().borrow_request().is_none() {
            return false;
        }
        self.negotiate();
        self.manager.loans().borrow_request().is_none() && !self.manager.status().is_blocked()
    }
}

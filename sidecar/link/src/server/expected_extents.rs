//! Checks what a scheduler sends against the extents that it has and the commands that it was sent.

use sluice_policy::ids::ActionId;

use crate::frame::ProtocolError;
use crate::message::{Held, Message, Resume, Retired, SchedulerMessage, SchedulerSetup};

/// The command that the scheduler has to answer, and the extents that it has.
#[derive(Debug)]
pub(super) struct ExpectedExtents {
    /// Whether each extent has memory, as the scheduler knows it.
    granted: Vec<bool>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Holding(ActionId),
    Held,
    Retiring(ActionId, u32),
}

impl ExpectedExtents {
    /// Begins with what a setup grants.
    pub(super) fn new(setup: &SchedulerSetup) -> Result<ExpectedExtents, ProtocolError> {
        let granted = vec![false; setup.extents as usize];
        let mut extents = ExpectedExtents { granted, state: State::Running };
        let message = Message::Scheduler(SchedulerMessage::Setup(setup.clone()));
        extents.grant(&setup.granted).map_err(contradiction(&message))?;
        Ok(extents)
    }

    /// Records a command, before it is sent. Refuses one that does not fit the state of the scheduler.
    pub(super) fn expect(&mut self, command: &SchedulerMessage) -> Result<(), ProtocolError> {
        let fits = match (command, self.state) {
            (SchedulerMessage::Hold { id }, State::Running) => {
                self.state = State::Holding(*id);
                Ok(())
            }
            (SchedulerMessage::Retire { id, extents }, State::Held) => {
                self.state = State::Retiring(*id, *extents);
                Ok(())
            }
            (SchedulerMessage::Resume(resume), State::Held) => self.resume(resume),
            (_, state) => Err(format!("the scheduler's state is {state:?}")),
        };
        fits.map_err(contradiction(&Message::Scheduler(command.clone())))
    }

    /// Accepts a message if it answers the open command and names extents that the scheduler has.
    pub(super) fn check(&mut self, message: &Message) -> Result<(), ProtocolError> {
        let fits = match message {
            Message::Scheduler(SchedulerMessage::Held(held)) => self.check_held(held),
            Message::Scheduler(SchedulerMessage::Retired(retired)) => self.check_retired(retired),
            _ => Ok(()),
        };
        fits.map_err(contradiction(message))
    }

    fn resume(&mut self, resume: &Resume) -> Result<(), String> {
        self.withdraw(&resume.withdrawn)?;
        self.grant(&resume.granted)?;
        self.state = State::Running;
        Ok(())
    }

    fn check_held(&mut self, held: &Held) -> Result<(), String> {
        if self.state != State::Holding(held.id) {
            return Err(format!("it answers command {}, but the state is {:?}", held.id.0, self.state));
        }
        self.state = State::Held;
        // Taken away and given back, which finds an extent that is named twice or has no memory.
        self.withdraw(&held.idle)?;
        self.grant(&held.idle)
    }

    fn check_retired(&mut self, retired: &Retired) -> Result<(), String> {
        let (got, state) = (retired.extents.len(), self.state);
        let fits = matches!(state, State::Retiring(id, asked) if id == retired.id && got <= asked as usize);
        if !fits {
            let id = retired.id.0;
            return Err(format!("it retires {got} extents by command {id}, but the state is {state:?}"));
        }
        self.state = State::Held;
        self.withdraw(&retired.extents)
    }

    fn grant(&mut self, extents: &[u32]) -> Result<(), String> {
        let count = self.granted.len();
        extents.iter().try_for_each(|extent| match self.granted.get_mut(*extent as usize) {
            Some(granted) if !*granted => {
                *granted = true;
                Ok(())
            }
            Some(_) => Err(format!("extent {extent} has memory already")),
            None => Err(format!("extent {extent} is not one of {count}")),
        })
    }

    fn withdraw(&mut self, extents: &[u32]) -> Result<(), String> {
        extents.iter().try_for_each(|extent| match self.granted.get_mut(*extent as usize) {
            Some(_) if *extent == 0 => Err("extent 0 never leaves".to_owned()),
            Some(granted) if *granted => {
                *granted = false;
                Ok(())
            }
            _ => Err(format!("extent {extent} has no memory, or it is named twice")),
        })
    }
}

fn contradiction(message: &Message) -> impl FnOnce(String) -> ProtocolError {
    let kind = message.kind();
    move |reason| ProtocolError::Contradiction { kind, reason }
}

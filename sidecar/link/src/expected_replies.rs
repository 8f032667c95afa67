//! Checks the replies of an engine against the commands that it received.
//!
//! A well-formed message can still contradict its command. Such a reply is refused like bytes that do not decode, and
//! the link is unusable afterwards.

use std::collections::VecDeque;

use sluice_policy::ids::{ActionId, RowId, StepId};
use sluice_ports::compute::{Step, StepDone};

use crate::frame::ProtocolError;
use crate::message::{EngineSetup, Message};

/// Unanswered commands, and the sizes that replies must keep to.
#[derive(Debug)]
pub(crate) struct ExpectedReplies {
    vocab: u32,
    layers: usize,
    /// `Remap` and `Release` commands.
    changes: VecDeque<ActionId>,
    step: Option<ExpectedStep>,
}

#[derive(Debug)]
struct ExpectedStep {
    id: StepId,
    attempt: u32,
    /// Rows of the step, each with whether a token is sampled for it.
    rows: Vec<(RowId, bool)>,
}

impl ExpectedReplies {
    pub(crate) fn new(setup: &EngineSetup) -> ExpectedReplies {
        let layers = usize::from(setup.spec.layers);
        ExpectedReplies { vocab: setup.spec.vocab, layers, changes: VecDeque::new(), step: None }
    }

    /// Records a `Remap` or `Release`, before it is sent.
    pub(crate) fn expect_change(&mut self, id: ActionId) {
        self.changes.push_back(id);
    }

    /// Records a step, before it is sent.
    pub(crate) fn expect_step(&mut self, step: &Step) {
        let rows = step.sequences.iter().map(|sequence| (sequence.row, sequence.sample.is_some())).collect();
        self.step = Some(ExpectedStep { id: step.id, attempt: step.attempt, rows });
    }

    /// Accepts a reply if it answers the oldest command of its kind and fits it.
    pub(crate) fn check_reply(&mut self, message: &Message) -> Result<(), ProtocolError> {
        let problem = match message {
            Message::Applied { id } | Message::Refused { id, .. } => self.check_change(*id),
            Message::Done(done) => self.check_done(done),
            Message::StepRefused { id, attempt, .. } | Message::StaleEpoch { id, attempt } => {
                self.take_step(*id, *attempt).map(drop)
            }
            _ => Ok(()),
        };
        problem.map_err(|reason| ProtocolError::Contradiction { kind: message.kind(), reason })
    }

    fn check_change(&mut self, id: ActionId) -> Result<(), String> {
        match self.changes.pop_front() {
            Some(owed) if owed == id => Ok(()),
            Some(owed) => Err(format!("it answers command {}, but the next command is {}", id.0, owed.0)),
            None => Err(format!("it answers command {}, but no command is open", id.0)),
        }
    }

    fn take_step(&mut self, id: StepId, attempt: u32) -> Result<ExpectedStep, String> {
        let Some(owed) = self.step.take() else {
            return Err(format!("it answers step {}, but no step is open", id.0));
        };
        if (owed.id, owed.attempt) != (id, attempt) {
            let (asked, asked_attempt) = (owed.id.0, owed.attempt);
            let theirs = format!("step {}, attempt {attempt}", id.0);
            return Err(format!(
                "it answers {theirs}, but the open step is {asked}, attempt {asked_attempt}"
            ));
        }
        Ok(owed)
    }

    fn check_done(&mut self, done: &StepDone) -> Result<(), String> {
        let owed = self.take_step(done.id, done.attempt)?;
        if !done.matches_rows(&owed.rows) {
            let sampled = row_numbers(done.sampled.iter().map(|one| one.row));
            let failed = row_numbers(done.failed.iter().map(|one| one.row));
            let rows = row_numbers(owed.rows.iter().map(|(row, _)| *row));
            let asked = row_numbers(owed.rows.iter().filter(|(_, asks)| *asks).map(|(row, _)| *row));
            return Err(format!(
                "it has tokens of rows {sampled:?} and failures of rows {failed:?}; the step has rows \
                 {rows:?} and samples rows {asked:?}"
            ));
        }
        for times in [&done.layer_ns, &done.stall_ns, &done.kv_stall_ns] {
            if times.len() != self.layers {
                return Err(format!("it has times of {} layers, the model has {}", times.len(), self.layers));
            }
        }
        self.check_tokens(done)
    }

    fn check_tokens(&self, done: &StepDone) -> Result<(), String> {
        let alternatives = done.sampled.iter().filter_map(|sampled| sampled.logprobs.as_ref());
        let alternatives = alternatives.flat_map(|logprobs| logprobs.top.iter().map(|(token, _)| *token));
        let mut tokens = done.sampled.iter().map(|sampled| sampled.token).chain(alternatives);
        match tokens.find(|token| *token >= self.vocab) {
            Some(token) => Err(format!("it names token {token}, the vocabulary has {}", self.vocab)),
            None => Ok(()),
        }
    }
}

fn row_numbers(rows: impl Iterator<Item = RowId>) -> Vec<u32> {
    rows.map(|row| row.0).collect()
}

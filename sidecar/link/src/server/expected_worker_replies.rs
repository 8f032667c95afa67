//! Checks what a worker sends against what it was asked for.

use std::collections::VecDeque;

use sluice_policy::ids::ActionId;

use crate::frame::ProtocolError;
use crate::message::{Message, WorkerMessage, WorkerSetup};

/// Unanswered commands, and how far the start of the worker is.
#[derive(Debug)]
pub(super) struct ExpectedWorkerReplies {
    /// Bytes of each layer's range.
    layer_range_bytes: Vec<u64>,
    /// `Remap`, `Release`, `Zero` and `Moving` commands.
    commands: VecDeque<ActionId>,
    is_loaded: bool,
    has_layout: bool,
}

impl ExpectedWorkerReplies {
    pub(super) fn new(setup: &WorkerSetup) -> ExpectedWorkerReplies {
        let bytes = setup.layer_chunks.iter().map(|chunks| u64::from(*chunks) * setup.chunk_bytes);
        ExpectedWorkerReplies {
            layer_range_bytes: bytes.collect(),
            commands: VecDeque::new(),
            is_loaded: false,
            has_layout: false,
        }
    }

    /// Records a command, before it is sent.
    pub(super) fn expect(&mut self, id: ActionId) {
        self.commands.push_back(id);
    }

    /// Accepts a message if it fits what was sent and received before.
    pub(super) fn check(&mut self, message: &Message) -> Result<(), ProtocolError> {
        let fits = match message {
            Message::Applied { id } | Message::Refused { id, .. } => self.check_reply(*id),
            Message::Worker(WorkerMessage::Loaded(loaded)) => self.check_loaded(&loaded.layer_bytes),
            Message::Worker(WorkerMessage::KvLayout(_)) => self.check_layout(),
            _ => Ok(()),
        };
        fits.map_err(|reason| ProtocolError::Contradiction { kind: message.kind(), reason })
    }

    fn check_reply(&mut self, id: ActionId) -> Result<(), String> {
        match self.commands.pop_front() {
            Some(next) if next == id => Ok(()),
            Some(next) => Err(format!("it answers command {}, but the next command is {}", id.0, next.0)),
            None => Err(format!("it answers command {}, but no command is open", id.0)),
        }
    }

    fn check_loaded(&mut self, layer_bytes: &[u64]) -> Result<(), String> {
        if std::mem::replace(&mut self.is_loaded, true) {
            return Err("the parameters are final already".to_owned());
        }
        let (got, needed) = (layer_bytes.len(), self.layer_range_bytes.len());
        if got != needed {
            return Err(format!("it has sizes of {got} layers, the model has {needed}"));
        }
        let mut layers = layer_bytes.iter().zip(&self.layer_range_bytes).enumerate();
        match layers.find(|(_, (used, range))| used > range) {
            Some((layer, (used, range))) => {
                Err(format!("layer {layer} uses {used} bytes of a range of {range}"))
            }
            None => Ok(()),
        }
    }

    fn check_layout(&mut self) -> Result<(), String> {
        if !self.is_loaded {
            return Err("the parameters are not final yet".to_owned());
        }
        if std::mem::replace(&mut self.has_layout, true) {
            return Err("the layout is known already".to_owned());
        }
        Ok(())
    }
}

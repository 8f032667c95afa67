//! Events: what changed, for whoever asks `kubectl describe`.

use std::sync::Mutex;

use kube::Client;
use kube::core::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use sluice_types::conditions::ConditionType;

use super::lock;

/// A recorder keeps each event for minutes, so that one that is told again becomes a series; of thousands of tenants that start
/// at a time that is most of an operator's memory. After so many it is replaced, with what it keeps.
const MAX_CACHED_EVENTS: usize = 256;

/// Writes events.
pub struct EventRecorder {
    client: Client,
    reporter: Reporter,
    /// And how many it has been given.
    current: Mutex<(Recorder, usize)>,
}

impl EventRecorder {
    /// One who writes in the name of `reporter`.
    pub fn new(client: Client, reporter: Reporter) -> EventRecorder {
        let current = Mutex::new((Recorder::new(client.clone(), reporter.clone()), 0));
        EventRecorder { client, reporter, current }
    }

    /// Writes an event about an object. None is worth a failure.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, object: &K, event: &Event) {
        if let Err(error) = self.recorder(event).publish(event, &object.object_ref(&())).await {
            tracing::debug!(%error, "an event was not written");
        }
    }

    /// A recorder that is new adds an event to no series: in a series the note of the first one stands for all, and each hang has
    /// a moment and a culprit of its own.
    fn recorder(&self, event: &Event) -> Recorder {
        if event.type_ == EventType::Warning && event.action == ConditionType::Degraded.as_str() {
            return Recorder::new(self.client.clone(), self.reporter.clone());
        }
        let mut current = lock(&self.current);
        if current.1 == MAX_CACHED_EVENTS {
            *current = (Recorder::new(self.client.clone(), self.reporter.clone()), 0);
        }
        current.1 += 1;
        current.0.clone()
    }
}

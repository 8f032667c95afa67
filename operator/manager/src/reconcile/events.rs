//! Kubernetes events about changes, as shown by `kubectl describe`.

use std::sync::Mutex;

use kube::Client;
use kube::core::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use sluice_types::conditions::ConditionType;

use super::lock::lock;

/// Maximum events of a recorder before it is replaced. It caches each event for minutes to combine repetitions into a
/// series; with thousands of starting tenants that would be most of the operator's memory.
const MAX_CACHED_EVENTS: usize = 256;

/// Writes events.
pub struct EventRecorder {
    client: Client,
    reporter: Reporter,
    /// The recorder and its number of events.
    current: Mutex<(Recorder, usize)>,
}

impl EventRecorder {
    /// Returns a recorder in the name of `reporter`.
    pub fn new(client: Client, reporter: Reporter) -> EventRecorder {
        let current = Mutex::new((Recorder::new(client.clone(), reporter.clone()), 0));
        EventRecorder { client, reporter, current }
    }

    /// Writes an event about an object. Failures are only logged.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, object: &K, event: &Event) {
        if let Err(error) = self.recorder(event).publish(event, &object.object_ref(&())).await {
            tracing::debug!(%error, "could not write an event");
        }
    }

    /// Returns a new recorder for hangs, which combines no events: a series shows only the first note, but each hang
    /// has its own time and cause.
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

//! What all viewers of one page share: the last reading of each GPU, the histories, and the news that an update is
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use sluice_wire::time::whole_ms;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::history::{Cursor, History};
use crate::palette::Palette;
use crate::text::reason::Level;
use crate::tracker::Tracker;
use crate::view::{GpuView, Reading};

/// A page of at most this many GPUs shows all of them; one of more GPUs shows the one that a viewer asks for.
const MAX_WHOLE_GPUS: usize = 4;
/// Most viewers at one time.
const MAX_VIEWERS: usize = 32;
/// Interval at which colours of removed tenants become free, milliseconds.
const FREE_COLOURS_EVERY_MS: u64 = 60_000;

/// Settings of a page.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Program that serves it, for the user.
    pub source: String,
    /// Time between two updates.
    pub interval: Duration,
    /// Most moves that are kept of each GPU.
    pub moves: usize,
    /// Text while no GPU has been read.
    pub note: String,
}

/// One GPU in the list of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Summary {
    key: String,
    pool: String,
    node: Option<String>,
    level: Level,
    worst: Option<String>,
    titles: Vec<String>,
    used_permille: u64,
    tokens_per_s: Option<u32>,
}

#[derive(Debug)]
struct GpuEntry {
    summary: Arc<Summary>,
    /// Number of the update that changed the summary.
    summary_at: u64,
    /// The GPU as JSON, while a viewer may ask for it.
    detail: Option<Arc<str>>,
    /// Number of the update that changed the detail.
    detail_at: u64,
    problem: Option<String>,
    tracker: Tracker,
    /// Number of the update that knew it.
    updated_at: u64,
}

#[derive(Debug, Default)]
struct Inner {
    gpus: BTreeMap<String, GpuEntry>,
    colours: Palette,
    /// When colours became free last, milliseconds since the Unix epoch.
    colours_freed_unix_ms: u64,
    viewers_by_gpu: BTreeMap<String, usize>,
    /// Numbers of updates at which GPUs left.
    left_at: u64,
    now_unix_ms: u64,
}

impl Inner {
    /// Whether the page shows all GPUs.
    fn is_few(&self) -> bool {
        self.gpus.len() <= MAX_WHOLE_GPUS
    }

    /// Frees the colours of tenants that neither a GPU nor the shown history of one has any more.
    fn free_colours(&mut self) {
        self.colours_freed_unix_ms = self.now_unix_ms;
        let gpus = self.gpus.values();
        let there: BTreeSet<&str> = gpus
            .flat_map(|gpu| {
                gpu.summary.titles.iter().map(String::as_str).chain(gpu.tracker.history().titles())
            })
            .collect();
        self.colours.retain(|title| there.contains(title));
    }
}

/// The state behind one page.
#[derive(Debug)]
pub struct Hub {
    settings: HubConfig,
    inner: Mutex<Inner>,
    /// Number of the last update.
    updates: watch::Sender<u64>,
    viewer_permits: Arc<Semaphore>,
}

impl Hub {
    /// Creates a page without GPUs.
    pub fn new(settings: HubConfig) -> Arc<Hub> {
        let (updates, viewer_permits) = (watch::Sender::new(0), Arc::new(Semaphore::new(MAX_VIEWERS)));
        Arc::new(Hub { settings, inner: Mutex::default(), updates, viewer_permits })
    }

    /// Takes the current view of all GPUs at `now_unix_ms`: `give` calls [`Update::gpu`] for each. Removes the
    /// omitted ones.
    pub fn update(&self, now_unix_ms: u64, give: impl FnOnce(&mut Update<'_>)) {
        let number = *self.updates.borrow() + 1;
        {
            let mut inner = lock(&self.inner);
            inner.now_unix_ms = now_unix_ms;
            give(&mut Update { inner: &mut inner, number, moves: self.settings.moves });
            let before = inner.gpus.len();
            inner.gpus.retain(|_, known| known.updated_at == number);
            let has_left = inner.gpus.len() < before;
            if has_left {
                inner.left_at = number;
            }
            if has_left || now_unix_ms >= inner.colours_freed_unix_ms.saturating_add(FREE_COLOURS_EVERY_MS) {
                inner.free_colours();
            }
        }
        self.updates.send_replace(number);
    }

    /// Returns the time between two updates.
    pub const fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Returns a slot for a viewer of the GPU `key`; `None` = all slots are taken.
    pub fn viewer(self: &Arc<Self>, key: Option<String>) -> Option<Viewer> {
        let permit = self.viewer_permits.clone().try_acquire_owned().ok()?;
        if let Some(key) = &key {
            *lock(&self.inner).viewers_by_gpu.entry(key.clone()).or_insert(0) += 1;
        }
        let mut updates = self.updates.subscribe();
        updates.mark_changed();
        Some(Viewer {
            hub: self.clone(),
            updates,
            key,
            list_at: None,
            cursors: BTreeMap::new(),
            _permit: permit,
        })
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An update in progress.
#[derive(Debug)]
pub struct Update<'a> {
    inner: &'a mut Inner,
    number: u64,
    moves: usize,
}

impl Update<'_> {
    /// Adds one GPU. A known reading costs almost nothing.
    pub fn gpu(&mut self, reading: &Reading<'_>) {
        let key = reading.key();
        let is_new = !self.inner.gpus.contains_key(&key);
        let few = self.inner.gpus.len() + usize::from(is_new) <= MAX_WHOLE_GPUS;
        let watched = few || self.inner.viewers_by_gpu.contains_key(&key);
        let known = self.inner.gpus.entry(key).or_insert_with(|| GpuEntry::new(reading, self.moves));
        known.updated_at = self.number;
        known.detail = known.detail.take().filter(|_| watched);
        let stale = known.tracker.read_unix_ms() == reading.read_unix_ms
            && known.problem.as_deref() == reading.problem;
        if !is_new && stale && (!watched || known.detail.is_some()) {
            return;
        }
        let view = known.tracker.record(reading, self.inner.now_unix_ms, &mut self.inner.colours);
        known.problem = reading.problem.map(str::to_owned);
        let summary = Summary::of(&view);
        if is_new || *known.summary != summary {
            (known.summary, known.summary_at) = (Arc::new(summary), self.number);
        }
        let json = || serde_json::to_string(&view).expect("a view has string keys");
        known.detail = watched.then(|| json().into());
        known.detail_at = self.number;
    }
}

impl GpuEntry {
    fn new(reading: &Reading<'_>, moves: usize) -> GpuEntry {
        let summary =
            Summary::of(&GpuView::of(&Reading { tenants: &[], ..*reading }, 0, |_| None, |_| None, |_| 0));
        GpuEntry {
            summary: Arc::new(summary),
            summary_at: 0,
            detail: None,
            detail_at: 0,
            problem: None,
            tracker: Tracker::new(History::new(moves)),
            updated_at: 0,
        }
    }
}

impl Summary {
    fn of(view: &GpuView) -> Summary {
        let rates: Vec<f32> = view.tenants.iter().filter_map(|tenant| tenant.tokens_per_s).collect();
        Summary {
            key: view.key.clone(),
            pool: view.pool.clone(),
            node: view.node.clone(),
            level: view.level,
            worst: view.worst(),
            titles: view.tenants.iter().map(|tenant| tenant.title.clone()).collect(),
            used_permille: view
                .used_bytes()
                .saturating_mul(1000)
                .checked_div(view.capacity_bytes)
                .unwrap_or(0),
            tokens_per_s: (!rates.is_empty()).then(|| rates.iter().sum::<f32>().round() as u32),
        }
    }
}

/// One viewer and the data it has. An update that arrives while the viewer does not read is skipped, so a
/// stopped viewer costs this value and the buffers of its connection.
#[derive(Debug)]
pub struct Viewer {
    hub: Arc<Hub>,
    updates: watch::Receiver<u64>,
    key: Option<String>,
    /// Number of the update of its list; `None` = none.
    list_at: Option<u64>,
    /// By GPU: the update of its detail, and the end of its history.
    cursors: BTreeMap<String, (u64, Cursor)>,
    _permit: OwnedSemaphorePermit,
}

/// One message to a viewer: the name of its kind and JSON.
pub type ViewerMessage = (&'static str, String);

#[derive(Serialize)]
struct List<'a> {
    source: &'a str,
    version: &'static str,
    note: &'a str,
    at_unix_ms: u64,
    every_ms: u64,
    /// Number of GPUs.
    count: usize,
    /// Whether the page shows all of them.
    few: bool,
    /// Whether `gpus` are all of them, and not those that have changed.
    all: bool,
    gpus: Vec<Arc<Summary>>,
}

impl Viewer {
    /// Waits for the next update, or returns the present state at first; `None` = there will be none.
    pub async fn next(&mut self) -> Option<Vec<ViewerMessage>> {
        self.updates.changed().await.ok()?;
        let number = *self.updates.borrow_and_update();
        Some(self.messages(number))
    }

    /// The present state, whole. The GPU that the viewer asks for is made with the next update, if it is not there
    /// yet:
    /// waits for it.
    pub async fn snapshot(&mut self) -> Option<Vec<ViewerMessage>> {
        loop {
            let messages = self.next().await?;
            if !self.is_awaited() {
                return Some(messages);
            }
            self.list_at = None;
        }
    }

    /// Whether the page knows the GPU that the viewer asks for, and the viewer does not have it yet.
    fn is_awaited(&self) -> bool {
        let Some(key) = self.key.as_ref().filter(|key| !self.cursors.contains_key(*key)) else {
            return false;
        };
        lock(&self.hub.inner).gpus.contains_key(key)
    }

    /// What is new for this viewer: the list, then for each GPU that it sees its history and its present.
    fn messages(&mut self, number: u64) -> Vec<ViewerMessage> {
        let hub = self.hub.clone();
        let inner = lock(&hub.inner);
        let mut messages = vec![("list", self.list(&inner, number))];
        let few = inner.is_few();
        let wanted = |key: &String| self.key.as_ref().map_or(few, |own| own == key);
        self.cursors.retain(|key, _| inner.gpus.contains_key(key));
        for (key, known) in inner.gpus.iter().filter(|(key, _)| wanted(key)) {
            let Some(detail) = &known.detail else { continue };
            let (detail_at, cursor) = self.cursors.get(key).copied().unwrap_or_default();
            let (part, end) = known.tracker.history().since(key, cursor);
            if !part.is_empty() {
                messages.push(("history", serde_json::to_string(&part).expect("keys are strings")));
            }
            if detail_at < known.detail_at {
                messages.push(("gpu", detail.to_string()));
            }
            self.cursors.insert(key.clone(), (known.detail_at, end));
        }
        messages
    }

    fn list(&mut self, inner: &Inner, number: u64) -> String {
        let settings = &self.hub.settings;
        let since = self.list_at.filter(|at| *at >= inner.left_at);
        let changed = inner.gpus.values().filter(|known| since.is_none_or(|at| known.summary_at > at));
        self.list_at = Some(number);
        let list = List {
            source: &settings.source,
            version: env!("CARGO_PKG_VERSION"),
            note: if number == 0 { &settings.note } else { "" },
            at_unix_ms: inner.now_unix_ms,
            every_ms: whole_ms(settings.interval),
            count: inner.gpus.len(),
            few: inner.is_few(),
            all: since.is_none(),
            gpus: changed.map(|known| known.summary.clone()).collect(),
        };
        serde_json::to_string(&list).expect("keys are strings")
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        let mut inner = lock(&self.hub.inner);
        if let Some(count) = inner.viewers_by_gpu.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                inner.viewers_by_gpu.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests;

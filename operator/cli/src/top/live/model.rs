//! What is known of all GPUs and their tenants: the last look, the histories, colours and rates.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use sluice_page::history::{History, SPAN_MS};
use sluice_page::palette::Palette;
use sluice_page::tracker::Tracker;
use sluice_page::view::{GpuView, Reading, TenantView, states, title};
use sluice_wire::state::TenantReport;
use sluice_wire::time::whole_ms;
use sluice_wire::{Overview, State};

/// Most moves that are kept of each GPU.
const MAX_MOVES: usize = 256;

/// By what the list is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Title.
    #[default]
    Name,
    /// How bad it is, then how far below its promise.
    Slo,
    /// Tokens per second.
    Tokens,
    /// Time to the first token.
    Ttft,
    /// Time between tokens.
    Tbt,
    /// Share of the KV cache that requests use.
    Kv,
    /// Layers that are not resident.
    Layers,
}

impl Sort {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Slo => "SLO",
            Sort::Tokens => "tokens/s",
            Sort::Ttft => "TTFT",
            Sort::Tbt => "TBT",
            Sort::Kv => "KV",
            Sort::Layers => "layers",
        }
    }

    /// The order of two tenants: the one that is looked for first. What is not known is last.
    fn compare(self, a: &TenantView, b: &TenantView) -> Ordering {
        let slo = |tenant: &TenantView| match tenant.worst_objective() {
            Some(one) => one.margin(),
            // One that does not answer is worse than any share.
            None if !tenant.answers => i64::MIN,
            None => i64::MAX,
        };
        let tokens = |tenant: &TenantView| tenant.tokens_per_s.unwrap_or(-1.0);
        match self {
            Sort::Name => Ordering::Equal,
            Sort::Slo => b.level.cmp(&a.level).then_with(|| slo(a).cmp(&slo(b))),
            Sort::Tokens => tokens(b).total_cmp(&tokens(a)),
            Sort::Ttft => b.ttft_ns.cmp(&a.ttft_ns),
            Sort::Tbt => b.tbt_ns.cmp(&a.tbt_ns),
            Sort::Kv => b.kv_used_permille.cmp(&a.kv_used_permille),
            Sort::Layers => absent_layers(b).cmp(&absent_layers(a)),
        }
    }
}

fn absent_layers(tenant: &TenantView) -> Option<usize> {
    tenant.answers.then(|| tenant.layers.chars().filter(|layer| *layer != 'r').count())
}

/// Names a row: the GPU's key and the tenant's title.
pub type RowKey = (String, String);

/// One GPU.
#[derive(Debug)]
pub struct GpuEntry {
    /// What is shown of it.
    pub view: GpuView,
    /// What its tenants told.
    pub reports: Vec<TenantReport>,
    tracker: Tracker,
}

impl GpuEntry {
    /// Its last quarter of an hour.
    pub const fn history(&self) -> &History {
        self.tracker.history()
    }
}

/// One tenant of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its GPU.
    pub gpu: &'a GpuEntry,
    /// What is shown of it.
    pub tenant: &'a TenantView,
}

impl<'a> Row<'a> {
    /// Its name.
    pub fn key(&self) -> RowKey {
        (self.gpu.view.key.clone(), self.tenant.title.clone())
    }

    /// What its sidecar told; `None` = nothing.
    pub fn state(&self) -> Option<&'a State> {
        states(&self.gpu.reports).find(|state| title(state) == self.tenant.title)
    }
}

/// All of it.
#[derive(Debug)]
pub struct TopModel {
    gpus: BTreeMap<String, GpuEntry>,
    palette: Palette,
    most_samples: usize,
    /// When the last look was, milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
}

impl TopModel {
    /// One that has seen nothing and is given a look `every` so often.
    pub fn new(every: Duration) -> TopModel {
        let most_samples = SPAN_MS.checked_div(whole_ms(every)).unwrap_or(SPAN_MS);
        TopModel {
            gpus: BTreeMap::new(),
            palette: Palette::default(),
            most_samples: usize::try_from(most_samples).unwrap_or(usize::MAX),
            now_unix_ms: 0,
        }
    }

    /// Takes a look of `now_unix_ms`.
    pub fn update(&mut self, overview: Overview, now_unix_ms: u64) {
        self.now_unix_ms = now_unix_ms;
        let mut before = std::mem::take(&mut self.gpus);
        for gpu in overview.gpus {
            let reading = Reading {
                namespace: &gpu.namespace,
                pool: &gpu.pool,
                name: &gpu.name,
                node: gpu.node.as_deref(),
                capacity_bytes: None,
                read_unix_ms: gpu.read_unix_ms,
                problem: gpu.problem.as_deref(),
                tenants: &gpu.tenants,
            };
            let key = reading.key();
            let new = || Tracker::new(History::sized(self.most_samples, MAX_MOVES));
            let mut tracker = before.remove(&key).map_or_else(new, |known| known.tracker);
            let view = tracker.record(&reading, now_unix_ms, &mut self.palette);
            self.gpus.insert(key, GpuEntry { view, reports: gpu.tenants, tracker });
        }
        let gpus = &self.gpus;
        let is_there =
            |title: &str| gpus.values().any(|gpu| gpu.view.tenants.iter().any(|one| one.title == title));
        self.palette.retain(is_there);
    }

    /// All GPUs, by key.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuEntry> {
        self.gpus.values()
    }

    /// All tenants, sorted; those that are equal by name.
    pub fn rows(&self, sort: Sort, reverse: bool) -> Vec<Row<'_>> {
        let all = self.gpus.values();
        let mut rows: Vec<Row<'_>> =
            all.flat_map(|gpu| gpu.view.tenants.iter().map(move |tenant| Row { gpu, tenant })).collect();
        rows.sort_by(|a, b| {
            let names = || (&a.tenant.title, &a.gpu.view.key).cmp(&(&b.tenant.title, &b.gpu.view.key));
            sort.compare(a.tenant, b.tenant).then_with(names)
        });
        if reverse {
            rows.reverse();
        }
        rows
    }

    /// How far back figures through time go, milliseconds: as short as it may be while all that is known is in it.
    pub fn span_ms(&self) -> u64 {
        let start = self.gpus.values().filter_map(|gpu| gpu.history().start_unix_ms()).min();
        let known = self.now_unix_ms.saturating_sub(start.unwrap_or(self.now_unix_ms));
        [60_000, 120_000, 300_000].into_iter().find(|span| known <= *span).unwrap_or(SPAN_MS)
    }

    /// The time that [`TopModel::span_ms`] covers, milliseconds since the Unix epoch.
    pub fn time_range(&self) -> (u64, u64) {
        (self.now_unix_ms.saturating_sub(self.span_ms()), self.now_unix_ms)
    }

    /// A tenant's name as it is shown: without its namespace where all have the same, with its GPU where it is on
    /// several.
    pub fn display_name(&self) -> impl Fn(&Row<'_>) -> String {
        let mut slots: BTreeMap<String, usize> = BTreeMap::new();
        let tenants = self.gpus.values().flat_map(|gpu| &gpu.view.tenants);
        tenants.for_each(|tenant| *slots.entry(tenant.title.clone()).or_default() += 1);
        let namespace = |title: &str| title.split_once('/').map(|(namespace, _)| namespace.to_owned());
        let mut namespaces: Vec<_> = slots.keys().map(|title| namespace(title)).collect();
        namespaces.dedup();
        let alone = namespaces.len() <= 1;
        move |row| {
            let title = &row.tenant.title;
            let name = title.split_once('/').filter(|_| alone).map_or(title.as_str(), |(_, name)| name);
            let twice = slots.get(title).is_some_and(|slots| *slots > 1);
            if twice { format!("{name}@{}", row.gpu.view.name) } else { name.to_owned() }
        }
    }
}

//! The data of the live screen: the last reading, histories, colours and rates of all GPUs and tenants.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use sluice_page::history::History;
use sluice_page::history::span::SPAN_MS;
use sluice_page::palette::Palette;
use sluice_page::tracker::Tracker;
use sluice_page::view::{GpuView, Reading, TenantView, states, title};
use sluice_wire::state::TenantReport;
use sluice_wire::time::whole_ms;
use sluice_wire::{Overview, State};

/// Most moves that are kept per GPU.
const MAX_MOVES: usize = 256;

/// Sort key of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Title.
    #[default]
    Name,
    /// Severity, then the distance below the objective.
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
    /// Returns its name for users.
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

    /// Compares two tenants; the most interesting one is first, and unknown values are last.
    fn compare(self, a: &TenantView, b: &TenantView) -> Ordering {
        let slo = |tenant: &TenantView| match tenant.worst_objective() {
            Some(one) => one.margin(),
            // A tenant that does not answer is worse than any attainment.
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

/// Key of a row: the GPU's key and the tenant's title.
pub type RowKey = (String, String);

/// One GPU.
#[derive(Debug)]
pub struct GpuEntry {
    /// The view that is shown.
    pub view: GpuView,
    /// Reports of its tenants.
    pub reports: Vec<TenantReport>,
    tracker: Tracker,
}

impl GpuEntry {
    /// Returns its last quarter of an hour.
    pub const fn history(&self) -> &History {
        self.tracker.history()
    }
}

/// One tenant of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its GPU.
    pub gpu: &'a GpuEntry,
    /// The view that is shown.
    pub tenant: &'a TenantView,
}

impl<'a> Row<'a> {
    /// Returns its key.
    pub fn key(&self) -> RowKey {
        (self.gpu.view.key.clone(), self.tenant.title.clone())
    }

    /// State from its sidecar; `None` = no report.
    pub fn state(&self) -> Option<&'a State> {
        states(&self.gpu.reports).find(|state| title(state) == self.tenant.title)
    }
}

/// All GPUs and tenants.
#[derive(Debug)]
pub struct TopModel {
    gpus: BTreeMap<String, GpuEntry>,
    palette: Palette,
    most_samples: usize,
    /// Time of the last reading, milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
}

impl TopModel {
    /// Creates an empty model that gets a reading `every` interval.
    pub fn new(every: Duration) -> TopModel {
        let most_samples = SPAN_MS.checked_div(whole_ms(every)).unwrap_or(SPAN_MS);
        TopModel {
            gpus: BTreeMap::new(),
            palette: Palette::default(),
            most_samples: usize::try_from(most_samples).unwrap_or(usize::MAX),
            now_unix_ms: 0,
        }
    }

    /// Adds the reading of `now_unix_ms`.
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

    /// Returns all GPUs, by key.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuEntry> {
        self.gpus.values()
    }

    /// Returns all tenants, sorted; ties by name.
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

    /// Returns the time span of the charts, milliseconds: the shortest one that covers all known data.
    pub fn span_ms(&self) -> u64 {
        let start = self.gpus.values().filter_map(|gpu| gpu.history().start_unix_ms()).min();
        let known = self.now_unix_ms.saturating_sub(start.unwrap_or(self.now_unix_ms));
        [60_000, 120_000, 300_000].into_iter().find(|span| known <= *span).unwrap_or(SPAN_MS)
    }

    /// Returns the time range of [`TopModel::span_ms`], milliseconds since the Unix epoch.
    pub fn time_range(&self) -> (u64, u64) {
        (self.now_unix_ms.saturating_sub(self.span_ms()), self.now_unix_ms)
    }

    /// Returns a tenant's displayed name: without its namespace if all have the same, with its GPU if it is on
    /// several.
    pub fn display_name(&self) -> impl Fn(&Row<'_>) -> String {
        let mut slots: BTreeMap<String, usize> = BTreeMap::new();
        let tenants = self.gpus.values().flat_map(|gpu| &gpu.view.tenants);
        tenants.for_each(|tenant| *slots.entry(tenant.title.clone()).or_default() += 1);
        let namespace = |title: &str| title.split_once('/').map(|(namespace, _)| namespace.to_owned());
        let mut namespaces: Vec<_> = slots.keys().map(|title| namespace(title)).collect();
        namespaces.dedup();
        let one_namespace = namespaces.len() <= 1;
        move |row| {
            let title = &row.tenant.title;
            let name =
                title.split_once('/').filter(|_| one_namespace).map_or(title.as_str(), |(_, name)| name);
            let twice = slots.get(title).is_some_and(|slots| *slots > 1);
            if twice { format!("{name}@{}", row.gpu.view.name) } else { name.to_owned() }
        }
    }
}

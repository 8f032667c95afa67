//! A plan as lines for people.

use sluice_plan::place::{Misfit, Unplaced};
use sluice_plan::status::Finding;
use sluice_plan::unit::{GpuPlan, Plan, SlotPlan, TenantPlan};
use sluice_types::tenant::EngineKind;
use sluice_wire::refusal::Refusal;

use super::change::{Change, Templates, change, templates};
use super::scene::Pool;
use sluice_page::words::figures::bytes;

/// What is said of a pool.
#[derive(Debug, Default)]
pub struct Told {
    /// Line by line.
    pub lines: Vec<String>,
    /// Slots that are asked for.
    pub slots: usize,
    /// Those that would not be served.
    pub homeless: usize,
}

/// Tells a plan; `before` are the slots that are there.
pub fn told(pool: &Pool<'_>, plan: &Plan<'_>, before: Option<&Templates>) -> Told {
    let after = templates(pool, plan);
    let page = Page { pool, plan, before, after: &after, width: width(plan) };
    let mut told = Told { lines: vec![page.title()], ..Told::default() };
    for at in 0..plan.gpus.len() {
        told.lines.extend(page.gpu(at));
    }
    for tenant in &plan.tenants {
        page.without_gpu(tenant, &mut told);
    }
    told.lines.extend(page.gone());
    told.lines.extend(page.unknown());
    told.lines.extend(page.downtime());
    told
}

fn width(plan: &Plan<'_>) -> usize {
    plan.tenants.iter().map(|tenant| name(tenant).len()).max().unwrap_or(0)
}

fn name<'p>(tenant: &'p TenantPlan<'_>) -> &'p str {
    tenant.tenant.metadata.name.as_deref().unwrap_or_default()
}

/// What the lines of a pool are made of.
struct Page<'p> {
    pool: &'p Pool<'p>,
    plan: &'p Plan<'p>,
    before: Option<&'p Templates>,
    after: &'p Templates,
    width: usize,
}

impl Page<'_> {
    fn title(&self) -> String {
        let (namespace, name) = &self.pool.key;
        let Some(pool) = self.pool.pool else { return format!("GpuPool {namespace}/{name}: there is none") };
        let spec = &pool.spec;
        let count = self.plan.gpus.len();
        let class = &spec.device_class_name;
        format!("GpuPool {namespace}/{name}: {count} GPUs of {class}, policy {}", spec.policy.as_str())
    }

    fn gpu(&self, at: usize) -> Vec<String> {
        let planned = &self.plan.gpus[at];
        let mut lines = vec![format!("  {}  {}", planned.gpu.name, self.room(at, planned))];
        let waits = planned.epoch.is_some_and(|epoch| epoch.waits);
        let word = "    a change of the pool waits here until no tenant is left (updatePolicy: WhenEmpty)";
        lines.extend(waits.then(|| word.to_owned()));
        lines.extend(self.plan.on(at).map(|(tenant, slot)| self.slot(tenant, slot)));
        lines
    }

    /// How a GPU is shared, and what its slots leave.
    fn room(&self, at: usize, planned: &GpuPlan) -> String {
        let gpu = &planned.gpu;
        let demands = || self.plan.on(at).map(|(_, slot)| slot.demand);
        let floors: u64 = demands().map(|demand| demand.floor_bytes).sum();
        let host: u64 = demands().map(|demand| demand.host_bytes).sum();
        let device = match gpu.capacity_bytes {
            Some(capacity) => {
                let lent = bytes(capacity.saturating_sub(floors));
                format!("floors {} of {}, {lent} to lend", bytes(floors), bytes(capacity))
            }
            None => format!("floors {}, its size is known once it is claimed", bytes(floors)),
        };
        let mode = gpu.settings.sharing.mode;
        match demands().next() {
            None => format!("{mode:?}  no tenant"),
            Some(_) => {
                format!("{mode:?}  {device}  host memory {} of {}", bytes(host), bytes(gpu.host_bytes))
            }
        }
    }

    fn slot(&self, tenant: &TenantPlan<'_>, slot: &SlotPlan) -> String {
        let (floor, share) = (bytes(slot.demand.floor_bytes), bytes(slot.share_bytes));
        let host = bytes(slot.demand.host_bytes);
        let line = format!("floor {floor}  share {share}  host memory {host}");
        let what = match tenant.tenant.spec.engine.kind {
            EngineKind::Vllm => format!("the whole GPU  host memory {host}"),
            EngineKind::Native => line,
        };
        let change = self.change(name(tenant), slot.index).map(|change| match change {
            Change::New => "  new".to_owned(),
            Change::Stays => "  stays".to_owned(),
            Change::Replaced => "  its pod is replaced".to_owned(),
            Change::Moves(from) => format!("  its pod is replaced, it was on {from}"),
        });
        let title = format!("{:width$}  slot {}", name(tenant), slot.index, width = self.width);
        format!("    {title}  {what}{}", change.unwrap_or_default())
    }

    fn change(&self, tenant: &str, slot: u32) -> Option<Change> {
        let key = (tenant.to_owned(), slot);
        Some(change(self.before?, &key, self.after.get(&key)?))
    }

    /// Tenants that cannot be served, and slots that have no GPU.
    fn without_gpu(&self, tenant: &TenantPlan<'_>, told: &mut Told) {
        let (name, width) = (name(tenant), self.width);
        if !tenant.is_accepted() {
            for Finding { reason, message, .. } in &tenant.refusals {
                let place = self.pool.blame(name).map(|blame| format!(" ({})", blame.place_of(message)));
                let (reason, place) = (reason.as_str(), place.unwrap_or_default());
                told.lines.push(format!("  {name:width$}  refused ({reason}): {message}{place}"));
            }
            let asked = usize::try_from(tenant.tenant.spec.replicas).unwrap_or(0).max(1);
            (told.slots, told.homeless) = (told.slots + asked, told.homeless + asked);
            return;
        }
        told.slots += tenant.slots.len();
        let rests =
            tenant.slots.is_empty().then(|| format!("  {name:width$}  no slot: suspended, or replicas is 0"));
        told.lines.extend(rests);
        for slot in &tenant.slots {
            match &slot.on {
                Ok(_) | Err(Unplaced::ModelNotInspected) => {}
                Err(why) => {
                    told.homeless += 1;
                    told.lines.push(format!("  {name:width$}  slot {}  no GPU: {why}", slot.index));
                    told.lines.extend(self.changes(name, why));
                }
            }
        }
    }

    /// The fields of files a change of which would make room, as `sluice up` names them.
    fn changes(&self, tenant: &str, why: &Unplaced) -> Vec<String> {
        let fields = match why {
            Unplaced::ModelLargerThanGpu { .. } | Unplaced::NoRoom { misfit: Misfit::Device(_), .. } => {
                Refusal::OF_FLOOR
            }
            Unplaced::NoRoom { misfit: Misfit::Host(_), .. } => "gpu.host_memory_bytes",
            _ => return Vec::new(),
        };
        let refusal = Refusal::new(fields, "change this");
        let lines = self.pool.blame(tenant).map(|blame| blame.lines(&refusal)).unwrap_or_default();
        lines.into_iter().map(|line| format!("    {line}")).collect()
    }

    /// Slots that there are and that are not to be.
    fn gone(&self) -> Vec<String> {
        let before = self.before.into_iter().flatten();
        let gone = before.filter(|(key, _)| !self.after.contains_key(*key));
        gone.map(|((tenant, slot), standing)| {
            format!("  {tenant:width$}  slot {slot}  goes from {}", standing.gpu, width = self.width)
        })
        .collect()
    }

    /// What cannot be known here.
    fn unknown(&self) -> Vec<String> {
        let unknown = self
            .plan
            .tenants
            .iter()
            .filter(|tenant| tenant.model.is_none() && tenant.is_accepted() && !tenant.slots.is_empty());
        unknown
            .map(|tenant| {
                let (name, width) = (name(tenant), self.width);
                let why = match &tenant.refusal {
                    Some(refusal) => format!("its model could not be read: {}", refusal.message),
                    None => format!("in a cluster a Job reads its model; here --model {name}=FOLDER does"),
                };
                format!("  {name:width$}  not placed, its sizes are not known: {why}")
            })
            .collect()
    }

    /// Who is away, or will be: a slot has one pod, whose memory has room for one life.
    fn downtime(&self) -> Vec<String> {
        let served =
            self.plan.tenants.iter().filter(|tenant| tenant.slots.iter().any(|slot| slot.on.is_ok()));
        let (mut away, mut lone) = (Vec::new(), Vec::new());
        for tenant in served {
            let changes: Vec<Change> =
                tenant.slots.iter().filter_map(|slot| self.change(name(tenant), slot.index)).collect();
            let runs_on = changes.contains(&Change::Stays);
            let replaced = changes.iter().any(|change| matches!(change, Change::Replaced | Change::Moves(_)));
            if replaced && !runs_on {
                away.push(name(tenant));
            } else if tenant.slots.len() == 1 {
                lone.push(name(tenant));
            }
        }
        let away = (!away.is_empty()).then(|| {
            format!("  The change takes {} down until their pods have loaded again.", away.join(", "))
        });
        let lone = (!lone.is_empty()).then(|| {
            format!(
                "  One slot only: {}. Whatever replaces its pod is downtime. A second slot, which needs a second GPU, helps \
                 against a drained or lost node; an edit or an upgrade replaces the pods of all slots at once.",
                lone.join(", ")
            )
        });
        away.into_iter().chain(lone).collect()
    }
}

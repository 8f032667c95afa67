//! Renders a plan as text.

use sluice_common::text::counted;
use sluice_plan::conditions::ConditionResult;
use sluice_plan::placement::UnplacedReason;
use sluice_plan::pool_plan::{GpuPlan, PoolPlan, SlotPlan, TenantPlan};
use sluice_types::tenant::EngineKind;
use sluice_wire::config_rejection::ConfigRejection;

use super::change::{SlotChange, SlotTemplates, slot_change, slot_templates};
use super::inputs::PoolInputs;
use crate::up::unplaced_fields;
use sluice_page::text::formatting::bytes;

/// The rendered plan of a pool.
#[derive(Debug, Default)]
pub struct RenderedPool {
    /// Line by line.
    pub lines: Vec<String>,
    /// Number of requested slots.
    pub slots: usize,
    /// Number of slots that would not be served.
    pub unplaced: usize,
}

/// Renders a plan; `before` are the existing slots.
pub fn render(pool: &PoolInputs<'_>, plan: &PoolPlan<'_>, before: Option<&SlotTemplates>) -> RenderedPool {
    let after = slot_templates(pool, plan);
    let page = PoolRenderer { pool, plan, slots_before: before, slots_after: &after, width: width(plan) };
    let mut rendered = RenderedPool { lines: vec![page.title()], ..RenderedPool::default() };
    for at in 0..plan.gpus.len() {
        rendered.lines.extend(page.gpu_lines(at));
    }
    for tenant in &plan.tenants {
        page.add_unplaced(tenant, &mut rendered);
    }
    rendered.lines.extend(page.removed_slots());
    rendered.lines.extend(page.unknown_sizes());
    rendered.lines.extend(page.downtime_lines());
    rendered
}

fn width(plan: &PoolPlan<'_>) -> usize {
    plan.tenants.iter().map(|tenant| name(tenant).len()).max().unwrap_or(0)
}

fn name<'p>(tenant: &'p TenantPlan<'_>) -> &'p str {
    tenant.tenant.metadata.name.as_deref().unwrap_or_default()
}

/// State of the rendering of a pool.
struct PoolRenderer<'p> {
    pool: &'p PoolInputs<'p>,
    plan: &'p PoolPlan<'p>,
    slots_before: Option<&'p SlotTemplates>,
    slots_after: &'p SlotTemplates,
    width: usize,
}

impl PoolRenderer<'_> {
    fn title(&self) -> String {
        let (namespace, name) = &self.pool.key;
        let Some(pool) = self.pool.pool else { return format!("GpuPool {namespace}/{name} does not exist") };
        let spec = &pool.spec;
        let count = self.plan.gpus.len();
        let class = &spec.device_class_name;
        format!(
            "GpuPool {namespace}/{name}: {} of {class}, policy {}",
            counted(count, "GPU"),
            spec.policy.as_str()
        )
    }

    fn gpu_lines(&self, at: usize) -> Vec<String> {
        let planned = &self.plan.gpus[at];
        let mut lines = vec![format!("  {}  {}", planned.gpu.name, self.gpu_capacity(at, planned))];
        let waits = planned.epoch.is_some_and(|epoch| epoch.is_update_pending);
        let word = "    a change of the pool is pending here until no tenant is on this GPU (updatePolicy: WhenEmpty)";
        lines.extend(waits.then(|| word.to_owned()));
        lines.extend(self.plan.slots_on(at).map(|(tenant, slot)| self.slot_line(tenant, slot)));
        lines
    }

    /// Describes how a GPU is shared, and its remaining memory.
    fn gpu_capacity(&self, at: usize, planned: &GpuPlan) -> String {
        let gpu = &planned.gpu;
        let demands = || self.plan.slots_on(at).map(|(_, slot)| slot.demand);
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

    fn slot_line(&self, tenant: &TenantPlan<'_>, slot: &SlotPlan) -> String {
        let (floor, share) = (bytes(slot.demand.floor_bytes), bytes(slot.share_bytes));
        let host = bytes(slot.demand.host_bytes);
        let line = format!("floor {floor}  share {share}  host memory {host}");
        let what = match tenant.tenant.spec.engine.kind {
            EngineKind::Vllm => format!("the whole GPU  host memory {host}"),
            EngineKind::Native => line,
        };
        let change = self.change(name(tenant), slot.index).map(|change| match change {
            SlotChange::New => "  new".to_owned(),
            SlotChange::Unchanged => "  stays".to_owned(),
            SlotChange::Replaced => "  its pod is replaced".to_owned(),
            SlotChange::Moved(from) => format!("  its pod is replaced, it was on {from}"),
        });
        let title = format!("{:width$}  slot {}", name(tenant), slot.index, width = self.width);
        format!("    {title}  {what}{}", change.unwrap_or_default())
    }

    fn change(&self, tenant: &str, slot: u32) -> Option<SlotChange> {
        let key = (tenant.to_owned(), slot);
        Some(slot_change(self.slots_before?, &key, self.slots_after.get(&key)?))
    }

    /// Adds tenants that cannot be served, and slots without a GPU.
    fn add_unplaced(&self, tenant: &TenantPlan<'_>, rendered: &mut RenderedPool) {
        let (name, width) = (name(tenant), self.width);
        if !tenant.is_accepted() {
            for ConditionResult { reason, message, .. } in &tenant.rejections {
                let place =
                    self.pool.field_locator(name).map(|blame| format!(" ({})", blame.location_of(message)));
                let (reason, place) = (reason.as_str(), place.unwrap_or_default());
                rendered.lines.push(format!("  {name:width$}  refused ({reason}): {message}{place}"));
            }
            let asked = usize::try_from(tenant.tenant.spec.replicas).unwrap_or(0).max(1);
            (rendered.slots, rendered.unplaced) = (rendered.slots + asked, rendered.unplaced + asked);
            return;
        }
        rendered.slots += tenant.slots.len();
        let rests =
            tenant.slots.is_empty().then(|| format!("  {name:width$}  no slot: suspended, or replicas is 0"));
        rendered.lines.extend(rests);
        for slot in &tenant.slots {
            match &slot.gpu_index {
                Ok(_) | Err(UnplacedReason::ModelNotInspected) => {}
                Err(why) => {
                    rendered.unplaced += 1;
                    rendered.lines.push(format!("  {name:width$}  slot {}  no GPU: {why}", slot.index));
                    rendered.lines.extend(self.suggested_changes(name, why));
                }
            }
        }
    }

    /// Lists the fields of files whose change would free capacity, as `sluice up` names them.
    fn suggested_changes(&self, tenant: &str, why: &UnplacedReason) -> Vec<String> {
        let refusal = ConfigRejection::new(unplaced_fields(why), "change this");
        let lines = self.pool.field_locator(tenant).map(|blame| blame.lines(&refusal)).unwrap_or_default();
        lines.into_iter().map(|line| format!("    {line}")).collect()
    }

    /// Lists existing slots that the plan removes.
    fn removed_slots(&self) -> Vec<String> {
        let before = self.slots_before.into_iter().flatten();
        let gone = before.filter(|(key, _)| !self.slots_after.contains_key(*key));
        gone.map(|((tenant, slot), standing)| {
            format!("  {tenant:width$}  slot {slot}  is removed from {}", standing.gpu, width = self.width)
        })
        .collect()
    }

    /// Lists the tenants whose sizes are unknown.
    fn unknown_sizes(&self) -> Vec<String> {
        let unknown = self
            .plan
            .tenants
            .iter()
            .filter(|tenant| tenant.model.is_none() && tenant.is_accepted() && !tenant.slots.is_empty());
        unknown
            .map(|tenant| {
                let (name, width) = (name(tenant), self.width);
                let why = match &tenant.inspection_error {
                    Some(refusal) => format!("cannot read its model: {}", refusal.message),
                    None => format!(
                        "in a cluster a Job reads the model; here, name its folder with --model {name}=FOLDER"
                    ),
                };
                format!("  {name:width$}  not placed, because the sizes of its model are not known: {why}")
            })
            .collect()
    }

    /// Lists the slots with downtime: a slot has one pod, whose memory suffices for one instance.
    fn downtime_lines(&self) -> Vec<String> {
        let served =
            self.plan.tenants.iter().filter(|tenant| tenant.slots.iter().any(|slot| slot.gpu_index.is_ok()));
        let (mut away, mut lone) = (Vec::new(), Vec::new());
        for tenant in served {
            let changes: Vec<SlotChange> =
                tenant.slots.iter().filter_map(|slot| self.change(name(tenant), slot.index)).collect();
            let runs_on = changes.contains(&SlotChange::Unchanged);
            let replaced =
                changes.iter().any(|change| matches!(change, SlotChange::Replaced | SlotChange::Moved(_)));
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
                "  Tenants with one slot: {}. They do not serve while their pod is replaced. A second slot, \
                 on a second GPU, helps when a node is drained or lost; an edit or an upgrade replaces the \
                 pods of all slots at once.",
                lone.join(", ")
            )
        });
        away.into_iter().chain(lone).collect()
    }
}

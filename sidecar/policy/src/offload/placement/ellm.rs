//! Computes prompts without space for their KV: it goes to the host tier layer by layer, and returns when the request
//! continues (eLLM 4.4.2). Algorithm 2 sizes the part of the tier that prompts may use.

use crate::ids::LayerId;
use crate::kv::layer_offload::Placement;
use crate::offload::layouts::buffers;
use crate::offload::offloading::Offloading;
use crate::offload::view::OffloadView;
use crate::step_model::Layout;

/// The placement that is due: nothing is placed while no prompt is offloaded.
pub fn due_placement(view: &OffloadView<'_>) -> Option<Placement> {
    let idle = view.kv.layer_offload().spilling_requests().next().is_none()
        || !view.kv.layer_offload().places_prefills();
    (idle && view.is_placed()).then(Placement::default)
}

/// All layers, in as many buffers as allowed: no KV of a prompt stays.
fn prefill_layout(layers: u16) -> Layout {
    Layout { moving: (0..layers).map(LayerId).collect(), beta: buffers(usize::from(layers)) }
}

impl Offloading<'_> {
    /// Lets the placement in force offload prompts too.
    ///
    /// # Panics
    /// If it does not yet and a copy into a buffer is under way: the caller asks
    /// [`crate::memory_manager::AdmissionView::prefill_offload`] or
    /// [`crate::memory_manager::AdmissionView::admits_by_prefill_offload`] before.
    pub fn place_prefills(&mut self) {
        if !self.kv.layer_offload().places_prefills() {
            self.kv.place(self.kv.layer_offload().placement_with_prefills(prefill_layout(self.sizes.layers)));
        }
    }
}

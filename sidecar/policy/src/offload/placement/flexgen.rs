//! FlexGen: a fixed share of the layers of every request is in the host tier.

use crate::offload::layouts::moving_layout;
use crate::offload::view::OffloadView;
use crate::step_model::Layout;

/// The offloaded layers: the share that the configuration sets, and never all of them.
pub fn layout(view: &OffloadView<'_>) -> Layout {
    let layers = u32::from(view.sizes.layers);
    let away = layers * view.params.fixed_away_permille / 1000;
    moving_layout(view.sizes.layers, away.min(layers - 1) as u16)
}

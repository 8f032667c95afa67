//! Chooses the moving layers among identical layers, with slots at constant addresses, and evaluates them with the
//! policy's step model.

use sluice_policy::closed_form::Alike;
use sluice_policy::remap::{uniform, uniform_widened};
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};

/// Returns the layout that frees `alpha` layers with `beta` slots and has the smallest stall, and its stall per token
/// in nanoseconds. Positions are uniform; for an odd number of moving layers in two slots, wider gaps at the end of the
/// token are tried too, as in the policy.
///
/// # Panics
/// If `alpha + beta` is more than the model's layers, or `beta` is not 1 or 2.
pub fn best(alike: Alike, alpha: u16, beta: u8) -> (Layout, u64) {
    assert!((1..=2).contains(&beta), "one slot or two");
    let moving = alpha + u16::from(beta);
    let widest = if beta == 2 && moving % 2 == 1 { 2 } else { 0 };
    let gaps = (0..=widest).filter(|extra| moving + extra <= alike.layers);
    let tried = gaps.map(|extra| match extra {
        0 => uniform(alike.layers, moving),
        extra => uniform_widened(alike.layers, moving, extra),
    });
    let measured = tried.map(|moving| {
        let layout = Layout { moving, beta };
        let stall_ns = stall_ns(alike, &layout);
        (layout, stall_ns)
    });
    measured.min_by_key(|(_, stall_ns)| *stall_ns).expect("uniform positions are always tried")
}

/// Returns the stall per token of a layout of these layers, in nanoseconds.
fn stall_ns(alike: Alike, layout: &Layout) -> u64 {
    let compute = vec![alike.compute_ns; alike.layers.into()];
    let transfer = vec![alike.transfer_ns; alike.layers.into()];
    stall_per_token_ns(&Times { compute_ns: &compute, transfer_ns: &transfer }, layout)
}

/// Returns the largest alpha without a stall with `beta` slots at constant addresses; never a whole model. The closed
/// form of two *alternating* slots may allow one more: with an odd number of moving layers the last and the first one
/// share a slot.
pub fn largest_alpha(alike: Alike, beta: u8) -> u16 {
    let most = if beta == 1 { alike.one_slot_largest_alpha() } else { alike.two_slots_largest_alpha() };
    (1..=most).rev().find(|alpha| best(alike, *alpha, beta).1 == 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(layers: u16, r_permille: u64) -> Alike {
        Alike { layers, compute_ns: 1_000_000, transfer_ns: r_permille * 1000 }
    }

    #[test]
    fn one_slot_is_the_closed_form_and_two_are_never_above_theirs() {
        for (layers, r) in (500..18_000).step_by(250).flat_map(|r| [(32, r), (40, r), (80, r)]) {
            let alike = alike(layers, r);
            assert_eq!(largest_alpha(alike, 1), alike.one_slot_largest_alpha(), "{alike:?}");
            assert!(largest_alpha(alike, 2) <= alike.two_slots_largest_alpha(), "{alike:?}");
        }
    }

    #[test]
    fn an_odd_number_of_moving_layers_can_stall_where_alternating_slots_do_not() {
        let alike = alike(40, 3550);
        assert_eq!((alike.two_slots_largest_alpha(), largest_alpha(alike, 2)), (9, 8));
        assert!(best(alike, 9, 2).1 > 0);
    }

    #[test]
    fn even_numbers_go_as_far_as_alternating_slots() {
        assert_eq!(largest_alpha(alike(32, 4000), 2), 6);
        assert_eq!(largest_alpha(alike(80, 6500), 2), 10);
    }
}

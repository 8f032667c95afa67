//! The time to the first token of a prompt while weights load (Oneiros 5.3, T_Compute of an inactive model): its closed
//! form, and a schedule of one link and one device that it is compared with.

/// A prompt over n identical layers of which the first f are resident. The others load in order from time 0.
#[derive(Clone, Copy, Debug)]
pub struct Waking {
    /// n: layers.
    pub layers: u16,
    /// f: resident layers, the first ones. At most n.
    pub present: u16,
    /// T_T: copy of one layer, nanoseconds.
    pub transfer_ns: u64,
    /// T_p: the whole prompt's compute in one layer, nanoseconds.
    pub compute_ns: u64,
}

impl Waking {
    /// Returns the time to the first token, nanoseconds, if the whole prompt passes a layer before the next one:
    /// `max(n T_p, T_T + (n-f) T_p, (n-f) T_T + T_p)`.
    pub fn ttft_ns(self) -> u64 {
        let (all, missing) = (u64::from(self.layers), u64::from(self.layers - self.present));
        if missing == 0 {
            return all * self.compute_ns;
        }
        let behind_first = self.transfer_ns + missing * self.compute_ns;
        let behind_last = missing * self.transfer_ns + self.compute_ns;
        (all * self.compute_ns).max(behind_first).max(behind_last)
    }
}

/// Returns the time to the first token, nanoseconds, if the prompt's chunks run one after another: `chunks[c][i]` is
/// the compute of chunk `c` in layer `i`, and `loads_ns[i]` the copy of layer `i`, 0 if it is resident. Later chunks
/// find all weights resident, so only the first hides loads.
pub fn chunk_by_chunk_ns(loads_ns: &[u64], chunks: &[&[u64]]) -> u64 {
    let mut compute_free = 0;
    for computes_ns in chunks {
        assert_eq!(loads_ns.len(), computes_ns.len(), "both times are given for every layer");
        let mut link_free = 0; // the load schedule is the same for every chunk
        for (load_ns, compute_ns) in loads_ns.iter().zip(*computes_ns) {
            link_free += load_ns;
            let ready = if *load_ns == 0 { 0 } else { link_free };
            compute_free = compute_free.max(ready) + compute_ns;
        }
    }
    compute_free
}

#[test]
fn the_closed_form_is_exactly_the_time_of_the_schedule() {
    for (layers, transfer_ns, compute_ns) in
        (1..=24_u16).flat_map(|n| (1..=12).flat_map(move |t| (1..=7).map(move |c| (n, t, c))))
    {
        for present in 0..=layers {
            let loads: Vec<u64> =
                (0..layers).map(|layer| if layer < present { 0 } else { transfer_ns }).collect();
            let waking = Waking { layers, present, transfer_ns, compute_ns };
            let computes = vec![compute_ns; layers.into()];
            assert_eq!(waking.ttft_ns(), chunk_by_chunk_ns(&loads, &[&computes]), "{waking:?}");
        }
    }
}

#[test]
fn four_chunks_one_after_another_take_281_where_a_whole_prompt_takes_164() {
    let loads = [4; 40];
    assert_eq!(chunk_by_chunk_ns(&loads, &[&[1; 40][..]; 4]), 281);
    assert_eq!(chunk_by_chunk_ns(&loads, &[&[4; 40]]), 164);
    assert_eq!(Waking { layers: 40, present: 0, transfer_ns: 4, compute_ns: 4 }.ttft_ns(), 164);
}

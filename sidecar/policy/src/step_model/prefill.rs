//! Simulates a prefill while weights load: layers load while earlier layers already compute (DESIGN 6, "Waking").
//!
//! The formulas in [`crate::closed_form`] agree exactly.

/// Returns the time to the first token, nanoseconds, if all chunks of the prompt pass a stage before the next one
/// starts.
///
/// `loads_ns[i]` is the copy of stage `i` (0 = resident) and `computes_ns[i]` its compute for the *whole* prompt.
/// Stages are the embeddings, the layers and the head, or the layers alone. One link loads in order, starting at time
/// 0.
pub fn layer_by_layer_ns(loads_ns: &[u64], computes_ns: &[u64]) -> u64 {
    chunk_by_chunk_ns(loads_ns, &[computes_ns])
}

/// Returns the time to the first token, nanoseconds, if the prompt's chunks run one after another: `chunks[c][i]` is
/// the compute of chunk `c` in stage `i`. Later chunks find all weights resident, so only the first hides loads.
pub fn chunk_by_chunk_ns(loads_ns: &[u64], chunks: &[&[u64]]) -> u64 {
    let mut compute_free = 0;
    for computes_ns in chunks {
        assert_eq!(loads_ns.len(), computes_ns.len(), "both times are given for every stage");
        let mut link_free = 0; // the load schedule is the same for every chunk
        for (load_ns, compute_ns) in loads_ns.iter().zip(*computes_ns) {
            link_free += load_ns;
            let ready = if *load_ns == 0 { 0 } else { link_free };
            compute_free = compute_free.max(ready) + compute_ns;
        }
    }
    compute_free
}

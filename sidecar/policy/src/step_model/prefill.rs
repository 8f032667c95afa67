//! A prompt behind its weights: layers stream in while the layers before them already compute (DESIGN 6, "Waking").
//!
//! These are simulations; [`crate::closed_form`] has the formulas that they agree with exactly.

/// Time to the first token, nanoseconds, when all chunks of the prompt go through a stage before the next stage starts.
///
/// `loads_ns[i]` is the copy of stage `i` (0 = present) and `computes_ns[i]` its compute for the *whole* prompt; stages
/// are the embeddings, the layers and the head, or the layers alone. One link, loads in order, all asked for at time 0.
pub fn layer_by_layer_ns(loads_ns: &[u64], computes_ns: &[u64]) -> u64 {
    chunk_by_chunk_ns(loads_ns, &[computes_ns])
}

/// Time to the first token, nanoseconds, when the prompt's chunks run one after another: `chunks[c][i]` is the compute of
/// chunk `c` in stage `i`. Later chunks find all weights present, so only the first hides loads.
pub fn chunk_by_chunk_ns(loads_ns: &[u64], chunks: &[&[u64]]) -> u64 {
    let mut compute_free = 0;
    for computes_ns in chunks {
        assert_eq!(loads_ns.len(), computes_ns.len(), "both times are given for every stage");
        let mut link_free = 0; // the loads' own schedule, the same for every chunk
        for (load_ns, compute_ns) in loads_ns.iter().zip(*computes_ns) {
            link_free += load_ns;
            let ready = if *load_ns == 0 { 0 } else { link_free };
            compute_free = compute_free.max(ready) + compute_ns;
        }
    }
    compute_free
}

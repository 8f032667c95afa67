//! Chooses the chunk size of a GPU made of host memory from the models that share it. Pure.

use sluice_plan::sizes;
use sluice_wire::geometry::Geometry;

/// Chunk sizes that such a GPU supports, bytes, largest first.
const CHUNK_SIZES: [u64; 6] = [2 << 20, 1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10];
/// Least number of chunks per layer where the chunk size allows it, so that little of the last chunk is wasted.
const MIN_CHUNKS_PER_LAYER: u64 = 16;

/// Returns the largest chunk size, bytes, that gives every layer at least [`MIN_CHUNKS_PER_LAYER`] chunks and still
/// holds one KV block of every model.
pub fn chunk_bytes<'a>(models: impl IntoIterator<Item = &'a Geometry> + Clone) -> u64 {
    let all = |fits: &dyn Fn(&Geometry) -> bool| models.clone().into_iter().all(fits);
    let fine = |chunk: &u64| all(&|model| chunk * MIN_CHUNKS_PER_LAYER <= model.layer_bytes);
    let holds = |chunk: &u64| all(&|model| block_bytes(model) <= *chunk);
    let fine = CHUNK_SIZES.into_iter().find(fine).unwrap_or(CHUNK_SIZES[CHUNK_SIZES.len() - 1]);
    let least = CHUNK_SIZES.into_iter().rev().find(holds).unwrap_or(CHUNK_SIZES[0]);
    fine.max(least)
}

/// Returns the KV bytes of one layer of a block.
pub fn block_bytes(model: &Geometry) -> u64 {
    sizes::block_bytes(model.kv_bytes_per_token, model.layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 32 layers.
    fn model(layer_bytes: u64, kv_bytes_per_token: u64) -> Geometry {
        Geometry {
            global_bytes: MIB,
            layer_bytes,
            layers: 32,
            kv_bytes_per_token,
            max_model_len: 512,
            activation_bytes: MIB,
            step_activation_bytes: MIB,
            thread_bytes: 0,
            staging_bytes: 0,
            download_bytes: None,
        }
    }

    #[test]
    fn a_layer_has_16_chunks_or_more_where_chunks_can_be_that_small() {
        let chunk = |layer_bytes| chunk_bytes([&model(layer_bytes, 1 << 15)]);
        let layers = [1000, 13 << 17, 7 * MIB, 16 * MIB, 16 * MIB - 1, 400 * MIB];
        assert_eq!(layers.map(chunk), [64 << 10, 64 << 10, 256 << 10, MIB, 512 << 10, 2 * MIB]);
    }

    #[test]
    fn a_chunk_holds_a_block_of_kv_of_every_model() {
        // 16 tokens of one of 32 layers: half of the KV bytes of one token over all layers.
        let (small, large) = (model(MIB, 1 << 15), model(MIB, 600 << 10));
        assert_eq!(chunk_bytes([&small]), 64 << 10);
        assert_eq!(chunk_bytes([&small, &large]), 512 << 10);
        assert_eq!(chunk_bytes([&model(MIB, 8 * MIB)]), 2 * MIB, "no chunk is larger");
    }
}

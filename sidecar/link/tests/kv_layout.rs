//! Tests of the division of KV into extents, against positions that are computed block by block.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sluice_link::message::{KvExtents, KvLayout, KvLayoutError};
use sluice_link::vocabulary::KvChunkId;

const CHUNK: u64 = 65_536;

fn by_layer(layers: u32, blocks: u32, block_bytes: u64) -> KvLayout {
    KvLayout {
        layers,
        blocks,
        block_bytes,
        layer_stride_bytes: (u64::from(blocks) * block_bytes).next_multiple_of(CHUNK),
        block_stride_bytes: block_bytes,
        block_tokens: 16,
    }
}

fn by_block(layers: u32, blocks: u32, block_bytes: u64) -> KvLayout {
    let block_stride_bytes = u64::from(layers) * block_bytes;
    KvLayout { layer_stride_bytes: block_bytes, block_stride_bytes, ..by_layer(layers, blocks, block_bytes) }
}

/// Returns every chunk that a byte of the extent's blocks lies in.
fn touched(layout: &KvLayout, extents: KvExtents, extent: u32) -> BTreeSet<u32> {
    let blocks = extent * extents.extent_blocks..(extent + 1) * extents.extent_blocks;
    let starts = blocks.flat_map(|block| {
        (0..layout.layers).map(move |layer| {
            u64::from(layer) * layout.layer_stride_bytes + u64::from(block) * layout.block_stride_bytes
        })
    });
    let chunks = starts.flat_map(|start| start / CHUNK..=(start + layout.block_bytes - 1) / CHUNK);
    chunks.map(|chunk| chunk as u32).collect()
}

#[test]
fn extents_are_the_fewest_blocks_that_fill_chunks() {
    let extents = |layout: KvLayout| layout.extents(CHUNK, 1 << 20).map(|e| (e.extent_blocks, e.extents));
    assert_eq!(extents(by_layer(30, 24, CHUNK)), Ok((1, 24)));
    assert_eq!(
        extents(by_layer(30, 25, 6 * 1024)),
        Err(KvLayoutError::NoExtent { blocks: 25, extent_blocks: 32 })
    );
    assert_eq!(extents(by_layer(30, 100, 6 * 1024)), Ok((32, 3)), "4 blocks never have memory");
    assert_eq!(extents(by_block(32, 100, 6 * 1024)), Ok((1, 100)), "a block of all layers is three chunks");
    assert_eq!(extents(by_layer(1, 7, 3 * CHUNK)), Ok((1, 7)));
}

#[test]
fn layouts_that_chunks_cannot_back_are_refused() {
    let good = by_layer(4, 8, CHUNK);
    let refused = |layout: KvLayout| layout.extents(CHUNK, 32).unwrap_err();
    assert_eq!(good.extents(CHUNK, 32).map(|extents| extents.extents), Ok(8));
    assert_eq!(
        good.extents(CHUNK, 31),
        Err(KvLayoutError::Range { needed: 32 * CHUNK, range_bytes: 31 * CHUNK })
    );
    assert_eq!(refused(KvLayout { layers: 0, ..good }), KvLayoutError::Zero("layers"));
    assert_eq!(refused(KvLayout { block_bytes: 0, ..good }), KvLayoutError::Zero("block_bytes"));
    let stride = KvLayout { block_stride_bytes: CHUNK - 1, ..good };
    assert_eq!(refused(stride), KvLayoutError::Overlap(stride));
    let same = KvLayout { layer_stride_bytes: 0, ..good };
    assert_eq!(refused(same), KvLayoutError::Overlap(same));
    let odd = KvLayout { layers: 2, layer_stride_bytes: 8 * CHUNK + 4096, ..good };
    assert!(matches!(refused(odd), KvLayoutError::Unaligned { .. }));
    let most = KvLayout { layers: u32::MAX, blocks: u32::MAX, layer_stride_bytes: u64::MAX, ..good };
    assert!(matches!(refused(most), KvLayoutError::Range { needed: u64::MAX, .. }));
    let inner = KvLayout {
        layers: u32::MAX,
        blocks: 1,
        layer_stride_bytes: CHUNK,
        block_stride_bytes: CHUNK + 1,
        ..good
    };
    assert_eq!(refused(inner), KvLayoutError::Overlap(inner));
}

proptest! {
    #[test]
    fn extents_hold_their_blocks_and_share_no_chunk(
        layers in 1..6u32,
        blocks in 1..80u32,
        quarters in 1..20u64,
        is_by_layer in any::<bool>(),
    ) {
        let make = if is_by_layer { by_layer } else { by_block };
        let layout = make(layers, blocks, quarters * CHUNK / 4);
        let Ok(extents) = layout.extents(CHUNK, 1 << 16) else { return Ok(()) };
        let mut seen = BTreeSet::new();
        for extent in 0..extents.extents {
            let chunks = layout.extent_chunks(CHUNK, extents, extent);
            let chunks: BTreeSet<u32> = chunks.into_iter().map(|KvChunkId(chunk)| chunk).collect();
            prop_assert_eq!(&chunks, &touched(&layout, extents, extent));
            prop_assert!(seen.is_disjoint(&chunks));
            seen.extend(chunks);
        }
    }

    #[test]
    fn any_numbers_are_answered_without_a_panic(
        counts in any::<[u32; 3]>(),
        bytes in any::<[u64; 3]>(),
        shift in 0..60u32,
    ) {
        let layout = KvLayout {
            layers: counts[0] >> (shift % 32),
            blocks: counts[1] >> (shift % 32),
            block_tokens: counts[2],
            block_bytes: bytes[0] >> shift,
            layer_stride_bytes: bytes[1] >> shift,
            block_stride_bytes: bytes[2] >> shift,
        };
        if let Ok(extents) = layout.extents(CHUNK, 1 << 16) {
            layout.extent_chunks(CHUNK, extents, extents.extents - 1);
        }
    }
}

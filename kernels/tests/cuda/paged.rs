//! Sequences whose K and V lie in shuffled layer-blocks of an arena.

use sluice_kernels::cuda::Address;
use sluice_kernels::cuda::memory::KvArena;
use sluice_link::model::Dtype;

use super::device::Device;
use super::values::{Random, encode};

/// Tokens of a layer-block.
pub const BLOCK: usize = 16;

/// Shape of heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
}

impl Heads {
    /// Query heads per K and V head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Bytes of a layer-block.
    pub fn block_bytes(&self, dtype: Dtype) -> usize {
        2 * self.kv_heads * BLOCK * self.dim * dtype.bytes()
    }
}

/// K and V of sequences, on the host and on the device. What no position has written is NaN.
pub struct Paged {
    pub arena: KvArena,
    pub table: Address,
    pub columns: u32,
    /// Ids by sequence and column.
    pub ids: Vec<Vec<u32>>,
    /// `[length][kv_heads][dim]` of each sequence.
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
}

impl Paged {
    /// Random K and V of sequences with these lengths. A chunk has three blocks and a rest.
    pub fn new(device: &Device, random: &mut Random, dtype: Dtype, heads: Heads, lengths: &[usize]) -> Self {
        let block_bytes = heads.block_bytes(dtype);
        let chunk_bytes = (3 * block_bytes + 256).next_multiple_of(256);
        let blocks = lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>() + 2;
        let base = device.reserve::<u8>(blocks.div_ceil(3) * chunk_bytes);
        let arena = KvArena::new(base, chunk_bytes as u64, block_bytes as u32);
        let order = random.permutation(blocks as u32);
        let write = |address, block: &[u8]| device.write(address, block);
        Self::in_blocks(device, random, (dtype, heads), lengths, (arena, &order), write)
    }

    /// As [`Paged::new`], in the blocks of `order`, which `write` writes.
    pub fn in_blocks(
        device: &Device,
        random: &mut Random,
        (dtype, heads): (Dtype, Heads),
        lengths: &[usize],
        (arena, order): (KvArena, &[u32]),
        write: impl Fn(Address, &[u8]),
    ) -> Self {
        let Heads { kv_heads, dim, .. } = heads;
        let mut order = order.iter().copied();
        let (mut ids, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for length in lengths {
            keys.push(random.normal(dtype, length * kv_heads * dim));
            values.push(random.normal(dtype, length * kv_heads * dim));
            ids.push(order.by_ref().take(length.div_ceil(BLOCK)).collect::<Vec<_>>());
        }
        for sequence in 0..lengths.len() {
            for (column, id) in ids[sequence].iter().enumerate() {
                let mut block = vec![f32::NAN; 2 * kv_heads * BLOCK * dim];
                for position in column * BLOCK..lengths[sequence].min((column + 1) * BLOCK) {
                    for (second, all) in [&keys[sequence], &values[sequence]].into_iter().enumerate() {
                        for kv_head in 0..kv_heads {
                            let to = ((second * kv_heads + kv_head) * BLOCK + position % BLOCK) * dim;
                            let from = (position * kv_heads + kv_head) * dim;
                            block[to..to + dim].copy_from_slice(&all[from..from + dim]);
                        }
                    }
                }
                write(arena.address(*id), &encode(dtype, &block));
            }
        }
        let columns = ids.iter().map(Vec::len).max().unwrap() + 1;
        let mut table = vec![u32::MAX; lengths.len() * columns];
        for (row, ids) in ids.iter().enumerate() {
            table[row * columns..][..ids.len()].copy_from_slice(ids);
        }
        Paged { arena, table: device.upload(&table), columns: columns as u32, ids, keys, values }
    }
}

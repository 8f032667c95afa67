//! Chunks of the share that no longer exist and are to be created again, once peers or the device have them free: at
//! once if layers wait for them or the tenant is idle, else when a step needs them, so that a waking tenant computes
//! before all of its share exists.

/// Boundaries between two attempts after the GPU ledger refused a single chunk.
pub const REGROW_BOUNDARIES: u64 = 16;

/// Bytes that are created at least when a step needs some.
pub const REGROW_PIECE_BYTES: u64 = 16 << 20;

/// Chunks to create again, and how much the GPU ledger is likely to grant.
#[derive(Clone, Copy, Debug)]
pub struct Recreation {
    chunks: u32,
    /// Most chunks to create at a time: halved while the ledger refuses.
    piece: u32,
    /// The ledger refused some of them: peers still hold them.
    refused: bool,
    /// No chunk is created before this boundary.
    at: u64,
}

impl Recreation {
    /// Nothing to create.
    pub fn new() -> Recreation {
        Recreation { chunks: 0, piece: u32::MAX, refused: false, at: 0 }
    }

    /// Chunks to create.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Chunks that peers still hold, as far as is known.
    pub fn held_by_peers(&self) -> u32 {
        if self.refused { self.chunks } else { 0 }
    }

    /// Some may be created at this boundary.
    pub fn is_due(&self, boundary: u64) -> bool {
        self.chunks > 0 && boundary >= self.at
    }

    /// Chunks to create next, at most `most`.
    pub fn next_piece(&self, most: u32) -> u32 {
        self.chunks.min(self.piece).min(most)
    }

    /// Chunks to create for the layer blocks that a step lacks; none if none can be created at this boundary.
    pub fn for_step(
        &self,
        boundary: u64,
        missing_layer_blocks: u32,
        layer_blocks_per_chunk: u32,
        chunk_bytes: u64,
    ) -> Option<u32> {
        let piece = (REGROW_PIECE_BYTES / chunk_bytes).min(u64::from(u32::MAX)) as u32;
        let wanted = missing_layer_blocks.div_ceil(layer_blocks_per_chunk).max(piece);
        (missing_layer_blocks > 0 && self.is_due(boundary)).then_some(wanted)
    }

    /// More chunks are to be created.
    pub fn add(&mut self, chunks: u32) {
        self.chunks += chunks;
    }

    /// These were created, or are no longer wanted.
    pub fn remove(&mut self, chunks: u32) {
        self.chunks -= chunks;
        self.refused &= self.chunks > 0;
    }

    /// Peers hold these chunks from the start.
    pub fn start(&mut self, chunks: u32) {
        self.chunks = chunks;
        self.refused = chunks > 0;
    }

    /// Nothing is to be created before it is needed.
    pub fn clear(&mut self) {
        (self.chunks, self.refused) = (0, false);
    }

    /// The ledger refused these: half as many are tried next, and after a single chunk all of them some boundaries
    /// later.
    pub fn on_refused(&mut self, refused: u32, boundary: u64) {
        self.refused = true;
        self.piece = refused / 2;
        if refused <= 1 {
            self.piece = u32::MAX;
            self.at = boundary + REGROW_BOUNDARIES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_halve_the_piece_and_then_wait() {
        let mut recreation = Recreation::new();
        recreation.add(9);
        assert_eq!((recreation.next_piece(u32::MAX), recreation.held_by_peers()), (9, 0));
        recreation.on_refused(9, 5);
        assert_eq!((recreation.next_piece(u32::MAX), recreation.held_by_peers()), (4, 9));
        recreation.on_refused(1, 5);
        assert!(!recreation.is_due(5) && recreation.is_due(5 + REGROW_BOUNDARIES));
        assert_eq!(recreation.next_piece(3), 3, "all of them are tried again");
    }

    #[test]
    fn a_step_creates_a_piece_or_what_it_lacks() {
        let mut recreation = Recreation::new();
        assert_eq!(recreation.for_step(0, 40, 8, 4 << 20), None, "nothing is to be created");
        recreation.add(9);
        let wanted = [0, 1, 32, 33].map(|missing| recreation.for_step(0, missing, 8, 4 << 20));
        assert_eq!(wanted, [None, Some(4), Some(4), Some(5)], "16 MiB are 4 chunks");
    }

    #[test]
    fn peers_hold_nothing_when_all_were_created() {
        let mut recreation = Recreation::new();
        recreation.start(4);
        assert_eq!(recreation.held_by_peers(), 4);
        recreation.remove(3);
        assert_eq!(recreation.held_by_peers(), 1);
        recreation.remove(1);
        assert_eq!((recreation.held_by_peers(), recreation.is_due(0)), (0, false));
    }
}

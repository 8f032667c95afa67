//! The requests with KV: the KV blocks of each, how far they are computed, and the rows of the block tables that the
//! engine does not know.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::blocks::Tokens;
use super::cached_prefix::CachedPrefix;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{KvBlockId, RequestId};

/// KV of one request.
#[derive(Clone, Debug)]
pub struct Sequence {
    salt: u64,
    kv_blocks: Vec<KvBlockId>,
    /// Full KV blocks with known tokens.
    full: u32,
    /// Full KV blocks already checked for write-back.
    written: u32,
    /// Whether it is suspended: it does not run, and its KV is kept.
    suspended: bool,
    /// Computed tokens after the last full KV block.
    tail: Vec<u32>,
    /// Name and hash of the last full KV block (0 and the salt's hash before the first). `None` if the chain is broken,
    /// so that no later KV block may be shared.
    chain: Option<(u64, u64)>,
}

/// A KV block that became full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullKvBlock {
    /// Its index in the request.
    pub at: u32,
    /// The KV block.
    pub id: KvBlockId,
    /// Its tokens.
    pub tokens: Tokens,
    /// The salt of the request.
    pub salt: u64,
    /// Name and hash of the KV block before it; `None` if it may not be shared.
    pub chain: Option<(u64, u64)>,
}

impl Sequence {
    /// The KV blocks, front first.
    pub fn kv_blocks(&self) -> &[KvBlockId] {
        &self.kv_blocks
    }

    /// The full KV blocks, front first.
    pub fn full_kv_blocks(&self) -> &[KvBlockId] {
        &self.kv_blocks[..self.full as usize]
    }

    /// Full KV blocks already checked for write-back.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Notes that the first `written` full KV blocks were checked for write-back.
    pub fn set_written(&mut self, written: u32) {
        self.written = written;
    }

    /// Sets the chain after the last full KV block; `None`: later KV blocks may not be shared.
    pub fn set_chain(&mut self, chain: Option<(u64, u64)>) {
        self.chain = chain;
    }

    /// Whether it does not run.
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Adds computed tokens. Returns the number of KV blocks that they fill.
    pub fn append_computed(&mut self, tokens: &[u32]) -> usize {
        self.tail.extend_from_slice(tokens);
        self.tail.len() / BLOCK_TOKENS as usize
    }

    /// Takes the tokens of the next KV block that is full.
    ///
    /// # Panics
    /// If fewer tokens are computed, or no KV block was allocated for them.
    pub fn fill_next(&mut self) -> FullKvBlock {
        let at = self.full;
        let id =
            *self.kv_blocks.get(at as usize).expect("computed tokens lie in KV blocks that were allocated");
        let mut tokens: Tokens = [0; BLOCK_TOKENS as usize];
        tokens.copy_from_slice(&self.tail[..BLOCK_TOKENS as usize]);
        self.tail.drain(..BLOCK_TOKENS as usize);
        self.full += 1;
        FullKvBlock { at, id, tokens, salt: self.salt, chain: self.chain }
    }
}

/// All requests with KV.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    sequences: BTreeMap<RequestId, Sequence>,
    /// Rows whose current blocks the engine does not know: a request, and the index of a KV block in it.
    changed_rows: BTreeSet<(RequestId, u32)>,
}

impl Requests {
    /// Opens a request whose first tokens are those of the prefix. Its KV blocks are added by [`Requests::append`].
    ///
    /// # Panics
    /// If it is open.
    pub fn open(&mut self, request: RequestId, prefix: &CachedPrefix) {
        let sequence = Sequence {
            salt: prefix.salt,
            kv_blocks: Vec::new(),
            full: prefix.kv_blocks.len() as u32,
            written: 0,
            suspended: false,
            tail: Vec::new(),
            chain: Some(prefix.chain),
        };
        let before = self.sequences.insert(request, sequence);
        assert!(before.is_none(), "{request:?} is opened once");
    }

    /// Removes a request. Returns its KV blocks; `None` if it is not open.
    pub fn close(&mut self, request: RequestId) -> Option<Vec<KvBlockId>> {
        let sequence = self.sequences.remove(&request)?;
        let rows = (request, 0)..=(request, u32::MAX);
        self.changed_rows.extract_if(rows, |_| true).for_each(drop);
        Some(sequence.kv_blocks)
    }

    /// Requests with KV.
    pub fn count(&self) -> u32 {
        self.sequences.len() as u32
    }

    /// Whether the request is open.
    pub fn contains(&self, request: RequestId) -> bool {
        self.sequences.contains_key(&request)
    }

    /// A request, if it is open.
    pub fn get(&self, request: RequestId) -> Option<&Sequence> {
        self.sequences.get(&request)
    }

    /// A request for changes.
    ///
    /// # Panics
    /// If it is not open.
    pub fn get_mut(&mut self, request: RequestId) -> &mut Sequence {
        self.sequences.get_mut(&request).expect("KV belongs to an open request")
    }

    /// The KV blocks of a request, front first; none if it is not open.
    pub fn kv_blocks(&self, request: RequestId) -> &[KvBlockId] {
        self.get(request).map_or(&[], Sequence::kv_blocks)
    }

    /// The number of full KV blocks of a request.
    pub fn full(&self, request: RequestId) -> u32 {
        self.get(request).map_or(0, |sequence| sequence.full)
    }

    /// All requests, in order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &Sequence)> + '_ {
        self.sequences.iter().map(|(request, sequence)| (*request, sequence))
    }

    /// The requests that are not suspended.
    pub fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.iter().filter(|(_, sequence)| !sequence.suspended).map(|(request, _)| request)
    }

    /// The suspended requests.
    pub fn paused(&self) -> impl Iterator<Item = (RequestId, &Sequence)> + '_ {
        self.iter().filter(|(_, sequence)| sequence.suspended)
    }

    /// The KV blocks of the requests that are not suspended.
    pub fn kv_blocks_of_running(&self) -> BTreeSet<KvBlockId> {
        let running = self.sequences.values().filter(|sequence| !sequence.suspended);
        running.flat_map(|sequence| sequence.kv_blocks.iter().copied()).collect()
    }

    /// The KV blocks of the requests that are not suspended, each with its request and its index there.
    pub fn rows_of_running(&self) -> Vec<(KvBlockId, (RequestId, u32))> {
        let running = self.iter().filter(|(_, sequence)| !sequence.suspended);
        let rows = running.flat_map(|(request, sequence)| {
            let row = move |(at, id): (usize, &KvBlockId)| (*id, (request, at as u32));
            sequence.kv_blocks.iter().enumerate().map(row)
        });
        rows.collect()
    }

    /// Whether the row contains the KV block.
    pub fn has_in_row(&self, (request, at): (RequestId, u32), id: KvBlockId) -> bool {
        self.kv_blocks(request).get(at as usize) == Some(&id)
    }

    /// Adds a KV block to a request.
    ///
    /// # Panics
    /// If the request is not open.
    pub fn append(&mut self, request: RequestId, id: KvBlockId) {
        let sequence = self.get_mut(request);
        let at = sequence.kv_blocks.len() as u32;
        sequence.kv_blocks.push(id);
        self.changed_rows.insert((request, at));
    }

    /// Puts another KV block into a row. Returns the one before.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn replace(&mut self, (request, at): (RequestId, u32), id: KvBlockId) -> KvBlockId {
        self.changed_rows.insert((request, at));
        core::mem::replace(&mut self.get_mut(request).kv_blocks[at as usize], id)
    }

    /// Suspends a request. Returns its KV blocks; none if it is not open.
    pub fn suspend(&mut self, request: RequestId) -> Vec<KvBlockId> {
        let Some(sequence) = self.sequences.get_mut(&request) else { return Vec::new() };
        (sequence.suspended, sequence.written) = (true, 0);
        sequence.kv_blocks.clone()
    }

    /// Resumes a suspended request, in new rows. Returns its KV blocks; none if it is not open.
    pub fn resume(&mut self, request: RequestId) -> Vec<KvBlockId> {
        let Some(sequence) = self.sequences.get_mut(&request) else { return Vec::new() };
        (sequence.suspended, sequence.written) = (false, 0);
        self.changed_rows.extend((0..sequence.kv_blocks.len() as u32).map(|at| (request, at)));
        sequence.kv_blocks.clone()
    }

    /// All KV blocks of a request are checked for write-back again.
    pub fn check_again(&mut self, request: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.written = 0;
        }
    }

    /// All KV blocks of all requests are checked for write-back again.
    pub fn check_all_again(&mut self) {
        self.sequences.values_mut().for_each(|sequence| sequence.written = 0);
    }

    /// The users of these KV blocks check them for write-back again.
    pub fn check_users_again(&mut self, kv_blocks: &BTreeSet<KvBlockId>) {
        for sequence in self.sequences.values_mut() {
            let first = sequence.kv_blocks.iter().position(|id| kv_blocks.contains(id));
            sequence.written = sequence.written.min(first.map_or(u32::MAX, |at| at as u32));
        }
    }

    /// Marks a row as changed.
    pub fn touch_row(&mut self, row: (RequestId, u32)) {
        self.changed_rows.insert(row);
    }

    /// Marks the rows of every request that uses one of these KV blocks as changed.
    pub fn touch(&mut self, kv_blocks: &BTreeSet<KvBlockId>) {
        let Some(last) = kv_blocks.last() else { return };
        let mut marked = vec![false; last.index() + 1];
        kv_blocks.iter().for_each(|id| marked[id.index()] = true);
        for (request, sequence) in &self.sequences {
            let is_marked = |id: &KvBlockId| marked.get(id.index()) == Some(&true);
            let touched = sequence.kv_blocks.iter().enumerate().filter(|(_, id)| is_marked(id));
            self.changed_rows.extend(touched.map(|(at, _)| (*request, at as u32)));
        }
    }

    /// Takes the changed rows, each with its KV block.
    pub fn take_changed_rows(&mut self) -> impl Iterator<Item = ((RequestId, u32), KvBlockId)> + '_ {
        let changed = core::mem::take(&mut self.changed_rows);
        changed
            .into_iter()
            .filter_map(|(request, at)| Some(((request, at), *self.kv_blocks(request).get(at as usize)?)))
    }

    /// KV blocks are lost: nothing that follows them may be shared. Returns the requests that use any of them, and the
    /// KV blocks of these requests from the first lost one on.
    pub fn spoil(&mut self, lost: &BTreeSet<KvBlockId>) -> (Vec<RequestId>, BTreeSet<KvBlockId>) {
        let (mut requests, mut spoilt) = (Vec::new(), BTreeSet::new());
        for (request, sequence) in &mut self.sequences {
            if let Some(first) = sequence.kv_blocks.iter().position(|id| lost.contains(id)) {
                requests.push(*request);
                spoilt.extend(sequence.kv_blocks[first..].iter().copied());
                sequence.chain = None;
            }
        }
        (requests, spoilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RequestId = RequestId(1);
    const OTHER: RequestId = RequestId(2);

    fn ids(ids: &[u32]) -> Vec<KvBlockId> {
        ids.iter().copied().map(KvBlockId).collect()
    }

    fn set(some: &[u32]) -> BTreeSet<KvBlockId> {
        ids(some).into_iter().collect()
    }

    /// Two requests that share KV block 5, without changed rows.
    fn requests() -> Requests {
        let mut requests = Requests::default();
        for (request, kv_blocks) in [(ONE, [5, 6]), (OTHER, [5, 7])] {
            requests.open(request, &CachedPrefix { salt: 3, kv_blocks: Vec::new(), chain: (0, 9) });
            kv_blocks.into_iter().for_each(|id| requests.append(request, KvBlockId(id)));
        }
        requests.take_changed_rows().for_each(drop);
        requests
    }

    fn rows(requests: &mut Requests) -> Vec<(u64, u32, u32)> {
        requests.take_changed_rows().map(|((request, at), id)| (request.0, at, id.0)).collect()
    }

    #[test]
    fn rows_of_every_user_change_with_a_kv_block() {
        let mut requests = requests();
        requests.touch(&set(&[5]));
        assert_eq!(rows(&mut requests), [(1, 0, 5), (2, 0, 5)]);
        assert_eq!(rows(&mut requests), [], "they are taken once");
        requests.touch(&set(&[5, 7]));
        requests.close(OTHER);
        assert_eq!(rows(&mut requests), [(1, 0, 5)], "a closed request has no rows");
    }

    #[test]
    fn suspended_request_does_not_run_and_has_new_rows_when_it_resumes() {
        let mut requests = requests();
        assert_eq!(requests.suspend(ONE), ids(&[5, 6]));
        assert_eq!(requests.running().collect::<Vec<_>>(), [OTHER]);
        assert_eq!(requests.kv_blocks_of_running(), set(&[5, 7]));
        requests.resume(ONE);
        assert_eq!(rows(&mut requests), [(1, 0, 5), (1, 1, 6)]);
        assert_eq!(requests.paused().count(), 0);
        assert_eq!(requests.suspend(RequestId(8)), [], "it is not open");
    }

    #[test]
    fn kv_block_is_full_after_sixteen_tokens() {
        let mut requests = requests();
        let sequence = requests.get_mut(ONE);
        assert_eq!([sequence.append_computed(&[1; 15]), sequence.append_computed(&[2; 3])], [0, 1]);
        let full = sequence.fill_next();
        assert_eq!((full.at, full.id, full.salt, full.chain), (0, KvBlockId(5), 3, Some((0, 9))));
        assert_eq!((full.tokens[14], full.tokens[15]), (1, 2));
        assert_eq!((sequence.append_computed(&[]), requests.full(ONE)), (0, 1), "two tokens are left");
    }

    #[test]
    fn lost_kv_block_spoils_what_follows_it() {
        let mut requests = requests();
        assert_eq!(requests.spoil(&set(&[6])), (alloc::vec![ONE], set(&[6])));
        assert_eq!(requests.spoil(&set(&[5])), (alloc::vec![ONE, OTHER], set(&[5, 6, 7])));
        requests.get_mut(ONE).append_computed(&[0; 16]);
        assert_eq!(requests.get_mut(ONE).fill_next().chain, None, "nothing more is shared");
    }

    #[test]
    fn users_check_changed_kv_blocks_for_write_back_again() {
        let mut requests = requests();
        [ONE, OTHER].into_iter().for_each(|request| requests.get_mut(request).set_written(2));
        requests.check_users_again(&set(&[6]));
        let written =
            |requests: &Requests| [ONE, OTHER].map(|request| requests.get(request).map(Sequence::written));
        assert_eq!(written(&requests), [Some(1), Some(2)]);
        requests.check_all_again();
        assert_eq!(written(&requests), [Some(0), Some(0)]);
    }
}

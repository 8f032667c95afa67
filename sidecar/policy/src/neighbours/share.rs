//! Shares: who may hold how much of a GPU without asking anybody. The whole GPU is handed out: floors first, then the
//! weights that floors leave out, in equal parts, then KV in equal parts, each up to what it wants.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;

/// What one tenant asks of the GPU, chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Its name, unique on the GPU: who gets an odd chunk must not depend on the order of claims.
    pub name: &'a str,
    /// What it can never lend.
    pub floor: u32,
    /// What makes all its layers resident, beyond the floor.
    pub weights_missing: u32,
    /// KV that it can use beyond the guaranteed one, which the floor contains: its limit less that.
    pub kv_wanted: u32,
    /// A share that was fixed by hand: it gets exactly this.
    pub fixed: Option<u32>,
}

impl Claim<'_> {
    fn least(&self) -> u32 {
        self.fixed.unwrap_or(self.floor)
    }

    /// What it takes of a later round, none where its share is fixed.
    fn open(&self, wanted: u32) -> u32 {
        if self.fixed.is_some() { 0 } else { wanted }
    }
}

/// Why a GPU cannot be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShares {
    /// Floors and fixed shares together are more than the GPU has.
    DoesNotFit {
        /// Their sum, chunks.
        needed_chunks: u64,
        /// The GPU, chunks.
        capacity_chunks: u32,
    },
    /// A fixed share is below its tenant's floor.
    FixedBelowFloor {
        /// Which claim.
        index: usize,
        /// The share, chunks.
        fixed_chunks: u32,
        /// The floor, chunks.
        floor_chunks: u32,
    },
}

impl fmt::Display for NoShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoShares::DoesNotFit { needed_chunks, capacity_chunks } => {
                write!(
                    f,
                    "the tenants need {needed_chunks} chunks at least and the GPU has {capacity_chunks}"
                )
            }
            NoShares::FixedBelowFloor { index, fixed_chunks, floor_chunks } => {
                write!(
                    f,
                    "tenant {index} has a fixed share of {fixed_chunks} chunks and needs {floor_chunks}"
                )
            }
        }
    }
}

impl core::error::Error for NoShares {}

/// What a claim wants of one round, chunks.
type Wanted = fn(&Claim<'_>) -> u32;

/// The share of each claim, in their order, chunks. They sum to at most `capacity_chunks`, and to less only where everybody
/// has all that it wants. A larger GPU lowers nobody's share.
///
/// # Errors
/// [`NoShares`] where floors and fixed shares do not fit, or contradict each other.
pub fn shares(capacity_chunks: u32, claims: &[Claim<'_>]) -> Result<Vec<u32>, NoShares> {
    let mut shares = least(claims)?;
    let needed_chunks = shares.iter().map(|share| u64::from(*share)).sum();
    let left = u64::from(capacity_chunks).checked_sub(needed_chunks);
    let mut left = left.ok_or(NoShares::DoesNotFit { needed_chunks, capacity_chunks })?;
    let rounds: [Wanted; 2] = [|claim| claim.weights_missing, |claim| claim.kv_wanted];
    for wanted in rounds {
        let parts = equal_parts(left, claims, wanted);
        shares.iter_mut().zip(&parts).for_each(|(share, part)| *share += part);
        left -= parts.iter().map(|part| u64::from(*part)).sum::<u64>();
    }
    Ok(shares)
}

fn least(claims: &[Claim<'_>]) -> Result<Vec<u32>, NoShares> {
    let least = claims.iter().enumerate().map(|(index, claim)| match claim.fixed {
        Some(fixed_chunks) if fixed_chunks < claim.floor => {
            Err(NoShares::FixedBelowFloor { index, fixed_chunks, floor_chunks: claim.floor })
        }
        _ => Ok(claim.least()),
    });
    least.collect()
}

/// Water filling: from the smallest want on, each takes an equal part of what is left, or all that it wants. What does not
/// divide goes to those who want most, among them to the first names.
fn equal_parts(mut left: u64, claims: &[Claim<'_>], wanted: Wanted) -> Vec<u32> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let wants = |at: usize| claims[at].open(wanted(&claims[at]));
    order.sort_unstable_by_key(|at| (wants(*at), Reverse(claims[*at].name)));
    let mut parts = vec![0; claims.len()];
    for (done, at) in order.into_iter().enumerate() {
        let part = left / (claims.len() - done) as u64;
        parts[at] = u32::try_from(part).unwrap_or(u32::MAX).min(wants(at));
        left -= u64::from(parts[at]);
    }
    parts
}

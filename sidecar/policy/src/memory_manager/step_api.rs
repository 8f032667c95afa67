//! Plain data that passes between the scheduler and the memory manager.

use alloc::vec::Vec;

use crate::action::FillTarget;
use crate::ellm::Violations;
use crate::geometry::StepShape;
use crate::ids::{Generation, LayerId, RequestId};
use crate::kv::admissions::Admission;
use crate::kv::table_change::TableChange;
use crate::offload::fetch_failures::FETCH_FAILURES;
use crate::weights::FILL_RETRIES;

/// The memory that a step needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepNeed {
    /// The requests that the step admits.
    pub admit: Vec<Admission>,
    /// New KV blocks per request.
    pub kv_blocks: Vec<(RequestId, u32)>,
    /// The activation space of the step.
    pub shape: StepShape,
    /// The step computes no part of an offloaded prompt: nothing is written into the buffers of such prompts.
    pub without_offloaded_prefills: bool,
}

/// Facts that planning finds and that the memory manager must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNotes {
    /// The queue head that admission skipped, if admission was planned. The next placement plan includes it.
    /// `Some(None)`: admission skipped none. `None`: admission was not planned, and the former answer holds.
    pub blocked_head: Option<Option<RequestId>>,
    /// Whether the next step orders no fetches early, so that a request that a plan admits can join after it. `None`:
    /// as before, and no if a blocked head is given.
    pub skips_early_fetches: Option<bool>,
    /// Whether the pauses of the placement plan adopted last are made ([`OffloadView::pauses`]).
    ///
    /// [`OffloadView::pauses`]: super::OffloadView::pauses
    pub pauses_are_made: bool,
    /// Whether the link to the host is to be measured, again from time to time.
    pub probes_link: bool,
    /// A remap that was found to stall for too long.
    pub stalls_too_long: Option<StallsTooLong>,
    /// The objectives that an iteration of the scheduler missed (eLLM, Algorithm 2).
    pub slo_violations: Option<Violations>,
}

/// Every layout that gives these chunks stalls for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallsTooLong {
    pub(super) chunks: u32,
}

/// What the tenant has to do, at a boundary. It decides what the tenant lends, and when it takes loans back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Requests wait or run that an engine could serve. Waiting requests hold no KV, so the memory manager does not see
    /// them. Without requests no loan is asked for.
    pub has_requests: bool,
    /// The tenant holds the time slice, or has work where there are no slices. An inactive tenant may lend weight
    /// layers. One that becomes active restores them; its loans are revoked first, and layers wait for that
    /// ([`crate::loan_negotiator::LoanControl::set_awaits_loans`]).
    pub is_active: bool,
}

/// Why a running request must wait with its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendReason {
    /// It is paused for others (OrbitFlow 4.3).
    Pause,
    /// Its prompt is computed, and its KV is in the host tier until it fits the device (eLLM 4.4.2).
    PrefillOffloaded,
    /// The tenant falls asleep.
    Sleep,
}

/// The answer of [`super::MemoryManager::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// The admitted requests are open, all KV blocks are allocated and the activation space is there:
    /// [`super::MemoryManager::begin`] may follow. Any other answer admits and allocates nothing.
    Ready,
    /// Actions were ordered, or are under way, and must complete first; ask again.
    Wait,
    /// KV of suspended requests that the step would resume is loading during steps ([`RequestKv::is_loading`]):
    /// other requests need not wait for them. The scheduler asks again without those, for more of the others if it
    /// likes; their blocks are there.
    ///
    /// [`RequestKv::is_loading`]: super::RequestKv::is_loading
    Loading,
    /// Nothing more can be freed: the scheduler makes the batch smaller or preempts.
    Short {
        /// KV blocks that are missing.
        missing_kv_blocks: u32,
        /// The activation space is what is missing.
        activation: bool,
    },
}

/// What one step may rely on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepLease {
    /// Generation that each moving layer must show before it is read, in layer order; others are resident.
    pub generations: Vec<(LayerId, Generation)>,
    /// Generation that the KV of each layer with offloaded blocks must show before it is read, in layer order; the KV
    /// of other layers is on the device.
    pub kv_generations: Vec<(LayerId, Generation)>,
    /// Bytes of the activation range that are backed.
    pub activation_limit_bytes: u64,
    /// The KV blocks of open requests that are new or moved since the last lease. Empty if a step begins again.
    pub table_changes: Vec<TableChange>,
}

/// Why a tenant that fits cannot be served: the backend failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The device did not give the floor.
    Create {
        /// Bytes that it gave.
        created_bytes: u64,
        /// Bytes of the floor.
        floor_bytes: u64,
    },
    /// The first mapping was refused every time.
    Map,
    /// Copies of weights failed every time.
    Fill {
        /// The last one.
        target: FillTarget,
    },
    /// Fetches of KV failed every time.
    Fetch {
        /// Layer of the last one.
        layer: LayerId,
    },
}

impl core::fmt::Display for Failed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Failed::Create { created_bytes, floor_bytes } => {
                write!(f, "the device provided {created_bytes} bytes, but the floor is {floor_bytes} bytes")
            }
            Failed::Map => write!(f, "the first mapping failed at every attempt"),
            Failed::Fill { target } => {
                write!(f, "copies failed {FILL_RETRIES} times in a row, the last one of {target:?}")
            }
            Failed::Fetch { layer } => {
                write!(
                    f,
                    "more than {FETCH_FAILURES} fetches of KV failed in a row, the last one of {layer:?}"
                )
            }
        }
    }
}

impl core::error::Error for Failed {}

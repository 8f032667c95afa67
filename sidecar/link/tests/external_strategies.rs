//! Generators of the messages of an engine that schedules by itself.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sluice_link::message::*;
use sluice_link::vocabulary::{ActionId, KvChunkId, LayerId};

fn id() -> impl Strategy<Value = ActionId> {
    any::<u64>().prop_map(ActionId)
}

fn extents() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..200)
}

fn name() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn worker_hello() -> impl Strategy<Value = WorkerMessage> {
    (name(), name(), any::<[u32; 3]>()).prop_map(|(build, engine, [pid, rank, ranks])| {
        WorkerMessage::Hello(WorkerHello { build, engine, pid, rank, ranks })
    })
}

/// Generates sizes that a worker may receive.
fn worker_setup() -> impl Strategy<Value = WorkerMessage> {
    let device = option::of(any::<[u8; 16]>());
    (device, 12..22u32, 1..9999u32, vec(0..999u32, 1..70), 0..9999u32).prop_map(
        |(uuid, bits, capacity_chunks, layer_chunks, kv_chunks)| {
            let device = uuid.map_or(Device::Host, |uuid| Device::Cuda { uuid });
            let chunk_bytes = 1 << bits;
            WorkerMessage::Setup(WorkerSetup {
                device,
                chunk_bytes,
                capacity_chunks,
                layer_chunks,
                kv_chunks,
            })
        },
    )
}

fn layout() -> impl Strategy<Value = KvLayout> {
    any::<([u32; 3], [u64; 3])>().prop_map(|(counts, bytes)| KvLayout {
        layers: counts[0],
        blocks: counts[1],
        block_tokens: counts[2],
        block_bytes: bytes[0],
        layer_stride_bytes: bytes[1],
        block_stride_bytes: bytes[2],
    })
}

/// Generates messages of a worker's link.
pub fn worker_message() -> impl Strategy<Value = WorkerMessage> {
    let zero = (id(), vec(any::<u32>().prop_map(KvChunkId), 0..300), any::<bool>());
    let moving = (id(), vec(any::<u16>().prop_map(LayerId), 0..70), any::<u64>());
    prop_oneof![
        worker_hello(),
        worker_setup(),
        zero.prop_map(|(id, positions, more)| WorkerMessage::Zero(Zero { id, positions, more })),
        vec(any::<u64>(), 0..70).prop_map(|layer_bytes| WorkerMessage::Loaded(Loaded { layer_bytes })),
        Just(WorkerMessage::Captured),
        layout().prop_map(WorkerMessage::KvLayout),
        any::<[u32; 2]>().prop_map(|[extent_blocks, extents]| {
            WorkerMessage::KvAccepted(KvExtents { extent_blocks, extents })
        }),
        moving.prop_map(|(id, layers, first_pass)| {
            WorkerMessage::Moving(Moving { id, layers, first_pass })
        }),
    ]
}

fn scheduler_hello() -> impl Strategy<Value = SchedulerMessage> {
    (name(), name(), any::<[u32; 4]>()).prop_map(|(build, engine, words)| {
        let [pid, blocks, block_tokens, max_model_len] = words;
        SchedulerMessage::Hello(SchedulerHello { build, engine, pid, blocks, block_tokens, max_model_len })
    })
}

/// Generates messages of a scheduler's link.
pub fn scheduler_message() -> impl Strategy<Value = SchedulerMessage> {
    let setup = (any::<u32>(), 0..=MAX_EXTENTS as u32, extents());
    let blocked = vec((name(), any::<u32>()), 0..20);
    prop_oneof![
        scheduler_hello(),
        setup.prop_map(|(extent_blocks, extents, granted)| {
            SchedulerMessage::Setup(SchedulerSetup { extent_blocks, extents, granted })
        }),
        id().prop_map(|id| SchedulerMessage::Hold { id }),
        (id(), extents(), any::<[u32; 3]>()).prop_map(|(id, idle, [wanted_blocks, waiting, running])| {
            SchedulerMessage::Held(Held { id, idle, wanted_blocks, waiting, running })
        }),
        (id(), any::<u32>()).prop_map(|(id, extents)| SchedulerMessage::Retire { id, extents }),
        (id(), extents(), any::<u32>()).prop_map(|(id, extents, preempted)| {
            SchedulerMessage::Retired(Retired { id, extents, preempted })
        }),
        (id(), extents(), extents()).prop_map(|(id, granted, withdrawn)| {
            SchedulerMessage::Resume(Resume { id, granted, withdrawn })
        }),
        (any::<[u32; 3]>(), blocked).prop_map(|([wanted_blocks, waiting, running], blocked)| {
            SchedulerMessage::Demand(Demand { wanted_blocks, waiting, running, blocked })
        }),
    ]
}

/// Generates refusals of a hello or a layout.
pub fn setup_refused() -> impl Strategy<Value = SetupRefused> {
    use RefusalReason::*;
    let reason = prop::sample::select(vec![Ranks, Engine, Model, Occupied, Layout, Other]);
    (reason, "\\PC{0,60}").prop_map(|(reason, message)| SetupRefused::new(reason, message))
}

//! Generators of messages and setups.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sluice_link::message::{
    CHUNKS_PER_MESSAGE, Device, EngineSetup, Faults, Hello, Message, Ready, SequenceOrder, StepOrder,
};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};
use sluice_link::vocabulary::*;

use crate::external_strategies::{scheduler_message, setup_refused, worker_message};

/// A small model.
pub fn small_spec() -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        dtype: Dtype::F32,
        vocab: 64,
        hidden: 16,
        intermediate: 32,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        max_positions: 128,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        attention_bias: false,
        mlp_bias: false,
    }
}

/// A small tenant.
pub fn small_setup() -> EngineSetup {
    EngineSetup {
        spec: small_spec(),
        device: Device::Host,
        chunk_bytes: 65_536,
        capacity_chunks: 16,
        kv_chunks: 16,
        activation_chunks: 16,
        staging_chunks: 1,
        max_rows: 4,
        max_kv_blocks: 8,
        max_history: 128,
        chunk_tokens: 32,
        threads: 1,
        faults: Faults::default(),
    }
}

fn number() -> impl Strategy<Value = f32> {
    -1.0e6f32..1.0e6
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let floats = [number(), number(), number(), number(), number(), number()];
    let lists = (vec((any::<u32>(), number()), 0..40), vec(any::<u32>(), 0..8));
    let rest = (any::<u32>(), any::<u64>(), any::<u32>(), any::<bool>(), option::of(any::<u8>()));
    (floats, lists, rest).prop_map(|(floats, (logit_bias, stop_tokens), rest)| Sampling {
        temperature: floats[0],
        top_p: floats[1],
        top_k: rest.0,
        min_p: floats[2],
        presence_penalty: floats[3],
        frequency_penalty: floats[4],
        repetition_penalty: floats[5],
        logit_bias,
        seed: rest.1,
        stop_tokens,
        min_tokens: rest.2,
        ignore_stop: rest.3,
        logprobs: rest.4,
    })
}

fn sequence() -> impl Strategy<Value = SequenceOrder> {
    let sample = option::of((sampling(), any::<u32>()));
    (any::<u32>(), any::<u32>(), 1..u32::MAX, sample).prop_map(|(row, start, count, sample)| SequenceOrder {
        row: RowId(row),
        start,
        count,
        sample: sample
            .map(|(sampling, prompt_tokens)| SampleRequest { sampling: Arc::new(sampling), prompt_tokens }),
    })
}

/// Generates steps of any size with any index.
pub fn step_order() -> impl Strategy<Value = StepOrder> {
    let head = (any::<u64>(), any::<u32>(), any::<u64>(), 0..2u8, any::<u64>());
    let names = || {
        let name = (any::<u16>(), any::<u64>()).prop_map(|(l, g)| (LayerId(l), Generation(g)));
        vec(name, 0..24)
    };
    (head, vec(sequence(), 0..24), names(), names()).prop_map(
        |(head, sequences, generations, kv_generations)| StepOrder {
            id: StepId(head.0),
            attempt: head.1,
            epoch: head.2,
            parity: head.3,
            sequences,
            generations,
            kv_generations,
            activation_limit_bytes: head.4,
        },
    )
}

fn done() -> impl Strategy<Value = StepDone> {
    let logprobs = (number(), vec((any::<u32>(), number()), 0..20))
        .prop_map(|(chosen, top)| TokenLogprobs { chosen, top });
    let sampled = (any::<u32>(), any::<u32>(), option::of(logprobs))
        .prop_map(|(row, token, logprobs)| Sampled { row: RowId(row), token, logprobs });
    let failure =
        prop_oneof![Just(SequenceFailure::NoCandidate), ".{0,40}".prop_map(SequenceFailure::Refused),];
    let failed =
        (any::<u32>(), failure).prop_map(|(row, failure)| FailedSequence { row: RowId(row), failure });
    let rows = (vec(sampled, 0..24), vec(failed, 0..4));
    let times = || vec(any::<u64>(), 0..100);
    (any::<u64>(), any::<u32>(), rows, [times(), times(), times()], any::<u64>()).prop_map(
        |(id, attempt, (sampled, failed), [layer_ns, stall_ns, kv_stall_ns], total_ns)| StepDone {
            id: StepId(id),
            attempt,
            sampled,
            failed,
            layer_ns,
            stall_ns,
            kv_stall_ns,
            total_ns,
        },
    )
}

/// Generates a change at any address.
pub fn remap() -> impl Strategy<Value = MapOp> {
    let address = prop_oneof![
        any::<u32>().prop_map(Address::Global),
        (any::<u16>(), any::<u32>()).prop_map(|(layer, at)| Address::Layer(LayerId(layer), at)),
        any::<u32>().prop_map(|kv_chunk| Address::Kv(KvChunkId(kv_chunk))),
        any::<u32>().prop_map(Address::Activation),
        any::<u32>().prop_map(Address::Staging),
    ];
    (address, any::<u32>(), any::<bool>()).prop_map(|(address, chunk, map)| match map {
        true => MapOp::Map(address, ChunkId(chunk)),
        false => MapOp::Unmap(address, ChunkId(chunk)),
    })
}

fn setup() -> impl Strategy<Value = EngineSetup> {
    let faults = (option::of(any::<u64>()), any::<u64>(), any::<u64>(), any::<bool>());
    let device = option::of(any::<[u8; 16]>());
    (1..40u16, 1..64u32, any::<u16>(), device, faults).prop_map(|(layers, rows, threads, uuid, faults)| {
        let mut setup = small_setup();
        if let Some(uuid) = uuid {
            (setup.device, setup.chunk_bytes) = (Device::Cuda { uuid }, 2 << 20);
        }
        setup.spec.layers = layers;
        setup.max_rows = rows;
        setup.threads = threads;
        let (dropped_wait, layer_delay_ns, remap_delay_ns, poison_activations) = faults;
        setup.faults = Faults { dropped_wait, layer_delay_ns, remap_delay_ns, poison_activations };
        setup
    })
}

/// Generates any message.
pub fn message() -> impl Strategy<Value = Message> {
    let ready = any::<([u64; 6], u32)>().prop_map(|(words, chunk_tokens)| Ready {
        slab_digest: words[0],
        activation: ActivationCost {
            fixed_bytes: words[1],
            stream_per_token_bytes: words[2],
            chunk_per_token_bytes: words[3],
            chunk_tokens,
            per_sequence_bytes: words[4],
            per_logit_row_bytes: words[5],
        },
    });
    let hello = ("\\PC{0,40}", any::<u32>(), any::<u64>()).prop_map(|(build, pid, digest)| Hello {
        build,
        pid,
        layout_digest: digest,
    });
    let refused = (any::<u64>(), any::<u32>(), "\\PC{0,60}");
    prop_oneof![
        hello.prop_map(Message::Hello),
        setup().prop_map(|setup| Message::Model(Box::new(setup))),
        ready.prop_map(Message::Ready),
        (any::<u64>(), vec(remap(), 0..300), any::<bool>())
            .prop_map(|(id, ops, more)| { Message::Remap { id: ActionId(id), ops, more } }),
        vec(any::<u32>(), 0..=CHUNKS_PER_MESSAGE)
            .prop_map(|chunks| Message::Chunks { chunks: chunks.into_iter().map(ChunkId).collect() }),
        (any::<u64>(), vec(any::<u32>(), 0..300), any::<bool>()).prop_map(|(id, chunks, more)| {
            let chunks = chunks.into_iter().map(ChunkId).collect();
            Message::Release { id: ActionId(id), chunks, more }
        }),
        any::<u64>().prop_map(|id| Message::Applied { id: ActionId(id) }),
        refused.prop_map(|(id, _, message)| Message::Refused { id: ActionId(id), message }),
        step_order().prop_map(Message::Step),
        done().prop_map(Message::Done),
        refused.prop_map(|(id, attempt, message)| Message::StepRefused { id: StepId(id), attempt, message }),
        (any::<u64>(), any::<u32>())
            .prop_map(|(id, attempt)| Message::StaleEpoch { id: StepId(id), attempt }),
        Just(Message::Bye),
        worker_message().prop_map(Message::Worker),
        scheduler_message().prop_map(Message::Scheduler),
        setup_refused().prop_map(Message::SetupRefused),
    ]
}

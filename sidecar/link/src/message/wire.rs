//! Wire form of the messages, encoded with postcard. Its own serde structs keep the policy and the ports free of serde.

mod codec;
mod done;
mod external;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{ActionId, ChunkId, Generation, KvChunkId, LayerId, RowId, StepId};
use sluice_ports::compute::SampleRequest;
use sluice_ports::sampling::Sampling;

use self::codec::{bytes, read};
use self::done::WireDone;
use super::{CHUNKS_PER_MESSAGE, EngineSetup, Hello, Message, Ready, SequenceOrder, StepOrder};
use crate::frame::{MessageKind, ProtocolError};

#[derive(Serialize, Deserialize)]
struct WireHello {
    build: String,
    pid: u32,
    layout_digest: u64,
}

#[derive(Serialize, Deserialize)]
struct WireReady {
    slab_digest: u64,
    fixed_bytes: u64,
    stream_per_token_bytes: u64,
    chunk_per_token_bytes: u64,
    chunk_tokens: u32,
    per_sequence_bytes: u64,
    per_logit_row_bytes: u64,
}

#[derive(Serialize, Deserialize)]
enum WireAddress {
    Global(u32),
    Layer(u16, u32),
    Kv(u32),
    Activation(u32),
    Staging(u32),
}

#[derive(Serialize, Deserialize)]
enum WireOp {
    Unmap(WireAddress, u32),
    Map(WireAddress, u32),
}

#[derive(Serialize, Deserialize)]
struct WireRemap {
    id: u64,
    ops: Vec<WireOp>,
    more: bool,
}

#[derive(Serialize, Deserialize)]
struct WireChunks {
    chunks: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct WireRelease {
    id: u64,
    chunks: Vec<u32>,
    more: bool,
}

#[derive(Serialize, Deserialize)]
struct WireReply {
    id: u64,
    attempt: u32,
    message: String,
}

#[derive(Serialize, Deserialize)]
struct WireSampling {
    temperature: f32,
    top_p: f32,
    top_k: u32,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    logit_bias: Vec<(u32, f32)>,
    seed: u64,
    stop_tokens: Vec<u32>,
    min_tokens: u32,
    ignore_stop: bool,
    logprobs: Option<u8>,
    prompt_tokens: u32,
}

#[derive(Serialize, Deserialize)]
struct WireSequence {
    row: u32,
    start: u32,
    count: u32,
    sample: Option<WireSampling>,
}

#[derive(Serialize, Deserialize)]
struct WireStep {
    id: u64,
    attempt: u32,
    epoch: u64,
    parity: u8,
    sequences: Vec<WireSequence>,
    generations: Vec<(u16, u64)>,
    kv_generations: Vec<(u16, u64)>,
    activation_limit_bytes: u64,
}

impl Message {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Message::Hello(hello) => bytes(&WireHello::from(hello)),
            Message::Model(setup) => bytes(setup.as_ref()),
            Message::Ready(ready) => bytes(&WireReady::from(ready)),
            Message::Remap { id, ops, more } => {
                bytes(&WireRemap { id: id.0, ops: ops.iter().map(WireOp::from).collect(), more: *more })
            }
            Message::Chunks { chunks } => bytes(&WireChunks { chunks: to_wire_chunks(chunks) }),
            Message::Release { id, chunks, more } => {
                bytes(&WireRelease { id: id.0, chunks: to_wire_chunks(chunks), more: *more })
            }
            Message::Applied { id } => bytes(&WireReply::new(id.0, 0, "")),
            Message::Refused { id, message } => bytes(&WireReply::new(id.0, 0, message)),
            Message::Step(order) => bytes(&WireStep::from(order)),
            Message::Done(done) => bytes(&WireDone::from(done)),
            Message::StepRefused { id, attempt, message } => bytes(&WireReply::new(id.0, *attempt, message)),
            Message::StaleEpoch { id, attempt } => bytes(&WireReply::new(id.0, *attempt, "")),
            Message::Bye => Vec::new(),
            Message::Worker(message) => external::encode_worker(message),
            Message::Scheduler(message) => external::encode_scheduler(message),
            Message::SetupRefused(refused) => bytes(refused),
        }
    }

    /// Decodes a payload of `kind`. Refuses invalid bytes, trailing bytes and values out of range.
    pub fn decode(kind: MessageKind, payload: &[u8]) -> Result<Message, ProtocolError> {
        Ok(match kind {
            MessageKind::Hello => Message::Hello(read::<WireHello>(kind, payload)?.into()),
            MessageKind::Model => Message::Model(Box::new(read_setup(payload)?)),
            MessageKind::Ready => Message::Ready(read::<WireReady>(kind, payload)?.into()),
            MessageKind::Remap => {
                let order: WireRemap = read(kind, payload)?;
                let ops = order.ops.into_iter().map(MapOp::from).collect();
                Message::Remap { id: ActionId(order.id), ops, more: order.more }
            }
            MessageKind::Chunks => Message::Chunks { chunks: read_chunks(payload)? },
            MessageKind::Release => {
                let WireRelease { id, chunks, more } = read(kind, payload)?;
                Message::Release { id: ActionId(id), chunks: from_wire_chunks(chunks), more }
            }
            MessageKind::Applied => Message::Applied { id: ActionId(read::<WireReply>(kind, payload)?.id) },
            MessageKind::Refused => {
                let answer: WireReply = read(kind, payload)?;
                Message::Refused { id: ActionId(answer.id), message: answer.message }
            }
            MessageKind::Step => Message::Step(read_step(payload)?),
            MessageKind::Done => Message::Done(read::<WireDone>(kind, payload)?.into()),
            MessageKind::StepRefused => {
                let answer: WireReply = read(kind, payload)?;
                Message::StepRefused {
                    id: StepId(answer.id),
                    attempt: answer.attempt,
                    message: answer.message,
                }
            }
            MessageKind::StaleEpoch => {
                let answer: WireReply = read(kind, payload)?;
                Message::StaleEpoch { id: StepId(answer.id), attempt: answer.attempt }
            }
            MessageKind::Bye if payload.is_empty() => Message::Bye,
            MessageKind::Bye => return Err(ProtocolError::Trailing { kind, extra: payload.len() }),
            kind => external::decode(kind, payload)?,
        })
    }
}

fn read_setup(payload: &[u8]) -> Result<EngineSetup, ProtocolError> {
    let setup: EngineSetup = read(MessageKind::Model, payload)?;
    setup
        .check()
        .map_err(|error| ProtocolError::Payload { kind: MessageKind::Model, reason: error.to_string() })?;
    Ok(setup)
}

fn read_chunks(payload: &[u8]) -> Result<Vec<ChunkId>, ProtocolError> {
    let WireChunks { chunks } = read(MessageKind::Chunks, payload)?;
    if chunks.len() > CHUNKS_PER_MESSAGE {
        let reason = format!("{} chunks, above the limit of {CHUNKS_PER_MESSAGE}", chunks.len());
        return Err(ProtocolError::Payload { kind: MessageKind::Chunks, reason });
    }
    Ok(from_wire_chunks(chunks))
}

fn to_wire_chunks(chunks: &[ChunkId]) -> Vec<u32> {
    chunks.iter().map(|chunk| chunk.0).collect()
}

fn from_wire_chunks(wire: Vec<u32>) -> Vec<ChunkId> {
    wire.into_iter().map(ChunkId).collect()
}

fn read_step(payload: &[u8]) -> Result<StepOrder, ProtocolError> {
    let order = StepOrder::from(read::<WireStep>(MessageKind::Step, payload)?);
    let reason = if order.parity > 1 {
        format!("parity is {}, neither 0 nor 1", order.parity)
    } else if order.sequences.iter().any(|sequence| sequence.count == 0) {
        "a sequence without tokens".to_owned()
    } else {
        return Ok(order);
    };
    Err(ProtocolError::Payload { kind: MessageKind::Step, reason })
}

impl WireReply {
    fn new(id: u64, attempt: u32, message: &str) -> WireReply {
        WireReply { id, attempt, message: message.to_owned() }
    }
}

impl From<&Hello> for WireHello {
    fn from(hello: &Hello) -> Self {
        WireHello { build: hello.build.clone(), pid: hello.pid, layout_digest: hello.layout_digest }
    }
}

impl From<WireHello> for Hello {
    fn from(wire: WireHello) -> Self {
        Hello { build: wire.build, pid: wire.pid, layout_digest: wire.layout_digest }
    }
}

impl From<&Ready> for WireReady {
    fn from(ready: &Ready) -> Self {
        WireReady {
            slab_digest: ready.slab_digest,
            fixed_bytes: ready.activation.fixed_bytes,
            stream_per_token_bytes: ready.activation.stream_per_token_bytes,
            chunk_per_token_bytes: ready.activation.chunk_per_token_bytes,
            chunk_tokens: ready.activation.chunk_tokens,
            per_sequence_bytes: ready.activation.per_sequence_bytes,
            per_logit_row_bytes: ready.activation.per_logit_row_bytes,
        }
    }
}

impl From<WireReady> for Ready {
    fn from(wire: WireReady) -> Self {
        Ready {
            slab_digest: wire.slab_digest,
            activation: ActivationCost {
                fixed_bytes: wire.fixed_bytes,
                stream_per_token_bytes: wire.stream_per_token_bytes,
                chunk_per_token_bytes: wire.chunk_per_token_bytes,
                chunk_tokens: wire.chunk_tokens,
                per_sequence_bytes: wire.per_sequence_bytes,
                per_logit_row_bytes: wire.per_logit_row_bytes,
            },
        }
    }
}

impl From<Address> for WireAddress {
    fn from(address: Address) -> Self {
        match address {
            Address::Global(at) => WireAddress::Global(at),
            Address::Layer(layer, at) => WireAddress::Layer(layer.0, at),
            Address::Kv(kv_chunk) => WireAddress::Kv(kv_chunk.0),
            Address::Activation(at) => WireAddress::Activation(at),
            Address::Staging(at) => WireAddress::Staging(at),
        }
    }
}

impl From<WireAddress> for Address {
    fn from(wire: WireAddress) -> Self {
        match wire {
            WireAddress::Global(at) => Address::Global(at),
            WireAddress::Layer(layer, at) => Address::Layer(LayerId(layer), at),
            WireAddress::Kv(kv_chunk) => Address::Kv(KvChunkId(kv_chunk)),
            WireAddress::Activation(at) => Address::Activation(at),
            WireAddress::Staging(at) => Address::Staging(at),
        }
    }
}

impl From<&MapOp> for WireOp {
    fn from(op: &MapOp) -> Self {
        match *op {
            MapOp::Unmap(address, chunk) => WireOp::Unmap(address.into(), chunk.0),
            MapOp::Map(address, chunk) => WireOp::Map(address.into(), chunk.0),
        }
    }
}

impl From<WireOp> for MapOp {
    fn from(wire: WireOp) -> Self {
        match wire {
            WireOp::Unmap(address, chunk) => MapOp::Unmap(address.into(), ChunkId(chunk)),
            WireOp::Map(address, chunk) => MapOp::Map(address.into(), ChunkId(chunk)),
        }
    }
}

impl From<&SampleRequest> for WireSampling {
    fn from(order: &SampleRequest) -> Self {
        let sampling = order.sampling.as_ref();
        WireSampling {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            logit_bias: sampling.logit_bias.clone(),
            seed: sampling.seed,
            stop_tokens: sampling.stop_tokens.clone(),
            min_tokens: sampling.min_tokens,
            ignore_stop: sampling.ignore_stop,
            logprobs: sampling.logprobs,
            prompt_tokens: order.prompt_tokens,
        }
    }
}

impl From<WireSampling> for SampleRequest {
    fn from(wire: WireSampling) -> Self {
        let sampling = Sampling {
            temperature: wire.temperature,
            top_p: wire.top_p,
            top_k: wire.top_k,
            min_p: wire.min_p,
            presence_penalty: wire.presence_penalty,
            frequency_penalty: wire.frequency_penalty,
            repetition_penalty: wire.repetition_penalty,
            logit_bias: wire.logit_bias,
            seed: wire.seed,
            stop_tokens: wire.stop_tokens,
            min_tokens: wire.min_tokens,
            ignore_stop: wire.ignore_stop,
            logprobs: wire.logprobs,
        };
        SampleRequest { sampling: Arc::new(sampling), prompt_tokens: wire.prompt_tokens }
    }
}

fn to_wire_generations(generations: &[(LayerId, Generation)]) -> Vec<(u16, u64)> {
    generations.iter().map(|(layer, generation)| (layer.0, generation.0)).collect()
}

fn from_wire_generations(wire: Vec<(u16, u64)>) -> Vec<(LayerId, Generation)> {
    wire.into_iter().map(|(layer, generation)| (LayerId(layer), Generation(generation))).collect()
}

impl From<&StepOrder> for WireStep {
    fn from(order: &StepOrder) -> Self {
        let sequence = |sequence: &SequenceOrder| WireSequence {
            row: sequence.row.0,
            start: sequence.start,
            count: sequence.count,
            sample: sequence.sample.as_ref().map(WireSampling::from),
        };
        WireStep {
            id: order.id.0,
            attempt: order.attempt,
            epoch: order.epoch,
            parity: order.parity,
            sequences: order.sequences.iter().map(sequence).collect(),
            generations: to_wire_generations(&order.generations),
            kv_generations: to_wire_generations(&order.kv_generations),
            activation_limit_bytes: order.activation_limit_bytes,
        }
    }
}

impl From<WireStep> for StepOrder {
    fn from(wire: WireStep) -> Self {
        let sequence = |sequence: WireSequence| SequenceOrder {
            row: RowId(sequence.row),
            start: sequence.start,
            count: sequence.count,
            sample: sequence.sample.map(SampleRequest::from),
        };
        StepOrder {
            id: StepId(wire.id),
            attempt: wire.attempt,
            epoch: wire.epoch,
            parity: wire.parity,
            sequences: wire.sequences.into_iter().map(sequence).collect(),
            generations: from_wire_generations(wire.generations),
            kv_generations: from_wire_generations(wire.kv_generations),
            activation_limit_bytes: wire.activation_limit_bytes,
        }
    }
}

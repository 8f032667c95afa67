//! Frames: the packets of a message. Every packet carries a 16-byte header. A message larger than one packet is split
//! into consecutive parts of the same kind.
//!
//! The peer is not trusted: a packet that is short, long, of another version or out of order is a [`ProtocolError`],
//! after which the connection is unusable.

use thiserror::Error;

/// First four bytes of every packet: `SLNK`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SLNK");
/// Version of the protocol. Both ends must use the same one.
pub const LINK_VERSION: u16 = 8;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
/// Largest packet. The kernel accepts about 200 KiB with its default buffers.
pub const MAX_PACKET_BYTES: usize = 128 * 1024;
/// Largest payload of one part.
pub const MAX_PART_BYTES: usize = MAX_PACKET_BYTES - HEADER_BYTES;
/// Largest number of parts of one message.
pub const MAX_PARTS: u16 = 32;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MessageKind {
    /// Engine: its identity.
    Hello = 1,
    /// Sidecar: the model and the shared memory.
    Model = 2,
    /// Engine: it has reserved its ranges.
    Ready = 3,
    /// Sidecar: change the chunks behind some addresses.
    Remap = 4,
    /// Engine: a `Remap` is complete.
    Applied = 5,
    /// Engine: a `Remap` was refused.
    Refused = 6,
    /// Sidecar: run a step.
    Step = 7,
    /// Engine: a step has finished.
    Done = 8,
    /// Engine: a step was refused.
    StepRefused = 9,
    /// Either end: an orderly end of the link.
    Bye = 10,
    /// Engine: a step stopped before its end, because another time slice is in force.
    StaleEpoch = 11,
    /// Sidecar: descriptors of chunks.
    Chunks = 12,
    /// Sidecar: release the imports of chunks.
    Release = 13,
    /// Worker of an engine that schedules by itself: its identity.
    WorkerHello = 14,
    /// Sidecar: the memory of a worker.
    WorkerSetup = 15,
    /// Sidecar: fill chunks with zeros.
    Zero = 16,
    /// Worker: its parameters are final.
    Loaded = 17,
    /// Sidecar: it has copied the parameters.
    Captured = 18,
    /// Worker: where its KV blocks lie.
    KvLayout = 19,
    /// Sidecar: the extents of that layout.
    KvAccepted = 20,
    /// Sidecar: the layers that share slots.
    Moving = 21,
    /// Scheduler of an engine that schedules by itself: its identity.
    SchedulerHello = 22,
    /// Sidecar: the extents that have memory.
    SchedulerSetup = 23,
    /// Sidecar: run no further step.
    Hold = 24,
    /// Scheduler: no step runs.
    Held = 25,
    /// Sidecar: give up extents.
    Retire = 26,
    /// Scheduler: it has given them up.
    Retired = 27,
    /// Sidecar: steps may run.
    Resume = 28,
    /// Scheduler: what it lacks.
    Demand = 29,
    /// Sidecar: a hello or a layout is refused.
    SetupRefused = 30,
}

const ALL_KINDS: [MessageKind; 30] = {
    use MessageKind::*;
    [
        Hello,
        Model,
        Ready,
        Remap,
        Applied,
        Refused,
        Step,
        Done,
        StepRefused,
        Bye,
        StaleEpoch,
        Chunks,
        Release,
        WorkerHello,
        WorkerSetup,
        Zero,
        Loaded,
        Captured,
        KvLayout,
        KvAccepted,
        Moving,
        SchedulerHello,
        SchedulerSetup,
        Hold,
        Held,
        Retire,
        Retired,
        Resume,
        Demand,
        SetupRefused,
    ]
};

impl MessageKind {
    fn from_wire(word: u16) -> Option<MessageKind> {
        ALL_KINDS.into_iter().find(|kind| *kind as u16 == word)
    }
}

/// Why a packet or message was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// Shorter than a header.
    #[error("packet of {got} bytes is shorter than its header")]
    Short {
        /// Bytes received.
        got: usize,
    },
    /// The magic is not the link's.
    #[error("packet begins with {got:#010x} instead of the magic of the link")]
    Magic {
        /// First word.
        got: u32,
    },
    /// Another protocol version.
    #[error("peer speaks link version {theirs}, this build speaks {LINK_VERSION}")]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// The kind is unknown.
    #[error("unknown message kind {got}")]
    Kind {
        /// Kind received.
        got: u16,
    },
    /// The stated length is not the packet's.
    #[error("packet states {stated} payload bytes but has {got}")]
    Length {
        /// Stated.
        stated: u32,
        /// Carried.
        got: usize,
    },
    /// Above the limit of a packet or message.
    #[error("packet or message of {got} bytes is above the limit of {limit}")]
    Oversized {
        /// Bytes received.
        got: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A part that does not follow the previous one.
    #[error("part {part} of {parts} of kind {kind} does not follow the previous packet")]
    Part {
        /// Kind of the packet.
        kind: u16,
        /// Its index.
        part: u16,
        /// Parts stated.
        parts: u16,
    },
    /// The payload does not decode as its kind.
    #[error("payload of {kind:?} does not decode: {reason}")]
    Payload {
        /// Kind.
        kind: MessageKind,
        /// The decoder's error.
        reason: String,
    },
    /// Bytes are left after the payload.
    #[error("{extra} bytes follow the payload of {kind:?}")]
    Trailing {
        /// Kind.
        kind: MessageKind,
        /// Bytes left.
        extra: usize,
    },
    /// A valid message at a moment when another kind is expected.
    #[error("{got:?} where {expected} was expected")]
    Unexpected {
        /// Kind received.
        got: MessageKind,
        /// The expected kind.
        expected: &'static str,
    },
    /// A well-formed reply that contradicts its command.
    #[error("{kind:?} does not match the command: {reason}")]
    Contradiction {
        /// Kind received.
        kind: MessageKind,
        /// The contradiction.
        reason: String,
    },
    /// The wrong number of file descriptors.
    #[error("received {got} file descriptors with {kind:?}, expected {expected}")]
    Descriptors {
        /// Kind.
        kind: MessageKind,
        /// Descriptors received.
        got: usize,
        /// Descriptors that the kind carries.
        expected: usize,
    },
}

/// A packet's header, little-endian: magic u32, version u16, kind u16, part u16, parts u16, payload bytes u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the message.
    pub kind: MessageKind,
    /// Index of this part.
    pub part: u16,
    /// Parts of the message, at least 1.
    pub parts: u16,
    /// Payload bytes of this part.
    pub length: u32,
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&LINK_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[8..10].copy_from_slice(&self.part.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.parts.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Splits a packet into its header and payload, and checks both.
    pub fn decode(packet: &[u8]) -> Result<(Header, &[u8]), ProtocolError> {
        if packet.len() > MAX_PACKET_BYTES {
            return Err(ProtocolError::Oversized { got: packet.len(), limit: MAX_PACKET_BYTES });
        }
        let Some((head, payload)) = packet.split_first_chunk::<HEADER_BYTES>() else {
            return Err(ProtocolError::Short { got: packet.len() });
        };
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != MAGIC {
            return Err(ProtocolError::Magic { got: word(0) });
        }
        if half(4) != LINK_VERSION {
            return Err(ProtocolError::Version { theirs: half(4) });
        }
        let kind = MessageKind::from_wire(half(6)).ok_or(ProtocolError::Kind { got: half(6) })?;
        let header = Header { kind, part: half(8), parts: half(10), length: word(12) };
        if header.length as usize != payload.len() {
            return Err(ProtocolError::Length { stated: header.length, got: payload.len() });
        }
        header.check_parts()?;
        Ok((header, payload))
    }

    fn check_parts(&self) -> Result<(), ProtocolError> {
        if self.part < self.parts && self.parts <= MAX_PARTS {
            return Ok(());
        }
        Err(ProtocolError::Part { kind: self.kind as u16, part: self.part, parts: self.parts })
    }
}

/// Splits a payload into parts with their headers.
pub fn split_payload(
    kind: MessageKind,
    payload: &[u8],
) -> Result<impl Iterator<Item = (Header, &[u8])>, ProtocolError> {
    let parts = payload.len().div_ceil(MAX_PART_BYTES).max(1);
    if parts > usize::from(MAX_PARTS) {
        let limit = usize::from(MAX_PARTS) * MAX_PART_BYTES;
        return Err(ProtocolError::Oversized { got: payload.len(), limit });
    }
    Ok((0..parts).map(move |part| {
        let start = part * MAX_PART_BYTES;
        let slice = &payload[start..payload.len().min(start + MAX_PART_BYTES)];
        // `parts` is at most MAX_PARTS and a part at most MAX_PART_BYTES, so no cast truncates.
        (Header { kind, part: part as u16, parts: parts as u16, length: slice.len() as u32 }, slice)
    }))
}

/// Joins the parts of messages.
#[derive(Debug, Default)]
pub struct Assembler {
    payload: Vec<u8>,
    open: Option<Header>,
}

impl Assembler {
    /// Adds a packet. Returns `Some` when the packet completes a message, whose payload is [`Assembler::payload`].
    pub fn push(&mut self, packet: &[u8]) -> Result<Option<MessageKind>, ProtocolError> {
        let (header, payload) = Header::decode(packet)?;
        let follows = match self.open.take() {
            None => header.part == 0,
            Some(last) => {
                last.kind == header.kind && last.parts == header.parts && last.part + 1 == header.part
            }
        };
        if !follows {
            return Err(ProtocolError::Part {
                kind: header.kind as u16,
                part: header.part,
                parts: header.parts,
            });
        }
        if header.part == 0 {
            self.payload.clear();
        }
        self.payload.extend_from_slice(payload);
        let complete = header.part + 1 == header.parts;
        self.open = (!complete).then_some(header);
        Ok(complete.then_some(header.kind))
    }

    /// Returns the payload of the last complete message.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

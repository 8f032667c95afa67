//! What a fuzzer calls, and what tests call with the committed corpus (`tests/corpus`).

use std::path::Path;

use axum::body::Bytes;
use sluice_link::model::Dtype;
use sluice_wire::directive::Directive;
use sluice_wire::grants::GrantRequest;

use crate::gateway::endpoints::refusals;
use crate::inspect::parse_header;
use crate::model::weights::{ShardIndex, convert, parse};
use crate::proxied_engine::sse::{SseDecoder, SseInfo};

/// Unit of grants in [`fuzz_body`].
const CHUNK_BYTES: u64 = 64 << 10;

/// Reads a request body as each endpoint does that accepts one: completions, chat, directives and grants.
///
/// # Panics
/// A bad body counts as a fault of the server, or what was accepted differs from what its own encoding gives.
pub fn fuzz_body(data: &[u8]) {
    for error in refusals(data) {
        assert!(!error.is_server_error(), "a body is the client's: {}", error.body());
    }
    if let Ok(directive) = Directive::from_json(data) {
        let text = serde_json::to_vec(&directive).expect("a directive serialises");
        assert_eq!(
            Directive::from_json(&text).ok(),
            Some(directive),
            "a directive changes when it is stored"
        );
    }
    if let Ok(request) = GrantRequest::from_json(data, CHUNK_BYTES) {
        let text = request.to_json();
        assert_eq!(
            GrantRequest::from_json(&text, CHUNK_BYTES).ok(),
            Some(request),
            "a request changes on its way"
        );
    }
}

/// Reads a file of weights as the sidecar does, which maps it whole, and as `inspect` does, which reads its header; and
/// an index of such files.
///
/// # Panics
/// The two disagree, a value has another length in memory than its format has, or an index leaves its folder.
pub fn fuzz_safetensors(data: &[u8]) {
    let path = Path::new("model.safetensors");
    let (whole, header) = (parse(path, data), parse_header(path, data));
    assert_eq!(whole.is_ok(), header.is_ok(), "{:?}, but {:?}", whole.err(), header.err());
    let (Ok(whole), Ok(header)) = (whole, header) else { return fuzz_index(data) };
    assert_eq!(whole.len(), header.len());
    for (name, described) in header {
        let tensor = whole.tensor(&name).expect("both read the same header");
        assert_eq!((tensor.shape(), tensor.dtype()), (&described.shape[..], described.dtype), "{name}");
        for (to, width) in [(Dtype::F32, 4), (Dtype::F16, 2), (Dtype::Bf16, 2)] {
            let mut values = vec![0; described.shape.iter().product::<usize>() * width];
            convert(described.dtype, to, tensor.data(), &mut values);
        }
    }
}

fn fuzz_index(data: &[u8]) {
    let Ok(index) = serde_json::from_slice::<ShardIndex>(data) else { return };
    for name in index.shards(Path::new("index.json")).into_iter().flatten() {
        assert_eq!(
            Path::new("folder").join(&name).parent(),
            Some(Path::new("folder")),
            "{name:?} leaves its folder"
        );
    }
}

/// Splits an engine's stream into events. The first byte is the length of the pieces that arrive, less one.
///
/// # Panics
/// The events are not the bytes of the stream in order, or depend on where pieces end.
pub fn fuzz_sse(data: &[u8]) {
    let Some((&length, stream)) = data.split_first() else { return };
    let events = split(stream.chunks(usize::from(length) + 1));
    assert_eq!(events, split(std::iter::once(stream)), "events depend on where pieces end");
    assert_eq!(events.concat(), stream, "bytes were lost or added");
    for event in events {
        SseInfo::parse(&event);
    }
}

fn split<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let (mut decoder, mut events) = (SseDecoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece).expect("shorter than the limit of one event");
        events.extend(std::iter::from_fn(|| decoder.next_event()));
    }
    events.extend(decoder.take_remainder());
    events
}

//! Bytes of clients, model folders and engines, and those that fuzzers found (`tests/corpus`): each goes through the
//! function that the fuzzer calls.

// Helpers outside of test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use sluice_agent::fuzz::{fuzz_body, fuzz_safetensors, fuzz_sse};

fn replay(name: &str, least: usize, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= least, "the corpus is incomplete: {} files", files.len());
    for file in files {
        println!("{}", file.display());
        target(&std::fs::read(file).unwrap());
    }
}

#[test]
fn the_fuzz_target_passes_every_request_body_of_the_corpus() {
    replay("body", 50, fuzz_body);
}

#[test]
fn the_fuzz_target_passes_every_file_of_weights_of_the_corpus() {
    replay("safetensors", 30, fuzz_safetensors);
}

#[test]
fn the_fuzz_target_passes_every_stream_of_the_corpus() {
    replay("sse", 15, fuzz_sse);
}

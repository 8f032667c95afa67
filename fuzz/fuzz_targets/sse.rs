//! Streams of a proxied engine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_agent::fuzz::fuzz_sse(data));

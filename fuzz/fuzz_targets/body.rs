//! Request bodies of the sidecar's ports.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_agent::fuzz::fuzz_body(data));

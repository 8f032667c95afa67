//! Files of weights and their index.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_agent::fuzz::fuzz_safetensors(data));

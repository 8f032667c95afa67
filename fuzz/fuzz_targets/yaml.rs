//! Files of pools and tenants.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_types::fuzz::fuzz_yaml(data));

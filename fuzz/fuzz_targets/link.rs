//! Packets of the link.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_link::fuzz::fuzz_packets(data));

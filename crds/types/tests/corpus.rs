//! Files of people and of fuzzers (`tests/corpus`): each goes through the function that the fuzzer calls.

use std::path::Path;

#[test]
fn the_fuzz_target_passes_every_file_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 40, "the corpus is incomplete: {} files", files.len());
    for file in files {
        println!("{}", file.display());
        sluice_types::fuzz::fuzz_yaml(&std::fs::read(file).unwrap());
    }
}

//! Memory of a module's variables.

use std::cell::UnsafeCell;

/// Constants and variables of a module. Kernels of one module share them.
#[derive(Debug, Default)]
pub(crate) struct Image {
    words: Box<[UnsafeCell<u64>]>,
}

// SAFETY: kernels use the bytes through raw pointers only, as they use device memory.
unsafe impl Sync for Image {}
// SAFETY: words are plain numbers.
unsafe impl Send for Image {}

impl Image {
    pub fn new(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            UnsafeCell::new(u64::from_ne_bytes(word))
        };
        Image { words: bytes.chunks(8).map(word).collect() }
    }

    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub fn start(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.words.as_ptr()).cast()
    }
}

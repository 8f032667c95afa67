//! Sizes that follow the page: 4 KiB on x86-64, 4, 16 or 64 KiB on arm64, 2 MiB for the memory of a GPU.

use super::error::MappingError;

/// Returns the size of a page of this machine, bytes.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Checks that a chunk consists of whole pages of `page_bytes`.
pub(crate) fn check_chunk_bytes(chunk_bytes: u64, page_bytes: u64) -> Result<(), MappingError> {
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
        return Err(MappingError::ChunkSize { chunk_bytes, page_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_whole_pages_of_4_and_of_64_kib() {
        let fits = |chunk_bytes, page_bytes| check_chunk_bytes(chunk_bytes, page_bytes).is_ok();
        let pages = [4 << 10, 16 << 10, 64 << 10, 2 << 20];
        let small = [true, false, false, false];
        assert_eq!(pages.map(|page| fits(4 << 10, page)), small);
        assert_eq!(pages.map(|page| fits(64 << 10, page)), [true, true, true, false]);
        assert_eq!(pages.map(|page| fits(16 << 20, page)), [true; 4]);
        assert_eq!(pages.map(|page| fits(0, page)), [false; 4]);
        let error = check_chunk_bytes(4 << 10, 64 << 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "chunks of 4096 bytes are not a positive multiple of the page size of 65536 bytes"
        );
    }
}

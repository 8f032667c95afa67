//! What is known about the pages of a chunk.

/// `page_flags` entry of a chunk about which nothing is known: it may lack all pages.
pub(super) const NONE: u8 = 0;
/// Flag of a chunk that a fill has written: its pages exist and contain data.
pub(super) const WRITTEN: u8 = 1;
/// Flag of a chunk that has all its pages, with any contents.
pub(super) const BACKED: u8 = 2;
/// Flag of a chunk whose pages this process has mapped: a copy into it causes no page faults.
pub(super) const POPULATED: u8 = 4;

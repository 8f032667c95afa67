//! Replaces the HTTP/2 `:authority` of the kubelet's registration calls. The kubelet sends the socket's path, which
//! is not a valid authority, so this program's HTTP/2 library refuses it (kubernetes/kubernetes#109081,
//! hyperium/h2#487). No code needs the value: it is overwritten with as many letters before the library reads it.
//!
//! Only that value changes. Its length stays the same, so nothing else in the stream moves.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;

/// Length of the preface that an HTTP/2 client sends first, bytes.
const PREFACE_BYTES: usize = 24;
/// Length of a frame's header (length, type, flags, stream), bytes.
const FRAME_HEADER_BYTES: usize = 9;
/// Longest payload that this server accepts, bytes (the default of SETTINGS_MAX_FRAME_SIZE).
const MAX_FRAME_BYTES: usize = 16_384;
/// Type of a HEADERS frame, and its flags for the padding length and the priority before the header block.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;

/// Returns the same connection with valid authorities.
pub fn with_fixed_authority(socket: UnixStream) -> DuplexStream {
    let (near, far) = tokio::io::duplex(2 * MAX_FRAME_BYTES);
    tokio::spawn(async move {
        let (from_kubelet, mut to_kubelet) = socket.into_split();
        let (mut from_server, to_server) = tokio::io::split(near);
        // Either side may close the connection at any time, which ends that direction.
        let _ = tokio::join!(fix_authority(from_kubelet, to_server), async {
            tokio::io::copy(&mut from_server, &mut to_kubelet).await?;
            to_kubelet.shutdown().await
        });
    });
    far
}

/// Copies frames until the kubelet closes the connection.
async fn fix_authority(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let copied = async {
        let mut preface = [0; PREFACE_BYTES];
        from.read_exact(&mut preface).await?;
        to.write_all(&preface).await?;
        loop {
            let frame = read_frame(&mut from).await?;
            to.write_all(&frame).await?;
        }
    };
    let ended: io::Result<()> = copied.await;
    to.shutdown().await?;
    ended
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    from.read_exact(&mut frame).await?;
    let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other("a frame longer than allowed"));
    }
    frame.resize(FRAME_HEADER_BYTES + length, 0);
    from.read_exact(&mut frame[FRAME_HEADER_BYTES..]).await?;
    if frame[3] == HEADERS {
        let flags = frame[4];
        let padding = usize::from(flags & PADDED != 0);
        let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
        if let Some(block) = frame.get_mut(FRAME_HEADER_BYTES + padding + priority..) {
            // A malformed block is passed on: the HTTP/2 library reports it.
            let _ = overwrite(block);
        }
    }
    Ok(frame)
}

/// Overwrites the values of `:authority` in a header block (RFC 7541, 6). Returns `None` if the block ends inside a
/// field.
fn overwrite(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, next) = integer(block, at, prefix)?;
        at = next;
        if prefix == 7 || prefix == 5 {
            // An indexed field or a table size update: no string follows.
            continue;
        }
        if index == 0 {
            at = text(block, at)?.1;
        }
        let (value, next) = text(block, at)?;
        if index == AUTHORITY {
            // Clears the Huffman bit and keeps the length.
            block[at] &= 0x7f;
            block.get_mut(value..next)?.fill(b'a');
        }
        at = next;
    }
    Some(())
}

/// Decodes an integer with a prefix of `prefix` bits; returns it and the position after it (RFC 7541, 5.1).
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    let mut next = at + 1;
    if value < most {
        return Some((value, next));
    }
    for shift in (0..28).step_by(7) {
        let byte = usize::from(*block.get(next)?);
        next += 1;
        value += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((value, next));
        }
    }
    None
}

/// Returns the start and end of a string's bytes (RFC 7541, 5.2).
fn text(block: &[u8], at: usize) -> Option<(usize, usize)> {
    let (length, begin) = integer(block, at, 7)?;
    let end = begin.checked_add(length)?;
    (end <= block.len()).then_some((begin, end))
}

#[cfg(test)]
mod tests {
    use super::overwrite;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.split_whitespace().collect::<String>().into_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Header blocks of RFC 7541, C.3.1 (plain) and C.4.1 (Huffman) with `www.example.com`.
    #[test]
    fn the_authority_is_overwritten_in_its_length_and_nothing_else_is() {
        for (block, expected) in [
            (
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 8441 0f61 6161 6161 6161 6161 6161 6161 6161",
            ),
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", "8286 8441 0c61 6161 6161 6161 6161 6161 61"),
        ] {
            let mut block = bytes(block);
            overwrite(&mut block).unwrap();
            assert_eq!(block, bytes(expected));
        }
    }

    /// Header blocks of RFC 7541, C.2.1 (a new name), C.2.2 (`:path` by its index, not indexed), C.2.3 (a new name,
    /// never indexed).
    #[test]
    fn other_fields_are_unchanged() {
        for block in [
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "040c 2f73 616d 706c 652f 7061 7468",
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            "3fe1 1f 82",
        ] {
            let mut walked = bytes(block);
            overwrite(&mut walked).unwrap();
            assert_eq!(walked, bytes(block));
        }
    }

    #[test]
    fn block_that_ends_too_early_is_unchanged() {
        for block in ["41", "418c f1", "41ff", "41ff ffff ffff ff", "4001", "3f"] {
            let mut walked = bytes(block);
            assert_eq!(overwrite(&mut walked), None, "{block}");
            assert_eq!(walked, bytes(block));
        }
    }
}

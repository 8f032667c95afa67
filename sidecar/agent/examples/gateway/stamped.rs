//! Reads with write times: on the loopback device the kernel timestamps received bytes within the sender's write call,
//! so a reader that wakes late has no effect on the times.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::{Duration, SystemTime};

const SOL_SOCKET: c_int = 1;
/// Name of the option, and type of its control message.
const SO_TIMESTAMPNS: c_int = 35;

#[repr(C)]
struct IoVec {
    bytes: *mut c_void,
    length: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct MessageHeader {
    name: *mut c_void,
    name_length: u32,
    parts: *mut IoVec,
    part_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

/// `struct cmsghdr` followed by a `struct timespec`, the only control message that these sockets request.
#[repr(C)]
#[derive(Default)]
struct TimestampMessage {
    length: usize,
    level: c_int,
    kind: c_int,
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn recvmsg(socket: c_int, header: *mut MessageHeader, flags: c_int) -> isize;
}

/// Enables timestamps. The kernel may start them with a short delay.
pub fn enable_timestamps(socket: &TcpStream) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the value is an int that outlives the call.
    let done = unsafe {
        let value = ptr::from_ref(&on).cast();
        setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_TIMESTAMPNS, value, size_of::<c_int>() as u32)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads into `buffer`. Returns the number of bytes, and when the last of them were written; `None` = no timestamp.
pub fn read(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Option<SystemTime>)> {
    let mut part = IoVec { bytes: buffer.as_mut_ptr().cast(), length: buffer.len() };
    let mut stamp = TimestampMessage::default();
    let mut header = MessageHeader {
        name: ptr::null_mut(),
        name_length: 0,
        parts: &mut part,
        part_count: 1,
        control: ptr::from_mut(&mut stamp).cast(),
        control_length: size_of::<TimestampMessage>(),
        flags: 0,
    };
    // SAFETY: the header points to one part, which is `buffer`, and to a control area of the length that it states;
    // both are exclusively borrowed and outlive the call.
    let length = unsafe { recvmsg(socket.as_raw_fd(), &mut header, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let is_timestamp = header.control_length >= size_of::<TimestampMessage>();
    let is_timestamp = is_timestamp && (stamp.level, stamp.kind) == (SOL_SOCKET, SO_TIMESTAMPNS);
    let at = SystemTime::UNIX_EPOCH + Duration::new(stamp.seconds as u64, stamp.nanos as u32);
    Ok((length, is_timestamp.then_some(at)))
}

//! Reads that tell when the bytes were written: over the loopback device the kernel stamps what a socket receives within
//! the sender's own call of write, so a reader that is woken late makes no difference.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::{Duration, SystemTime};

const SOL_SOCKET: c_int = 1;
/// The option's name, and the kind of the message that it brings.
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

/// `struct cmsghdr` with a `struct timespec` behind it: the only message that these sockets ask for.
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

/// Asks for stamps. The kernel may take a moment to begin.
pub fn enable_timestamps(socket: &TcpStream) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the value is an int that outlives the call.
    let done = unsafe {
        let value = ptr::from_ref(&on).cast();
        setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_TIMESTAMPNS, value, size_of::<c_int>() as u32)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads into `buffer`: how many bytes, and when the last of them were written. `None` = the kernel did not say.
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
    // SAFETY: the header points to one part, which is `buffer`, and to a control area of the length that it names; all
    // are borrowed by nobody else and outlive the call.
    let length = unsafe { recvmsg(socket.as_raw_fd(), &mut header, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let told = header.control_length >= size_of::<TimestampMessage>();
    let told = told && (stamp.level, stamp.kind) == (SOL_SOCKET, SO_TIMESTAMPNS);
    let at = SystemTime::UNIX_EPOCH + Duration::new(stamp.seconds as u64, stamp.nanos as u32);
    Ok((length, told.then_some(at)))
}

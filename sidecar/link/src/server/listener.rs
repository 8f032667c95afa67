//! The socket that engines connect to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::error::{LinkError, syscall_error};
use crate::socket::{self, Receiver, SEND_TIMEOUT, Sender, wait_readable};

/// A connected process that has not sent its first message.
#[derive(Debug)]
pub struct Connection {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// A socket that engines connect to. Its path is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, for this user only. Replaces a socket file without a listener.
    pub fn bind(path: &Path) -> Result<Listener, LinkError> {
        let named = |source: io::Error| LinkError::Path { path: path.to_owned(), source };
        remove_stale(path).map_err(named)?;
        let socket = seqpacket()?;
        let address = SocketAddrUnix::new(path).map_err(|error| named(error.into()))?;
        bind(&socket, &address).map_err(|error| named(error.into()))?;
        let listener = Listener { socket, path: path.to_owned() };
        chmod(path, Mode::RUSR | Mode::WUSR).map_err(|error| named(error.into()))?;
        listen(&listener.socket, 1).map_err(syscall_error("listen"))?;
        Ok(listener)
    }

    /// Returns the next engine; `None` if no engine connects within `limit`. Refuses processes of other users.
    pub fn accept(&self, limit: Duration) -> Result<Option<Connection>, LinkError> {
        if !wait_readable(self.socket.as_fd(), limit)? {
            return Ok(None);
        }
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC).map_err(syscall_error("accept4"))?;
        let (theirs, ours) = (credentials(&socket)?, rustix::process::geteuid().as_raw());
        if theirs.uid != ours {
            return Err(LinkError::ForeignUser { ours, theirs: theirs.uid });
        }
        if theirs.pid == 0 {
            return Err(LinkError::PeerPidUnknown);
        }
        let (sender, receiver) = socket::split(socket, SEND_TIMEOUT)?;
        Ok(Some(Connection { sender, receiver }))
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // There is no caller to report an error to; the next listener replaces a leftover path.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the peer's credentials. `rustix` cannot represent the pid 0 of a process outside of this pid namespace.
fn credentials(socket: &OwnedFd) -> Result<libc::ucred, LinkError> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let (to, level, name) = ((&raw mut found).cast(), libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `to` points to `bytes` writable bytes of a plain struct that outlives the call; the kernel writes at most
    // these.
    let refused = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut bytes) } != 0;
    if refused {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        return Err(syscall_error("getsockopt(SO_PEERCRED)")(errno));
    }
    Ok(found)
}

fn seqpacket() -> Result<OwnedFd, LinkError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(syscall_error("socket"))
}

/// Connects to `path` as an engine.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, LinkError> {
    let named = |source: io::Error| LinkError::Path { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|error| named(error.into()))?;
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address).map_err(|error| named(error.into()))?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"))
        }
        Ok(_) if connect(path).is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"))
        }
        Ok(_) => std::fs::remove_file(path),
    }
}

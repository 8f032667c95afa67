//! Answers liveness probes (`GET /`, HTTP/1.1) from the supervisor's own loop, so a stopped or stuck supervisor does
//! not answer and the kubelet restarts its container.
//!
//! The answer does not cover the worker, which its sidecar watches, and does not depend on the request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlive\n";
/// Maximum of connections that wait for their request, and of connections accepted per round. A further connection
/// closes the oldest.
const MAX_CONNECTIONS: usize = 8;
/// Larger than any probe's request.
const REQUEST_BYTES: usize = 4096;

/// The listening socket and its open connections.
#[derive(Debug)]
pub(super) struct LivenessServer {
    listener: TcpListener,
    /// Connections whose request has not arrived, oldest first.
    waiting: Vec<TcpStream>,
}

impl LivenessServer {
    /// Listens on `address`.
    ///
    /// # Errors
    /// The kernel refuses, for example because another process listens there.
    pub(super) fn open(address: SocketAddr) -> std::io::Result<LivenessServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(LivenessServer { listener, waiting: Vec::new() })
    }

    /// Returns the descriptors to poll.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.waiting.iter().map(AsFd::as_fd))
    }

    /// Runs one round without blocking: accepts at most [`MAX_CONNECTIONS`] connections and answers the requests that
    /// arrived.
    pub(super) fn respond(&mut self) {
        for (stream, _) in std::iter::from_fn(|| self.listener.accept().ok()).take(MAX_CONNECTIONS) {
            if stream.set_nonblocking(true).is_ok() {
                let excess = (self.waiting.len() + 1).saturating_sub(MAX_CONNECTIONS);
                self.waiting.drain(..excess);
                self.waiting.push(stream);
            }
        }
        self.waiting.retain_mut(|stream| !serve_connection(stream));
    }
}

/// Whether the connection is finished.
fn serve_connection(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; REQUEST_BYTES]) {
        // A write error is ignored: the prober retries.
        Ok(bytes) if bytes > 0 => drop(stream.write_all(RESPONSE)),
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {
            return false;
        }
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);
    const PROBE: &[u8] = b"GET /live HTTP/1.1\r\nHost: 10.0.0.1:8004\r\nUser-Agent: kube-probe/1.36\r\n\r\n";

    fn open() -> LivenessServer {
        LivenessServer::open(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
    }

    fn connect(live: &LivenessServer) -> TcpStream {
        let stream = TcpStream::connect(live.listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Runs rounds, as the supervisor's loop does, until `enough`.
    fn poll_until(live: &mut LivenessServer, enough: impl Fn(&LivenessServer) -> bool) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < SOON, "{live:?}");
            let fds: Vec<_> = live.fds().collect();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
            drop(fds);
            live.respond();
            if enough(live) {
                return;
            }
        }
    }

    fn text(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn complete_request_is_answered() {
        let mut live = open();
        let mut asks = connect(&live);
        poll_until(&mut live, |live| live.waiting.len() == 1);
        asks.write_all(PROBE).unwrap();
        poll_until(&mut live, |live| live.waiting.is_empty());
        let answer = text(asks);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nlive\n"), "{answer}");
    }

    #[test]
    fn idle_connections_do_not_block_answers() {
        let mut live = open();
        let idle: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| connect(&live)).collect();
        let gone = connect(&live);
        let peers = |of: &[TcpStream]| of.iter().map(|one| one.peer_addr().unwrap()).collect::<Vec<_>>();
        let asking = |of: &[TcpStream]| of.iter().map(|one| one.local_addr().unwrap()).collect::<Vec<_>>();
        for accepted in idle.chunks(MAX_CONNECTIONS) {
            live.respond();
            assert_eq!(peers(&live.waiting), asking(accepted), "one round accepts no more");
        }
        live.respond();
        assert_eq!(live.waiting.len(), MAX_CONNECTIONS, "the oldest is closed");
        drop(gone);
        poll_until(&mut live, |live| live.waiting.len() == MAX_CONNECTIONS - 1);
        let mut asks = connect(&live);
        asks.write_all(PROBE).unwrap();
        poll_until(&mut live, |live| live.waiting.len() == MAX_CONNECTIONS - 1);
        assert!(text(asks).ends_with("live\n"));
        drop(idle);
    }
}

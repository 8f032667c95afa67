//! Socket wrapper that fails when its client stalls.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::timeouts::Timeouts;

/// Counter of a connection's requests: odd while one is answered, even while the next is awaited.
#[derive(Clone, Debug, Default)]
pub struct RequestCounter(Arc<AtomicU64>);

impl RequestCounter {
    /// Records that the head of a request has arrived.
    pub fn begin(&self) -> ActiveRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(self.clone())
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request that is being answered; dropping it ends the request.
#[derive(Debug)]
pub struct ActiveRequest(RequestCounter);

impl ActiveRequest {
    /// Keeps the request active until `body` is sent or dropped.
    pub fn until_body_ends(self, body: Body) -> Body {
        Body::new(TrackedBody { body, _request: self })
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct TrackedBody {
    body: Body,
    _request: ActiveRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

type Timer = Pin<Box<Sleep>>;

/// A socket that fails when no byte can be written for too long, or when a request's head takes too long.
#[derive(Debug)]
pub struct IdleTimeoutIo<S> {
    socket: S,
    timeouts: Timeouts,
    stall_timer: Option<Timer>,
    requests: RequestCounter,
    /// Timer of the incoming head, and the request count when it started.
    head_timer: Option<(Timer, u64)>,
}

impl<S> IdleTimeoutIo<S> {
    /// Wraps a new connection and starts the timer of its first head.
    pub fn new(socket: S, patience: Timeouts, requests: RequestCounter) -> IdleTimeoutIo<S> {
        let head = Some((Box::pin(tokio::time::sleep(patience.head)), requests.count()));
        IdleTimeoutIo { socket, timeouts: patience, stall_timer: None, requests, head_timer: head }
    }

    /// Passes a write's result on. Starts the stall timer while the write is pending, and fails when it expires.
    fn check_write_stall<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_timer = None;
            return written;
        }
        let patience = self.timeouts.write;
        let stalled = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        timed_out("the client does not read its answer")
    }

    /// Whether the head took too long. The timer starts with the first byte of a head and ends when the request begins.
    fn is_head_late(&mut self, bytes_came: bool, cx: &mut Context<'_>) -> bool {
        let now = self.requests.count();
        self.head_timer.take_if(|(_, count)| *count != now);
        // Bytes that arrive while a request is answered are its body, or a head that is not read yet.
        if bytes_came && now.is_multiple_of(2) {
            let patience = self.timeouts.head;
            self.head_timer.get_or_insert_with(|| (Box::pin(tokio::time::sleep(patience)), now));
        }
        self.head_timer.as_mut().is_some_and(|(clock, _)| clock.as_mut().poll(cx).is_ready())
    }
}

fn timed_out<T>(what: &'static str) -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeoutIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        if self.is_head_late(buffer.filled().len() > before, cx) {
            return timed_out("the headers of the request did not arrive in time");
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.check_write_stall(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.check_write_stall(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

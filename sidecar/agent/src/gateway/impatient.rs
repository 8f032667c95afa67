//! A connection that fails when its client keeps it waiting.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::serve::Patience;

/// Requests of a connection: odd while one is answered, even while the next is awaited.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// The head of a request is there.
    pub fn begin(&self) -> Turn {
        self.0.fetch_add(1, Ordering::Relaxed);
        Turn(self.clone())
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request that is being answered; dropped, it is no more.
#[derive(Debug)]
pub struct Turn(Turns);

impl Turn {
    /// Lasts until `body` has been sent, or never will be.
    pub fn until_end_of(self, body: Body) -> Body {
        Body::new(Answer { body, _turn: self })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Answer {
    body: Body,
    _turn: Turn,
}

impl HttpBody for Answer {
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

type Clock = Pin<Box<Sleep>>;

/// A socket that fails once nothing could be written for too long, or a head takes too long to come.
#[derive(Debug)]
pub struct Impatient<S> {
    socket: S,
    patience: Patience,
    stalled: Option<Clock>,
    turns: Turns,
    /// Of the head that is coming, and the turn before it.
    head: Option<(Clock, u64)>,
}

impl<S> Impatient<S> {
    /// A connection whose first head is awaited from now on.
    pub fn new(socket: S, patience: Patience, turns: Turns) -> Impatient<S> {
        let head = Some((Box::pin(tokio::time::sleep(patience.head)), turns.now()));
        Impatient { socket, patience, stalled: None, turns, head }
    }

    /// Passes on what a write gave; starts, ends or reads the clock.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience.write;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        late("the client reads nothing")
    }

    /// Begins with the first byte of a head, ends with the request; true = it took too long.
    fn head_is_late(&mut self, bytes_came: bool, cx: &mut Context<'_>) -> bool {
        let now = self.turns.now();
        self.head.take_if(|(_, turn)| *turn != now);
        // What comes while a request is answered is its body, or a head that nobody looks at yet.
        if bytes_came && now.is_multiple_of(2) {
            let patience = self.patience.head;
            self.head.get_or_insert_with(|| (Box::pin(tokio::time::sleep(patience)), now));
        }
        self.head.as_mut().is_some_and(|(clock, _)| clock.as_mut().poll(cx).is_ready())
    }
}

fn late<T>(what: &'static str) -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        if self.head_is_late(buffer.filled().len() > before, cx) {
            return late("the head of a request is late");
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.judge(written, cx)
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

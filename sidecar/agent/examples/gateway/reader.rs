//! A cheap client, because it shares the processors with the measured server: one thread, one epoll, one buffer, and
//! only the parsing that finds the events.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use rustix::event::Timespec;
use rustix::event::epoll;

use crate::stamped;

/// Most sockets per poll.
const READY_MAX: usize = 256;

/// Arrival times of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When the server wrote them, by the kernel's timestamp of the last ones of the read.
    #[allow(dead_code, reason = "each of the two examples looks at one of them")]
    pub written: Option<SystemTime>,
    /// When they were read.
    pub read: Instant,
}

/// The streams of a client.
pub struct Reader {
    epoll: OwnedFd,
    sockets: Vec<TcpStream>,
    ready: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl Reader {
    /// Creates a reader without streams.
    pub fn new() -> anyhow::Result<Reader> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Reader { epoll, sockets: Vec::new(), ready: Vec::new(), buffer: vec![0; 64 << 10] })
    }

    /// Opens a stream with `request`. Streams are numbered in the order of opening.
    pub fn open(&mut self, address: SocketAddr, request: &[u8]) -> anyhow::Result<()> {
        let mut socket = TcpStream::connect(address).context("cannot connect")?;
        socket.write_all(request)?;
        socket.set_nonblocking(true)?;
        stamped::enable_timestamps(&socket).context("no stamps")?;
        let number = epoll::EventData::new_u64(self.sockets.len() as u64);
        epoll::add(&self.epoll, &socket, number, epoll::EventFlags::IN)?;
        self.sockets.push(socket);
        Ok(())
    }

    /// Waits up to `time` for bytes, and calls `seen` with stream, tokens and times of each readable socket.
    pub fn wait(
        &mut self,
        time: Duration,
        mut seen: impl FnMut(usize, usize, Arrival),
    ) -> anyhow::Result<()> {
        let timeout = Timespec::try_from(time)?;
        self.ready.clear();
        self.ready.reserve(READY_MAX);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.ready), Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            waited => drop(waited?),
        }
        for event in &self.ready {
            let stream = event.data.u64() as usize;
            match stamped::read(&self.sockets[stream], &mut self.buffer) {
                Ok((length, written)) => {
                    let read = Instant::now();
                    ensure!(length > 0, "stream {stream} ended");
                    seen(stream, tokens(&self.buffer[..length]), Arrival { written, read });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a stream broke"),
            }
        }
        Ok(())
    }
}

/// Counts the tokens in a part of a stream, in which each token is `a`. An event may contain several.
fn tokens(bytes: &[u8]) -> usize {
    const BEFORE: &[u8] = b"\"text\":\"";
    let mut rest = bytes;
    let mut tokens = 0;
    while let Some(at) = rest.windows(BEFORE.len()).position(|part| part == BEFORE) {
        rest = &rest[at + BEFORE.len()..];
        tokens += rest.iter().take_while(|byte| **byte == b'a').count();
    }
    tokens
}

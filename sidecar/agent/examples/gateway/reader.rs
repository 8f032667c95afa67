//! A client that costs little, since it shares the processors with what it measures: one thread, one epoll, one buffer, and
//! no more parsing than it takes to find the events.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use rustix::event::Timespec;
use rustix::event::epoll;

use crate::stamped;

/// Sockets taken at one time.
const READY_MAX: usize = 256;

/// When tokens came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When the server wrote them, by the kernel; the last ones of a read with several.
    #[allow(dead_code, reason = "each of the two examples looks at one of them")]
    pub written: Option<SystemTime>,
    /// When they were read.
    pub read: Instant,
}

/// Streams being read.
pub struct Reader {
    epoll: OwnedFd,
    sockets: Vec<TcpStream>,
    ready: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl Reader {
    /// No streams.
    pub fn new() -> anyhow::Result<Reader> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Reader { epoll, sockets: Vec::new(), ready: Vec::new(), buffer: vec![0; 64 << 10] })
    }

    /// Asks for one more stream by `request`; its number is how many there were.
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

    /// Waits up to `time` for bytes, and calls `seen` with stream, tokens and times for each socket that has some.
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

/// Tokens in a part of a stream, whose only token is `a`. An event may hold several.
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

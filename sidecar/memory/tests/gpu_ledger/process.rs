//! A child process: reads one command per line from its input and writes one answer each to its output.

use std::fmt::Debug;
use std::io::{BufRead, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::Signal;
use sluice_memory::gpu_ledger::{GpuLedger, LedgerFaults, ParticipantHandle, Peer, ShareRequest, SliceOrder};

use super::{env, shares, slice_stress, stress, time_slices};

/// Folder of the ledger.
pub const FOLDER_VAR: &str = "SLUICE_TEST_LEDGER";
/// Capacity of the GPU, bytes.
pub const CAPACITY_VAR: &str = "SLUICE_TEST_CAPACITY";

type Answer = Result<String, String>;

#[test]
#[ignore = "a process of the other tests, which start it"]
fn child_process() {
    let Some(folder) = std::env::var_os(FOLDER_VAR) else {
        println!("skipped: only other tests start this one");
        return;
    };
    let capacity = std::env::var(CAPACITY_VAR).unwrap().parse().unwrap();
    let mut actor = CommandHandler::new(folder.into(), capacity);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match actor.run_command(words[0], &words[1..]) {
            Ok(text) => println!("\n@ok {text}"),
            Err(text) => println!("\n@err {text}"),
        }
    }
}

struct CommandHandler {
    folder: PathBuf,
    capacity: u64,
    faults: LedgerFaults,
    /// Writes until this process kills or stops itself; negative = never.
    writes_left: Arc<AtomicI64>,
    /// Signal that it sends to itself.
    end_signal: Arc<AtomicI32>,
    ledger: Option<GpuLedger>,
    participant: Option<ParticipantHandle>,
    engine: Option<OwnedFd>,
}

impl CommandHandler {
    fn new(folder: PathBuf, capacity: u64) -> CommandHandler {
        let writes_left = Arc::new(AtomicI64::new(-1));
        let left = Arc::clone(&writes_left);
        let end = Arc::new(AtomicI32::new(Signal::KILL.as_raw()));
        let ended_by = Arc::clone(&end);
        let tap = move || {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                raise_signal(ended_by.load(Ordering::SeqCst));
            }
        };
        let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..LedgerFaults::default() };
        CommandHandler {
            folder,
            capacity,
            faults,
            writes_left,
            end_signal: end,
            ledger: None,
            participant: None,
            engine: None,
        }
    }

    fn run_command(&mut self, command: &str, words: &[&str]) -> Answer {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let peer = || Peer { index: words[0].parse().unwrap(), instance: number(1) };
        match command {
            "pid" => Ok(std::process::id().to_string()),
            "fault" => self.fault(words[0]),
            "die" => self.end_at_write(number(0), Signal::KILL),
            "freeze" => self.end_at_write(number(0), Signal::STOP),
            "bus" => self.read_truncated_mapping(),
            "open" => self.open(),
            "join" => self.join(words[0], number(1)),
            "join_for" => self.join_for(words[0], number(1), number(2)),
            "reserve" => to_answer(self.participant().reserve(number(0))),
            "release" => self.release(number(0)),
            "floor" => to_answer(self.participant().set_floor(number(0))),
            "ask" => to_answer(self.participant().raise_share(number(0))),
            "cede" => to_answer(self.participant().release_share(number(0))),
            "earmark" => to_answer(self.participant().earmark(&peer(), number(2), number(3), number(4))),
            "accept" => to_answer(self.participant().accept(&peer(), number(2), number(3))),
            "void" => to_answer(self.participant().cancel_earmark(number(0))),
            "clear" => to_answer(self.participant().clear_settled()),
            "request" => to_answer(self.participant().slice_queue().request(0)),
            "cancel" => to_answer(self.participant().slice_queue().cancel()),
            "promise" => to_answer(self.participant().slice_queue().set_deadline(number(0))),
            "held" => Ok(format!("{:?}", self.participant().slice_queue().held())),
            "overtaken" => Ok(self.participant().slice_queue().takeovers_total().to_string()),
            "give_turn" => to_answer(self.participant().slice_queue().release()),
            "take_turn" => to_answer(
                self.participant()
                    .slice_queue()
                    .acquire_within(SliceOrder::RoundRobin, Duration::from_secs(30)),
            ),
            "spin" => time_slices::spin(self.participant(), &self.folder, number(0)),
            "hammer" => stress::stress(self.participant(), &self.folder, number(0), number(1), number(2)),
            "turns" => slice_stress::stress(self.participant(), &self.folder, number(0), number(1)),
            "deal" => shares::stress(self.participant(), &self.folder, number(0), number(1), number(2)),
            "lend" => self.send_liveness(Path::new(words[0])),
            "hold" => self.receive_liveness(Path::new(words[0])),
            other => panic!("{other} is no command"),
        }
    }

    fn end_at_write(&self, write: u64, signal: Signal) -> Answer {
        self.end_signal.store(signal.as_raw(), Ordering::SeqCst);
        self.writes_left.store(write as i64, Ordering::SeqCst);
        Ok(String::new())
    }

    /// Reads a truncated mapping that is not the ledger's.
    fn read_truncated_mapping(&self) -> Answer {
        let file = std::fs::File::create_new(self.folder.join("other")).unwrap();
        file.set_len(4096).unwrap();
        let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, shared, &file, 0) };
        // SAFETY: mapped above.
        let read = |base: *mut u8| unsafe { base.read_volatile() };
        let base = base.map_err(|error| error.to_string())?.cast();
        assert_eq!(read(base), 0);
        file.set_len(0).unwrap();
        Ok(read(base).to_string())
    }

    fn release(&self, bytes: u64) -> Answer {
        self.participant().release(bytes);
        Ok(String::new())
    }

    fn participant(&self) -> &ParticipantHandle {
        self.participant.as_ref().expect("joined before")
    }

    fn fault(&mut self, name: &str) -> Answer {
        match name {
            "lose_earmark" => self.faults.lose_earmark = true,
            "ignore_fence" => self.faults.ignore_fence = true,
            "unlocked_turn" => (self.faults.unlocked_slice, self.faults.ignore_queue) = (true, true),
            "unlocked_reserve" => {
                self.faults.unlocked_reserve = true;
                // A gap that is long enough for others to interleave.
                self.faults.before_write = Some(Arc::new(|| std::thread::sleep(Duration::from_micros(200))));
            }
            other => panic!("{other} is no fault"),
        }
        Ok(String::new())
    }

    fn open(&mut self) -> Answer {
        let identity = env::identity(self.capacity);
        let opened = GpuLedger::open_with(&self.folder, &identity, self.faults.clone());
        self.ledger = Some(opened.map_err(|error| format!("{error:?}"))?);
        Ok(String::new())
    }

    fn join(&mut self, name: &str, share: u64) -> Answer {
        let ledger = self.ledger.as_ref().expect("opened before");
        let participant = ledger.join(name, share / 2, share).map_err(|error| format!("{error:?}"))?;
        Ok(self.set_participant(participant))
    }

    fn join_for(&mut self, name: &str, share_bytes: u64, least_bytes: u64) -> Answer {
        let ledger = self.ledger.as_ref().expect("opened before");
        let wish = ShareRequest { floor_bytes: 0, share_bytes, min_bytes: least_bytes };
        let participant = ledger.join_with(name, wish).map_err(|error| format!("{error:?}"))?;
        Ok(self.set_participant(participant))
    }

    fn set_participant(&mut self, participant: ParticipantHandle) -> String {
        let text = format!("{} {}", participant.index(), participant.instance());
        self.participant = Some(participant);
        text
    }

    /// Sends the liveness description to the process that listens at `path`.
    fn send_liveness(&self, path: &Path) -> Answer {
        let socket = UnixStream::connect(path).unwrap();
        send_fd(&socket, self.participant().liveness());
        Ok(String::new())
    }

    /// Acts as an engine: receives a description at `path` and keeps it.
    fn receive_liveness(&mut self, path: &Path) -> Answer {
        let listener = UnixListener::bind(path).unwrap();
        println!("\n@ok");
        self.engine = Some(receive_fd(&listener.accept().unwrap().0));
        Ok(String::new())
    }
}

fn raise_signal(signal: i32) {
    // Signal this thread, which then does nothing more. A signal to the process could be delivered to another
    // thread, a moment later.
    // SAFETY: the call accesses no memory.
    let sent = unsafe { libc::raise(signal) };
    assert_eq!((sent, signal), (0, Signal::STOP.as_raw()), "a killed process writes nothing");
}

fn to_answer<T: Debug, E: Debug>(result: Result<T, E>) -> Answer {
    result.map(|value| format!("{value:?}")).map_err(|error| format!("{error:?}"))
}

fn send_fd(socket: &UnixStream, fd: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
}

/// Returns the descriptor that the next message carries.
pub fn receive_fd(socket: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags).unwrap();
    let mut fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => vec![],
    });
    fds.next().expect("a descriptor arrives")
}

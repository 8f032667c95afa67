//! What the neighbours of one GPU share: who holds how many bytes of it, what is on its way from one to another, and whose
//! turn it is. It survives the death of any participant at any instant, without anybody's help.
//!
//! Two files in a folder. `ledger` is mapped by all: a header and one record for each participant, which only its owner writes.
//! `locks` is never replaced; its bytes are locked by open file descriptions: one byte guards check-and-change, one for each
//! record says that its participant lives, and one for each epoch says that its turn is held. The description of the latter two
//! is passed to the engine, so the kernel drops them only when sidecar and engine are both gone. The first page of `locks` has
//! the epoch of the turn in force, so that an engine sees it too: [`TurnFence`](crate::TurnFence).
//!
//! Counted are, over living participants, the bytes held and the earmarks for living borrowers that have not
//! accepted them. A transfer is written so that its bytes are counted twice between two writes, never zero times;
//! `docs/neighbours.md` has the table.

mod count;
mod error;
mod faults;
mod guard;
mod hold;
mod layout;
mod line;
mod locks;
mod record;
mod seat;
mod share;
mod transfer;
mod turn;
mod watch;
mod words;

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

pub use count::{Earmark, EarmarkState, LedgerAudit, Participant};
pub use error::{JoinError, LedgerError, OpenError};
pub use faults::{LedgerFaults, WriteTap};
pub use hold::{TakenOver, TurnHolder};
pub use layout::{RECORDS, TRANSFERS};
pub use line::PASSED_OVER;
pub use locks::PATIENCE as GUARD_PATIENCE;
pub use seat::Seat;
pub use share::Wish;
pub use sluice_policy::peers::Peer;
pub use sluice_policy::peers::time_slice::TurnOrder;
pub use transfer::Cleared;
pub use turn::{Epoch, FIRST_DEADLINE, OVERDUE_GRACE, TurnLine};

use guard::Shared;
use layout::{FILE_BYTES, MAGIC, VERSION, header, text_at, text_words};
use words::Words;

use crate::fence::{self, FENCE_BYTES, FencePage};

/// What a ledger is about. Participants of one GPU agree on all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of the machine's kernel, see [`this_boot`].
    pub boot_id: [u8; 16],
    /// Of the claim on the GPU; another claim is another neighbourhood.
    pub claim_id: String,
    /// Bytes of the GPU.
    pub capacity_bytes: u64,
    /// Bytes of a chunk of the GPU.
    pub chunk_bytes: u64,
}

/// The id of this boot of the machine, the same in all containers.
pub fn this_boot() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
    Ok(id.to_be_bytes())
}

/// The shared files of one GPU, opened. Clones share the description of the guard.
#[derive(Clone, Debug)]
pub struct Neighbourhood {
    shared: Arc<Shared>,
}

impl Neighbourhood {
    /// Opens the ledger in `folder`, which exists. A ledger that is missing, of another boot or claim, or damaged is
    /// made anew, unless a participant of it still lives.
    pub fn open(folder: &Path, identity: &Identity) -> Result<Neighbourhood, OpenError> {
        Neighbourhood::open_with(folder, identity, LedgerFaults::default())
    }

    /// As [`Neighbourhood::open`], with faults for tests.
    pub fn open_with(
        folder: &Path,
        identity: &Identity,
        faults: LedgerFaults,
    ) -> Result<Neighbourhood, OpenError> {
        check_claim(&identity.claim_id)?;
        let opening = Opening::new(folder, identity, faults)?;
        let words = opening.words()?;
        let fence = opening.fence()?;
        let Opening { path, guard, locks_path, .. } = opening;
        locks::unlock(guard.as_fd(), locks::GUARD).map_err(refused("fcntl", &locks_path))?;
        Ok(Neighbourhood { shared: Arc::new(Shared::new((words, fence), guard, (path, locks_path))) })
    }

    /// Takes a vacant record, or that of a dead participant, for the participant `name`. Its floor and share are
    /// bytes and count as long as it lives. It has all of its share or no record.
    pub fn join(&self, name: &str, floor_bytes: u64, share_bytes: u64) -> Result<Seat, JoinError> {
        self.join_for(name, Wish { floor_bytes, share_bytes, least_bytes: share_bytes })
    }

    /// As [`Neighbourhood::join`], with as much of the share as others leave: [`Seat::share_bytes`].
    pub fn join_for(&self, name: &str, wish: Wish) -> Result<Seat, JoinError> {
        Seat::join(&self.shared, name, wish)
    }

    /// Everybody who has a record, the dead included whose records nobody has taken yet.
    pub fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.shared.survey()
    }

    /// Who has how much. An error when more is counted than there is.
    pub fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        self.shared.audit()
    }
}

fn check_claim(claim: &str) -> Result<(), OpenError> {
    let (bytes, limit_bytes) = (claim.len(), header::CLAIM_BYTES);
    if bytes == 0 || bytes > limit_bytes {
        return Err(OpenError::ClaimId { bytes, limit_bytes });
    }
    Ok(())
}

fn refused(call: &'static str, path: &Path) -> impl Fn(Errno) -> OpenError + use<> {
    let path = path.display().to_string();
    move |source| OpenError::Kernel { call, path: path.clone(), source }
}

/// The guard is held from its creation to its end.
struct Opening<'a> {
    identity: &'a Identity,
    faults: LedgerFaults,
    path: PathBuf,
    locks_path: PathBuf,
    guard: OwnedFd,
}

impl<'a> Opening<'a> {
    fn new(folder: &Path, identity: &'a Identity, faults: LedgerFaults) -> Result<Opening<'a>, OpenError> {
        let locks_path = folder.join("locks");
        let guard = locks::describe(&locks_path).map_err(refused("open", &locks_path))?;
        let taken = locks::patiently(GUARD_PATIENCE, || locks::try_lock(guard.as_fd(), locks::GUARD));
        if !taken.map_err(refused("fcntl", &locks_path))? {
            return Err(OpenError::Busy { waited_ms: GUARD_PATIENCE.as_millis() as u64 });
        }
        Ok(Opening { identity, faults, path: folder.join("ledger"), locks_path, guard })
    }

    /// The ledger as it is, or a new one in its place.
    fn words(&self) -> Result<Words, OpenError> {
        let unfit = match Words::map(&self.path, self.faults.clone()) {
            Err(Errno::NOENT) => return self.create(),
            Err(error) => return Err(refused("open", &self.path)(error)),
            Ok(None) => damaged("its length"),
            Ok(Some(words)) => match check(&words, self.identity) {
                Ok(()) => {
                    words.note(header::GUARDED, 0);
                    return Ok(words);
                }
                Err(size @ OpenError::OtherSize { .. }) => return Err(size),
                Err(unfit) => unfit,
            },
        };
        if self.in_use()? { Err(unfit) } else { self.create() }
    }

    fn in_use(&self) -> Result<bool, OpenError> {
        locks::anybody_lives(self.guard.as_fd()).map_err(refused("fcntl", &self.locks_path))
    }

    /// The page of the file of locks with the epoch of the turn, which is made when it is missing.
    fn fence(&self) -> Result<FencePage, OpenError> {
        let file = self.guard.as_fd();
        let marked = fence::is_marked(file).map_err(refused("read", &self.locks_path))?;
        if !marked && self.in_use()? {
            return Err(damaged("the epoch of its turn"));
        }
        if !marked {
            self.faults.before_write();
            rustix::fs::ftruncate(file, FENCE_BYTES as u64)
                .map_err(refused("ftruncate", &self.locks_path))?;
        }
        let page = FencePage::map_writable(file).map_err(refused("mmap", &self.locks_path))?;
        if !marked {
            self.faults.before_write();
            page.mark();
        }
        Ok(page)
    }

    /// Written in full under another name first, so that nobody ever sees half a ledger.
    fn create(&self) -> Result<Words, OpenError> {
        let new = self.path.with_extension("new");
        let io = |call, path: &Path| {
            let refused = refused(call, path);
            move |error: std::io::Error| refused(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        self.faults.before_write();
        let mut file = create_file(&new).map_err(io("open", &new))?;
        self.faults.before_write();
        file.write_all(&empty(self.identity)).map_err(io("write", &new))?;
        self.faults.before_write();
        std::fs::rename(&new, &self.path).map_err(io("rename", &self.path))?;
        let words = Words::map(&self.path, self.faults.clone()).map_err(refused("mmap", &self.path))?;
        words.ok_or_else(|| damaged("its length"))
    }
}

/// For all of a group, as the lock file: pods may run as users of their own.
fn create_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o660).open(path)
}

/// A ledger without participants, as bytes.
fn empty(identity: &Identity) -> Vec<u8> {
    let mut words = vec![0; FILE_BYTES / 8];
    words[header::MAGIC] = MAGIC;
    words[header::VERSION] = VERSION;
    words[header::BOOT_ID..][..2].copy_from_slice(&boot_words(identity.boot_id));
    words[header::CAPACITY] = identity.capacity_bytes;
    words[header::CHUNK] = identity.chunk_bytes;
    words[header::NEXT_INSTANCE] = first_instance();
    words[header::NEXT_TICKET] = 1;
    for (at, word) in (header::CLAIM..).zip(text_words(&identity.claim_id)) {
        words[at] = word;
    }
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// Instances are counted within a ledger. They start anywhere, so that those of an earlier ledger name nobody.
fn first_instance() -> u64 {
    (RandomState::new().build_hasher().finish() >> 2).max(1)
}

fn boot_words(id: [u8; 16]) -> [u64; 2] {
    let id = u128::from_be_bytes(id);
    [(id >> 64) as u64, id as u64]
}

fn check(words: &Words, expected: &Identity) -> Result<(), OpenError> {
    if words.load(header::MAGIC) != MAGIC {
        return Err(damaged("its magic"));
    }
    let found = words.load(header::VERSION);
    if found != VERSION {
        return Err(OpenError::OtherVersion { found, expected: VERSION });
    }
    let boot = [header::BOOT_ID, header::BOOT_ID + 1].map(|at| words.load(at));
    same_life("boot", hex(boot), hex(boot_words(expected.boot_id)))?;
    let claim = text_at(|at| words.load(at), header::CLAIM, header::CLAIM_BYTES);
    same_life("claim", claim.ok_or_else(|| damaged("its claim id"))?, expected.claim_id.clone())?;
    same_size("bytes of capacity", words.load(header::CAPACITY), expected.capacity_bytes)?;
    same_size("bytes a chunk", words.load(header::CHUNK), expected.chunk_bytes)
}

fn hex([high, low]: [u64; 2]) -> String {
    format!("{high:016x}{low:016x}")
}

fn damaged(what: &str) -> OpenError {
    OpenError::Damaged { what: what.to_owned() }
}

fn same_life(what: &'static str, found: String, expected: String) -> Result<(), OpenError> {
    if found == expected { Ok(()) } else { Err(OpenError::OtherLife { what, found, expected }) }
}

fn same_size(what: &'static str, found: u64, expected: u64) -> Result<(), OpenError> {
    if found == expected { Ok(()) } else { Err(OpenError::OtherSize { what, found, expected }) }
}

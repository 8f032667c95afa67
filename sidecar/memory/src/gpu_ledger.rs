//! The state that all tenants of one GPU share: the bytes that each holds, the transfers in progress between
//! them, and the holder of the time slice. It stays consistent when any participant exits at any instant; no
//! other process has to repair it.
//!
//! It consists of two files in a folder. All participants map `ledger`: a header and one record per
//! participant, which only its owner writes (except to mark it as skipped or to clear a settled transfer).
//! `locks` is never replaced. Open file descriptions lock its bytes: one byte (the guard) protects
//! check-and-change, one byte per record marks its participant as live, and one byte per epoch marks its time
//! slice as held. The sidecar passes the description with the latter two to the engine, so the kernel drops
//! these locks only when both have exited. The first page of `locks` contains the current epoch, so that an
//! engine can read it through [`SliceFence`](crate::SliceFence).
//!
//! The count includes, over live participants, the bytes held and the earmarks for live borrowers that have
//! not accepted them. The order of writes counts the bytes of a transfer twice between two writes, never zero
//! times; `docs/peers.md` has the table.

mod accounting;
mod error;
mod faults;
mod guard;
mod layout;
mod live_set;
mod locks;
mod mapped_words;
mod observed_duration;
mod participant;
mod record;
mod share;
mod share_request;
mod slice_holder;
mod slice_tracker;
mod time_slice;
mod transfer;
mod wait_queue;

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

pub use accounting::{Earmark, EarmarkState, LedgerAudit, Participant};
pub use error::{JoinError, LedgerError, OpenError};
pub use faults::{LedgerFaults, WriteHook};
pub use layout::{RECORDS, TRANSFERS};
pub use locks::GUARD_TIMEOUT as GUARD_PATIENCE;
pub use participant::ParticipantHandle;
pub use share_request::ShareRequest;
pub use slice_holder::SliceHolder;
pub use slice_tracker::SliceTakeover;
pub use sluice_policy::peers::Peer;
pub use sluice_policy::peers::time_slice::SliceOrder;
pub use time_slice::{Epoch, FIRST_DEADLINE, OVERDUE_GRACE, SliceQueue};
pub use transfer::ClearedTransfers;
pub use wait_queue::SKIP_AFTER;

use guard::LedgerFiles;
use layout::{FILE_BYTES, MAGIC, VERSION, header, text_at, text_words};
use mapped_words::MappedWords;

use crate::fence::{self, FENCE_BYTES, FencePage};

/// The identity of a ledger. Participants of one GPU agree on all fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerIdentity {
    /// Boot id of the machine's kernel, see [`current_boot_id`].
    pub boot_id: [u8; 16],
    /// Id of the claim on the GPU. Each claim has its own ledger.
    pub claim_id: String,
    /// Capacity of the GPU, bytes.
    pub capacity_bytes: u64,
    /// Size of a chunk of the GPU, bytes.
    pub chunk_bytes: u64,
}

/// Returns the id of this boot of the machine, which is the same in all containers.
pub fn current_boot_id() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
    Ok(id.to_be_bytes())
}

/// The open shared files of one GPU. Clones share the open file description that locks the guard.
#[derive(Clone, Debug)]
pub struct GpuLedger {
    files: Arc<LedgerFiles>,
}

impl GpuLedger {
    /// Opens the ledger in the existing `folder`. Creates it again if it is missing, damaged, or of another
    /// boot, claim or layout version, unless one of its participants is live.
    pub fn open(folder: &Path, identity: &LedgerIdentity) -> Result<GpuLedger, OpenError> {
        GpuLedger::open_with(folder, identity, LedgerFaults::default())
    }

    /// As [`GpuLedger::open`], with faults for tests.
    pub fn open_with(
        folder: &Path,
        identity: &LedgerIdentity,
        faults: LedgerFaults,
    ) -> Result<GpuLedger, OpenError> {
        check_claim_id(&identity.claim_id)?;
        let opening = LedgerOpener::new(folder, identity, faults)?;
        let words = opening.open_words()?;
        let fence = opening.open_fence()?;
        let LedgerOpener { path, guard, locks_path, .. } = opening;
        locks::unlock(guard.as_fd(), locks::GUARD).map_err(kernel_error("fcntl", &locks_path))?;
        Ok(GpuLedger { files: Arc::new(LedgerFiles::new((words, fence), guard, (path, locks_path))) })
    }

    /// Claims a vacant record, or that of an exited participant, for the participant `name`. Its floor and
    /// share are bytes and count while it is live. Fails unless the whole share can be granted.
    pub fn join(
        &self,
        name: &str,
        floor_bytes: u64,
        share_bytes: u64,
    ) -> Result<ParticipantHandle, JoinError> {
        self.join_with(name, ShareRequest { floor_bytes, share_bytes, min_bytes: share_bytes })
    }

    /// As [`GpuLedger::join`], but grants as much of the share as the others leave:
    /// [`ParticipantHandle::share_bytes`].
    pub fn join_with(&self, name: &str, wish: ShareRequest) -> Result<ParticipantHandle, JoinError> {
        ParticipantHandle::join(&self.files, name, wish)
    }

    /// Returns all participants with a record, including exited ones whose records are not reused yet.
    pub fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.files.survey()
    }

    /// Returns the bytes that each participant holds. Fails if more is counted than the GPU has.
    pub fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        self.files.audit()
    }
}

fn check_claim_id(claim: &str) -> Result<(), OpenError> {
    let (bytes, limit_bytes) = (claim.len(), header::CLAIM_BYTES);
    if bytes == 0 || bytes > limit_bytes {
        return Err(OpenError::InvalidClaimId { bytes, limit_bytes });
    }
    Ok(())
}

fn kernel_error(call: &'static str, path: &Path) -> impl Fn(Errno) -> OpenError + use<> {
    let path = path.display().to_string();
    move |source| OpenError::Kernel { call, path: path.clone(), source }
}

/// Opens the ledger and holds the guard from construction to drop.
struct LedgerOpener<'a> {
    identity: &'a LedgerIdentity,
    faults: LedgerFaults,
    path: PathBuf,
    locks_path: PathBuf,
    guard: OwnedFd,
}

impl<'a> LedgerOpener<'a> {
    fn new(
        folder: &Path,
        identity: &'a LedgerIdentity,
        faults: LedgerFaults,
    ) -> Result<LedgerOpener<'a>, OpenError> {
        let locks_path = folder.join("locks");
        let guard = locks::open_lock_file(&locks_path).map_err(kernel_error("open", &locks_path))?;
        let taken = locks::retry_within(GUARD_PATIENCE, || locks::try_lock(guard.as_fd(), locks::GUARD));
        if !taken.map_err(kernel_error("fcntl", &locks_path))? {
            return Err(OpenError::Busy { waited_ms: GUARD_PATIENCE.as_millis() as u64 });
        }
        Ok(LedgerOpener { identity, faults, path: folder.join("ledger"), locks_path, guard })
    }

    /// Maps the existing ledger, or creates a new one.
    fn open_words(&self) -> Result<MappedWords, OpenError> {
        let unfit = match MappedWords::map(&self.path, self.faults.clone()) {
            Err(Errno::NOENT) => return self.create(),
            Err(error) => return Err(kernel_error("open", &self.path)(error)),
            Ok(None) => damaged("its length"),
            Ok(Some(words)) => match check_header(&words, self.identity) {
                Ok(()) => {
                    words.store_unhooked(header::GUARD_HOLDER, 0);
                    return Ok(words);
                }
                Err(size @ OpenError::SizeMismatch { .. }) => return Err(size),
                Err(unfit) => unfit,
            },
        };
        if self.is_in_use()? { Err(unfit) } else { self.create() }
    }

    fn is_in_use(&self) -> Result<bool, OpenError> {
        locks::is_any_live(self.guard.as_fd()).map_err(kernel_error("fcntl", &self.locks_path))
    }

    /// Maps the page of the lock file with the current epoch, and creates it if it is missing.
    fn open_fence(&self) -> Result<FencePage, OpenError> {
        let file = self.guard.as_fd();
        let marked = fence::has_epoch(file).map_err(kernel_error("read", &self.locks_path))?;
        if !marked && self.is_in_use()? {
            return Err(damaged("the epoch of its turn"));
        }
        if !marked {
            self.faults.before_write();
            rustix::fs::ftruncate(file, FENCE_BYTES as u64)
                .map_err(kernel_error("ftruncate", &self.locks_path))?;
        }
        let page = FencePage::map_writable(file).map_err(kernel_error("mmap", &self.locks_path))?;
        if !marked {
            self.faults.before_write();
            page.init();
        }
        Ok(page)
    }

    /// Writes the file under another name before renaming it, so that no process sees a partial ledger.
    fn create(&self) -> Result<MappedWords, OpenError> {
        let new = self.path.with_extension("new");
        let io = |call, path: &Path| {
            let refused = kernel_error(call, path);
            move |error: std::io::Error| refused(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        self.faults.before_write();
        let mut file = create_file(&new).map_err(io("open", &new))?;
        self.faults.before_write();
        file.write_all(&empty_ledger(self.identity)).map_err(io("write", &new))?;
        self.faults.before_write();
        std::fs::rename(&new, &self.path).map_err(io("rename", &self.path))?;
        let words =
            MappedWords::map(&self.path, self.faults.clone()).map_err(kernel_error("mmap", &self.path))?;
        words.ok_or_else(|| damaged("its length"))
    }
}

/// Creates a file that the group can access, as the lock file: pods may run as different users.
fn create_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o660).open(path)
}

/// Returns the bytes of a ledger without participants.
fn empty_ledger(identity: &LedgerIdentity) -> Vec<u8> {
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

/// Returns a random first instance number, so that instances of an earlier ledger match no participant of
/// this one.
fn first_instance() -> u64 {
    (RandomState::new().build_hasher().finish() >> 2).max(1)
}

fn boot_words(id: [u8; 16]) -> [u64; 2] {
    let id = u128::from_be_bytes(id);
    [(id >> 64) as u64, id as u64]
}

fn check_header(words: &MappedWords, expected: &LedgerIdentity) -> Result<(), OpenError> {
    if words.load(header::MAGIC) != MAGIC {
        return Err(damaged("its magic"));
    }
    let found = words.load(header::VERSION);
    if found != VERSION {
        return Err(OpenError::VersionMismatch { found, expected: VERSION });
    }
    let boot = [header::BOOT_ID, header::BOOT_ID + 1].map(|at| words.load(at));
    check_identity("boot", hex(boot), hex(boot_words(expected.boot_id)))?;
    let claim = text_at(|at| words.load(at), header::CLAIM, header::CLAIM_BYTES);
    check_identity("claim", claim.ok_or_else(|| damaged("its claim id"))?, expected.claim_id.clone())?;
    check_size("bytes of capacity", words.load(header::CAPACITY), expected.capacity_bytes)?;
    check_size("bytes a chunk", words.load(header::CHUNK), expected.chunk_bytes)
}

fn hex([high, low]: [u64; 2]) -> String {
    format!("{high:016x}{low:016x}")
}

fn damaged(what: &str) -> OpenError {
    OpenError::Damaged { what: what.to_owned() }
}

fn check_identity(what: &'static str, found: String, expected: String) -> Result<(), OpenError> {
    if found == expected { Ok(()) } else { Err(OpenError::IdentityMismatch { what, found, expected }) }
}

fn check_size(what: &'static str, found: u64, expected: u64) -> Result<(), OpenError> {
    if found == expected { Ok(()) } else { Err(OpenError::SizeMismatch { what, found, expected }) }
}

//! Stores the directive in force: accepts it only if newer, writes it to disk before it takes effect, and reads it at
//! start.
//!
//! The file holds the directive as received, so that a later version of the sidecar can read fields that this one does
//! not know. If the directive names no share, the share of the previous one is added. [`DirectiveStore::watch`] reports
//! changes.

mod atomic_write;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::atomic_write::{WriteHook, WriteStep};
use serde_json::Value;
use sluice_wire::directive::{Directive, Fence};
use sluice_wire::message::{Invalid, ReadError};
use tokio::sync::watch;

/// Checks what only the tenant itself can check, such as the name of the policy.
pub type Validator = Box<dyn Fn(&Directive) -> Result<(), Invalid> + Send + Sync>;

/// A directive and its text.
#[derive(Clone, Debug)]
pub struct ActiveDirective {
    /// Parsed directive.
    pub directive: Arc<Directive>,
    /// Text as received, plus the previous share if it names none.
    pub text: Arc<[u8]>,
}

/// Store of the directive in force.
pub struct DirectiveStore {
    path: PathBuf,
    validator: Validator,
    write_hook: WriteHook,
    /// Held from the comparison with the directive in force until its replacement. Readers do not wait for the disk.
    write_lock: Mutex<()>,
    active: watch::Sender<Option<ActiveDirective>>,
}

impl std::fmt::Debug for DirectiveStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directives").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Result of an accepted directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedDirective {
    /// The directive is in force now.
    New(Fence),
    /// The directive was in force already.
    Unchanged(Fence),
}

/// Reason why a directive was rejected. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RejectedDirective {
    /// The directive is invalid.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directive in force is newer, or has the same pair and different content.
    #[error("directive {offered} is not newer than the current one, {current}")]
    NotNewer {
        /// Pair of the rejected directive.
        offered: Fence,
        /// Pair of the directive in force.
        current: Fence,
    },
    /// The directive could not be stored, so it has no effect. After a restart it may be in force.
    #[error("{}: {error}", path.display())]
    Store {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
}

impl DirectiveStore {
    /// Opens the store at `path`. Logs an error if the file cannot be read, and starts with the configuration alone,
    /// because a failed start would only fail again.
    pub fn open(path: PathBuf, judge: Validator) -> Self {
        DirectiveStore::open_with_hook(path, judge, Box::new(|_| Ok(())))
    }

    /// Like [`open`](DirectiveStore::open), with a hook that runs after every step of a write.
    pub fn open_with_hook(path: PathBuf, judge: Validator, witness: WriteHook) -> Self {
        let in_force = match read_stored(&path, &judge) {
            Ok(in_force) => in_force,
            Err(why) => {
                tracing::error!(
                    path = %path.display(), %why,
                    "the stored directive cannot be used: using the configuration"
                );
                None
            }
        };
        if let Some(in_force) = &in_force {
            tracing::info!(fence = %in_force.directive.fence(), "read the stored directive");
        }
        DirectiveStore {
            path,
            validator: judge,
            write_hook: witness,
            write_lock: Mutex::new(()),
            active: watch::Sender::new(in_force),
        }
    }

    /// Returns a watch on the directive in force. `None` while there has been none.
    pub fn watch(&self) -> watch::Receiver<Option<ActiveDirective>> {
        self.active.subscribe()
    }

    /// Returns the directive in force.
    pub fn active(&self) -> Option<ActiveDirective> {
        self.active.borrow().clone()
    }

    /// Accepts a directive if it is newer than the one in force: validates it, stores it, and only then publishes it.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// The directive is malformed, not newer, or could not be stored.
    pub fn put(&self, text: &[u8]) -> Result<AcceptedDirective, RejectedDirective> {
        let directive = Directive::from_json(text)?;
        (self.validator)(&directive).map_err(ReadError::from)?;
        // A writer that panicked has changed no visible state.
        let _writing = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.active();
        let (directive, text) = with_previous_share(before.as_ref(), directive, text);
        if let Some(old) = before.filter(|old| old.directive.fence() >= directive.fence()) {
            return check_repeat(&old.directive, &directive);
        }
        atomic_write::replace(&self.path, &text, &self.write_hook)
            .map_err(|error| RejectedDirective::Store { path: self.path.clone(), error })?;
        let fence = directive.fence();
        self.active.send_replace(Some(ActiveDirective { directive: Arc::new(directive), text }));
        tracing::info!(%fence, "accepted a directive");
        Ok(AcceptedDirective::New(fence))
    }
}

/// Adds the previous share to a directive that names none. Otherwise a restart would return the tenant to its
/// configured share.
fn with_previous_share(
    before: Option<&ActiveDirective>,
    mut directive: Directive,
    text: &[u8],
) -> (Directive, Arc<[u8]>) {
    let share = before.and_then(|before| before.directive.tenant.share_bytes);
    let (None, Some(share)) = (directive.tenant.share_bytes, share) else { return (directive, text.into()) };
    directive.tenant.share_bytes = Some(share);
    let mut value: Value = serde_json::from_slice(text).expect("a directive was read from it");
    value["tenant"]["share_bytes"] = share.into();
    (directive, value.to_string().into_bytes().into())
}

/// Accepts a repeated directive: its sender may not have received the first answer.
fn check_repeat(old: &Directive, offered: &Directive) -> Result<AcceptedDirective, RejectedDirective> {
    if old == offered {
        return Ok(AcceptedDirective::Unchanged(old.fence()));
    }
    Err(RejectedDirective::NotNewer { offered: offered.fence(), current: old.fence() })
}

#[derive(Debug, thiserror::Error)]
enum StoredDirectiveError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
}

fn read_stored(
    path: &std::path::Path,
    judge: &Validator,
) -> Result<Option<ActiveDirective>, StoredDirectiveError> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let directive = Directive::from_json(&text)?;
    judge(&directive).map_err(ReadError::from)?;
    Ok(Some(ActiveDirective { directive: Arc::new(directive), text: text.into() }))
}

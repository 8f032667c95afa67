//! The directive in force: taken only if newer, stored before anybody acts on it, read again at start.
//!
//! The file holds the directive as it was received, so that a later version of the sidecar reads in it what this one
//! does not know; a share that it does not name is that of the one before. Whoever acts watches [`Directives::watch`].

mod atomic_write;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::atomic_write::WriteStep;
use serde_json::Value;
use sluice_wire::directive::{Directive, Fence};
use sluice_wire::message::{Invalid, ReadError};
use tokio::sync::watch;

/// Looks at what only the tenant itself can judge, such as the name of the policy.
pub type Validator = Box<dyn Fn(&Directive) -> Result<(), Invalid> + Send + Sync>;

/// Sees every step of a write, and may fail it: how tests break a write at any point.
pub type WriteHook = Box<dyn Fn(WriteStep) -> std::io::Result<()> + Send + Sync>;

/// A directive and the text that it was read from.
#[derive(Clone, Debug)]
pub struct ActiveDirective {
    /// What it says.
    pub directive: Arc<Directive>,
    /// As it was received, with the share that was kept where it named none.
    pub text: Arc<[u8]>,
}

/// Keeper of the directive.
pub struct DirectiveStore {
    path: PathBuf,
    validator: Validator,
    write_hook: WriteHook,
    /// Held from the look at what is in force to its replacement. Who only looks does not wait for the disk.
    write_lock: Mutex<()>,
    active: watch::Sender<Option<ActiveDirective>>,
}

impl std::fmt::Debug for DirectiveStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directives").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What became of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedDirective {
    /// It is in force now.
    New(Fence),
    /// It was in force already.
    Unchanged(Fence),
}

/// Why a directive was not taken. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RejectedDirective {
    /// It is not as it must be.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The one in force is newer, or has the same pair and says something else.
    #[error("the directive {offered} is not newer than the one in force, {current}")]
    NotNewer {
        /// Pair of the one that was refused.
        offered: Fence,
        /// Pair of the one in force.
        current: Fence,
    },
    /// It could not be stored, so nobody acts on it. After a restart it may be in force.
    #[error("{}: {error}", path.display())]
    Store {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        error: std::io::Error,
    },
}

impl DirectiveStore {
    /// Reads what `path` holds. A file that cannot be read is an error in the log, and the sidecar starts with its
    /// configuration alone: a start that failed would only fail again.
    pub fn open(path: PathBuf, judge: Validator) -> Self {
        DirectiveStore::open_with_hook(path, judge, Box::new(|_| Ok(())))
    }

    /// [`open`](Directives::open), with somebody to see every step of a write.
    pub fn open_with_hook(path: PathBuf, judge: Validator, witness: WriteHook) -> Self {
        let in_force = match read_stored(&path, &judge) {
            Ok(in_force) => in_force,
            Err(why) => {
                tracing::error!(path = %path.display(), %why, "the stored directive cannot be used; going on with the configuration");
                None
            }
        };
        if let Some(in_force) = &in_force {
            tracing::info!(fence = %in_force.directive.fence(), "directive read");
        }
        DirectiveStore {
            path,
            validator: judge,
            write_hook: witness,
            write_lock: Mutex::new(()),
            active: watch::Sender::new(in_force),
        }
    }

    /// The directive in force, now and whenever it changes; `None` = there has been none.
    pub fn watch(&self) -> watch::Receiver<Option<ActiveDirective>> {
        self.active.subscribe()
    }

    /// The directive in force.
    pub fn active(&self) -> Option<ActiveDirective> {
        self.active.borrow().clone()
    }

    /// Takes a directive if it is newer than the one in force: checks it whole, stores it, and only then publishes it.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// It is malformed, not newer, or could not be stored.
    pub fn put(&self, text: &[u8]) -> Result<AcceptedDirective, RejectedDirective> {
        let directive = Directive::from_json(text)?;
        (self.validator)(&directive).map_err(ReadError::from)?;
        // A writer that panicked has changed nothing that is seen.
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
        tracing::info!(%fence, "directive taken");
        Ok(AcceptedDirective::New(fence))
    }
}

/// With the share of the directive before, where it names none: after a restart the tenant would go back to that of its start.
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

/// The same directive again is no error: its sender did not hear the first answer.
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

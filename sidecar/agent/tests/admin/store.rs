//! Tests of the directive store: the file's contents after every kind of failure.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};

use sluice_agent::directive::{
    AcceptedDirective, ActiveDirective, DirectiveStore, RejectedDirective, WriteStep,
};
use sluice_wire::directive::Fence;
use tokio::sync::watch;

use super::harness::directive;

fn text(epoch: u64, sequence: u64) -> Vec<u8> {
    directive(epoch, sequence, &[]).to_string().into_bytes()
}

fn fence(epoch: u64, sequence: u64) -> Fence {
    Fence { epoch, sequence }
}

fn open(path: &Path) -> DirectiveStore {
    DirectiveStore::open(path.to_owned(), Box::new(|_| Ok(())))
}

fn in_force(directives: &DirectiveStore) -> Option<Fence> {
    directives.active().map(|in_force| in_force.directive.fence())
}

#[test]
fn crash_leaves_old_or_new_directive() {
    for crash in [WriteStep::Written, WriteStep::Synced, WriteStep::Renamed, WriteStep::DirSynced] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("directive.json");
        open(&path).put(&text(1, 1)).unwrap();

        let acting: Arc<OnceLock<watch::Receiver<Option<ActiveDirective>>>> = Arc::default();
        let seen = acting.clone();
        let witness = move |step| {
            let published = seen.get().unwrap().borrow().as_ref().map(|seen| seen.directive.fence());
            assert_eq!(
                published,
                Some(fence(1, 1)),
                "no action follows from a directive that is not stored, {step:?}"
            );
            if step == crash { Err(std::io::Error::other("the power is gone")) } else { Ok(()) }
        };
        let directives =
            DirectiveStore::open_with_hook(path.clone(), Box::new(|_| Ok(())), Box::new(witness));
        acting.set(directives.watch()).unwrap();
        let error = directives.put(&text(1, 2)).unwrap_err();
        assert!(matches!(error, RejectedDirective::Store { .. }), "{error}");
        assert!(error.to_string().contains("directive.json"), "{error}");
        assert_eq!(in_force(&directives), Some(fence(1, 1)));

        let restarted = open(&path);
        let renamed = matches!(crash, WriteStep::Renamed | WriteStep::DirSynced);
        assert_eq!(in_force(&restarted), Some(fence(1, if renamed { 2 } else { 1 })), "{crash:?}");
        let again = restarted.put(&text(1, 2)).unwrap();
        let wanted = if renamed {
            AcceptedDirective::Unchanged(fence(1, 2))
        } else {
            AcceptedDirective::New(fence(1, 2))
        };
        assert_eq!(again, wanted, "its sender tries again");
    }
}

#[test]
fn invalid_file_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directive.json");
    let whole = text(9, 9);
    let newer = String::from_utf8(whole.clone()).unwrap().replace("\"version\":2", "\"version\":3");
    let cuts = (0..whole.len()).step_by(7).map(|length| whole[..length].to_vec());
    for bad in cuts.chain([newer.into_bytes(), b"\0\0\0\0".to_vec(), b"{\"version\": 1}".to_vec()]) {
        std::fs::write(&path, &bad).unwrap();
        let directives = open(&path);
        assert_eq!(in_force(&directives), None, "{:?}", String::from_utf8_lossy(&bad));
        assert_eq!(directives.put(&text(1, 1)).unwrap(), AcceptedDirective::New(fence(1, 1)));
        assert_eq!(in_force(&open(&path)), Some(fence(1, 1)));
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(in_force(&open(&path)), None, "a folder is no directive either");
}

#[test]
fn file_is_verbatim_and_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directive.json");
    open(&path).put(&text(1, 1)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), text(1, 1));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["directive.json"], "nothing else is left");
}

#[test]
fn missing_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone/directive.json");
    let directives = open(&path);
    assert!(matches!(directives.put(&text(1, 1)), Err(RejectedDirective::Store { .. })));
    assert_eq!(in_force(&directives), None);
}

#[test]
fn concurrent_writes_keep_newest() {
    const THREADS: u64 = 16;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directive.json");
    let (directives, start) = (Arc::new(open(&path)), Arc::new(Barrier::new(THREADS as usize)));
    let threads: Vec<_> = (1..=THREADS)
        .map(|sequence| {
            let (directives, start) = (directives.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                match directives.put(&text(1, sequence)) {
                    Ok(taken) => assert_eq!(taken, AcceptedDirective::New(fence(1, sequence))),
                    Err(RejectedDirective::NotNewer { offered, current }) => {
                        assert_eq!(offered, fence(1, sequence));
                        assert!(current > offered);
                    }
                    Err(other) => panic!("{other}"),
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(in_force(&directives), Some(fence(1, THREADS)));
    assert_eq!(in_force(&open(&path)), Some(fence(1, THREADS)));
}

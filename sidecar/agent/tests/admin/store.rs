//! The keeper of the directive: what is on the disk after every way to fail.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};

use sluice_agent::directive::{Directives, InForce, NotTaken, Step, Taken};
use sluice_wire::directive::Fence;
use tokio::sync::watch;

use super::world::directive;

fn text(epoch: u64, sequence: u64) -> Vec<u8> {
    directive(epoch, sequence, &[]).to_string().into_bytes()
}

fn fence(epoch: u64, sequence: u64) -> Fence {
    Fence { epoch, sequence }
}

fn open(path: &Path) -> Directives {
    Directives::open(path.to_owned(), Box::new(|_| Ok(())))
}

fn in_force(directives: &Directives) -> Option<Fence> {
    directives.in_force().map(|in_force| in_force.directive.fence())
}

#[test]
fn a_crash_at_any_step_leaves_the_old_directive_or_the_new_one_and_nobody_acts_before_it_is_settled() {
    for crash in [Step::Written, Step::Synced, Step::Renamed, Step::Settled] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("directive.json");
        open(&path).put(&text(1, 1)).unwrap();

        let acting: Arc<OnceLock<watch::Receiver<Option<InForce>>>> = Arc::default();
        let seen = acting.clone();
        let witness = move |step| {
            let published = seen.get().unwrap().borrow().as_ref().map(|seen| seen.directive.fence());
            assert_eq!(published, Some(fence(1, 1)), "nobody acts on what is not stored, {step:?}");
            if step == crash { Err(std::io::Error::other("the power is gone")) } else { Ok(()) }
        };
        let directives = Directives::open_watched(path.clone(), Box::new(|_| Ok(())), Box::new(witness));
        acting.set(directives.watch()).unwrap();
        let error = directives.put(&text(1, 2)).unwrap_err();
        assert!(matches!(error, NotTaken::Store { .. }), "{error}");
        assert!(error.to_string().contains("directive.json"), "{error}");
        assert_eq!(in_force(&directives), Some(fence(1, 1)));

        let restarted = open(&path);
        let renamed = matches!(crash, Step::Renamed | Step::Settled);
        assert_eq!(in_force(&restarted), Some(fence(1, if renamed { 2 } else { 1 })), "{crash:?}");
        let again = restarted.put(&text(1, 2)).unwrap();
        let wanted = if renamed { Taken::Same(fence(1, 2)) } else { Taken::New(fence(1, 2)) };
        assert_eq!(again, wanted, "its sender tries again");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_passed_over_and_replaced_by_the_next_directive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directive.json");
    let whole = text(9, 9);
    let newer = String::from_utf8(whole.clone()).unwrap().replace("\"version\":1", "\"version\":2");
    let cuts = (0..whole.len()).step_by(7).map(|length| whole[..length].to_vec());
    for bad in cuts.chain([newer.into_bytes(), b"\0\0\0\0".to_vec(), b"{\"version\": 1}".to_vec()]) {
        std::fs::write(&path, &bad).unwrap();
        let directives = open(&path);
        assert_eq!(in_force(&directives), None, "{:?}", String::from_utf8_lossy(&bad));
        assert_eq!(directives.put(&text(1, 1)).unwrap(), Taken::New(fence(1, 1)));
        assert_eq!(in_force(&open(&path)), Some(fence(1, 1)));
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(in_force(&open(&path)), None, "a folder is no directive either");
}

#[test]
fn the_file_is_what_was_received_and_for_this_user_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directive.json");
    open(&path).put(&text(1, 1)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), text(1, 1));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["directive.json"], "nothing else is left");
}

#[test]
fn a_folder_that_is_gone_is_an_error_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone/directive.json");
    let directives = open(&path);
    assert!(matches!(directives.put(&text(1, 1)), Err(NotTaken::Store { .. })));
    assert_eq!(in_force(&directives), None);
}

#[test]
fn of_many_at_once_the_newest_stays_and_none_goes_back() {
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
                    Ok(taken) => assert_eq!(taken, Taken::New(fence(1, sequence))),
                    Err(NotTaken::NotNewer { offered, current }) => {
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

//! `.ci/keep-times`: what a clone's files look like to cargo.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// Age of all build outputs.
const AGO: Duration = Duration::from_secs(3600);

/// A repository with three files and the script, and a folder that is built into.
struct Checkout {
    home: tempfile::TempDir,
    name: &'static str,
}

impl Checkout {
    fn new() -> Checkout {
        let checkout = Checkout { home: tempfile::tempdir().unwrap(), name: "tree" };
        std::fs::create_dir_all(checkout.file(".ci")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/keep-times");
        std::fs::copy(script, checkout.file(".ci/keep-times")).unwrap();
        ["same", "changed", "with a blank"].iter().for_each(|name| checkout.write(name, name));
        checkout.git(&["init", "--quiet"]);
        checkout.git(&["add", "."]);
        checkout
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(self.name).join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let output = Command::new("git").args(arguments).current_dir(self.file("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn keep_times(&self) -> Output {
        let output =
            Command::new(self.file(".ci/keep-times")).arg(self.home.path().join("built")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// All was built an hour ago.
    fn age(&self) {
        let sources = self.home.path().join("built/sources");
        let ago = SystemTime::now() - AGO;
        let time = ago.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string();
        let text = std::fs::read_to_string(&sources).unwrap();
        let (folder, lines) = text.split_once('\n').unwrap();
        let aged = lines.lines().fold(format!("{folder}\n"), |aged, line| {
            let [content, _, path] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().unwrap();
            aged + &format!("{content}\t{time}\t{path}\n")
        });
        std::fs::write(sources, aged).unwrap();
    }

    fn is_new(&self, name: &str) -> bool {
        let modified = std::fs::metadata(self.file(name)).unwrap().modified().unwrap();
        modified.elapsed().map_or(true, |age| age < AGO / 2)
    }
}

#[test]
fn a_file_of_the_same_content_is_as_old_as_when_it_was_built_and_all_others_are_new() {
    let checkout = Checkout::new();
    checkout.keep_times();
    assert!(["same", "changed", "with a blank"].iter().all(|name| checkout.is_new(name)));
    checkout.age();
    checkout.write("changed", "another text");
    checkout.write("added", "same");
    checkout.git(&["add", "added"]);
    checkout.keep_times();
    assert!(!checkout.is_new("same") && !checkout.is_new("with a blank"));
    assert!(checkout.is_new("changed"), "it would never be built again");
    assert!(checkout.is_new("added"), "whatever another file has in it");

    // What was built last is the other text, so the first one is no less new.
    checkout.age();
    checkout.write("changed", "changed");
    checkout.keep_times();
    assert!(checkout.is_new("changed") && !checkout.is_new("same"));

    // A file that was away in between was not built then.
    checkout.git(&["rm", "--quiet", "-f", "added"]);
    checkout.keep_times();
    checkout.age();
    checkout.write("added", "same");
    checkout.git(&["add", "added"]);
    checkout.keep_times();
    assert!(checkout.is_new("added") && !checkout.is_new("same"));
}

#[test]
fn in_another_folder_everything_is_new_for_binaries_know_theirs() {
    let mut checkout = Checkout::new();
    checkout.keep_times();
    checkout.age();
    checkout.keep_times();
    assert!(!checkout.is_new("same"));
    std::fs::rename(checkout.file(""), checkout.home.path().join("moved")).unwrap();
    checkout.name = "moved";
    checkout.keep_times();
    assert!(["same", "changed", "with a blank"].iter().all(|name| checkout.is_new(name)));
    checkout.age();
    checkout.keep_times();
    assert!(!checkout.is_new("same"), "it is known from now on");
}

#[test]
fn missing_file_is_reported_and_nothing_is_touched() {
    let checkout = Checkout::new();
    checkout.keep_times();
    checkout.age();
    std::fs::remove_file(checkout.file("changed")).unwrap();
    let said = checkout.keep_times();
    assert!(String::from_utf8_lossy(&said.stdout).contains("no times are kept"));
    assert!(checkout.is_new("same"));
    checkout.write("changed", "changed");
    checkout.keep_times();
    assert!(
        checkout.is_new("same") && checkout.is_new("changed"),
        "it is not known what was built in between"
    );
}

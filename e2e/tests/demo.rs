//! `sluice demo`: its output, its page, its end, and its leftovers.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::http::CLIENT;
use crate::support::model::bin_folder;
use crate::support::{TestEnv, eventually, processes};

/// Limit for the whole demo: bursts under two policies take longer than any other wait.
const LIMIT: Duration = Duration::from_secs(300);

/// A running `sluice demo`.
struct Demo<'a> {
    child: Child,
    world: &'a TestEnv,
}

fn command(world: &TestEnv, arguments: &[&str]) -> Command {
    let mut command = world.sluice(&bin_folder());
    // Folder of its generated model, which is its only leftover.
    command.env("XDG_CACHE_HOME", world.path("cache")).args(["demo", "--port", "0"]).args(arguments);
    command
}

impl<'a> Demo<'a> {
    fn start(world: &'a TestEnv, arguments: &[&str]) -> Demo<'a> {
        let mut command = command(world, arguments);
        world.record(&mut command);
        Demo { child: command.spawn().unwrap(), world }
    }

    /// Waits for a complete line that begins with `start`, and returns the rest of it.
    async fn has_printed(&mut self, start: &str) -> String {
        let line = eventually(start, async || {
            let stdout = self.world.stdout();
            let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
            let found = whole.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
            if found.is_none()
                && let Some(status) = self.child.try_wait().unwrap()
            {
                panic!("it ended ({status}) and has not said `{start}`\n{stdout}\n{}", self.world.stderr());
            }
            found
        });
        line.await
    }

    /// Waits for the end, checks for leftovers, and returns the exit status.
    async fn ended(mut self) -> Option<i32> {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "no end within {LIMIT:?}\n{}", self.world.stdout());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        self.world.assert_no_leftovers().await;
        status.code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_demo_shows_its_tenants_and_ends_with_a_table_and_identical_tokens() {
    let world = TestEnv::new();
    let mut demo = Demo::start(&world, &["--quick"]);
    let page = demo.has_printed("page ").await;
    let tenants = eventually("the page's first sample of three tenants", async || {
        let sent: Value = CLIENT.get(format!("{page}v1/page")).send().await.ok()?.json().await.ok()?;
        let gpu = sent.as_array()?.iter().find(|message| message[0] == "gpu")?;
        let tenants = gpu[1]["tenants"].as_array()?.iter();
        let answering = tenants.filter(|one| one["answers"] == true);
        let names: Vec<_> = answering.map(|one| one["title"].as_str().unwrap().to_owned()).collect();
        (names.len() == 3).then_some(names)
    });
    assert_eq!(tenants.await, ["sluice-demo/chat", "sluice-demo/code", "sluice-demo/summary"]);
    let curl = demo.has_printed("  ask a tenant: ").await;
    let asked = Command::new("sh").args(["-c", &curl]).output().unwrap();
    let answer: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|_| panic!("{curl}: {asked:?}"));
    assert!(answer["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{answer}");
    let code = demo.ended().await;
    let stdout = world.stdout();
    assert_eq!(code, Some(0), "{stdout}\n{}", world.stderr());
    assert!(stdout.starts_with("page http://127.0.0.1:"), "{stdout}");
    let row = |name: &str| -> Vec<f64> {
        let row = stdout
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name}: {stdout}"));
        row.split_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    for name in [
        "output tokens per second",
        "P99 time to the first token, ms",
        "P99 time between tokens as delivered, ms",
    ] {
        let figures = row(name);
        assert!(figures.len() == 2 && figures.iter().all(|figure| *figure > 0.0), "{name}: {stdout}");
    }
    // Fixed partitions lend nothing on any machine. A burst that exceeds its share borrows from idle tenants.
    let lent = row("most layers lent at once");
    assert!(lent[0] == 0.0 && lent[1] > 0.0, "{stdout}");
    let lines: Vec<_> = stdout.lines().collect();
    let same = lines.iter().position(|line| line.starts_with("tokens identical")).unwrap();
    assert!(lines[same].ends_with(" yes"), "{stdout}");
    assert_eq!(
        lines[same + 1..].len(),
        7,
        "three lines of words and the next step, each after a blank line\n{stdout}"
    );
    assert!(
        lines[same + 4].starts_with("All ") && lines[same + 4].contains("lending changed no token"),
        "{stdout}"
    );
    let next =
        lines[same + 6].strip_prefix("next      ").and_then(|next| next.strip_suffix(" run MODEL --chat"));
    let program = next.unwrap_or_else(|| panic!("{stdout}"));
    let version = Command::new(program).arg("--version").output().unwrap();
    assert!(version.stdout.starts_with(b"sluice "), "{program}: {version:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_in_the_middle_ends_everything_at_once() {
    let world = TestEnv::new();
    let mut demo = Demo::start(&world, &["--no-page"]);
    demo.has_printed("  round  1: ").await;
    let sidecars = world.processes().into_iter().filter(|pid| processes::name(*pid) == "sluice-sidecar");
    assert_eq!(sidecars.count(), 3);
    assert!(!world.stdout().contains("page "), "{}", world.stdout());
    processes::signal(demo.child.id(), Signal::INT);
    assert_eq!(demo.ended().await, Some(1));
    let stderr = world.stderr();
    assert!(stderr.contains("sluice: interrupted: ending all tenants\n"), "{stderr}");
    assert!(stderr.contains("sluice: ended by a signal before the demo was complete"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_model_folder_is_reported_before_start() {
    let world = TestEnv::new();
    let output = command(&world, &["--model", "/nowhere/model"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(78), &b""[..]));
    let said = "sluice: --model /nowhere/model: the folder has no config.json; name a model folder in \
                Hugging Face layout\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    world.assert_no_leftovers().await;
}

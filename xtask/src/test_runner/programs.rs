//! Test programs: built, then run, one of them in parallel with others.
//!
//! `cargo test` runs one program after another. The one of the node spends most of its time waiting for kubelets
//! and probes, so it runs while the others are built, and in parallel with tests that check no times. Tests that check
//! times run alone after it.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use cargo_metadata::Artifact;
use cargo_metadata::camino::Utf8PathBuf;
use tempfile::NamedTempFile;

use super::times::Times;
use crate::process;

/// Package with the end-to-end tests.
const END_TO_END: &str = "sluice-e2e";
/// Its tests on a node.
const NODE: &str = "node";
/// Its tests on an API server, which check no times.
const CLUSTER: &str = "cluster";
/// Packages whose other tests check times, if [`TIMED_MODULES`] does not name their modules.
const BY_THE_CLOCK: [&str; 3] = [END_TO_END, "sluice-agent", "sluice-memory"];
/// Programs of which the tests of these modules alone check times. Their other tests check none.
const TIMED_MODULES: [(&str, &str, &[&str]); 2] = [
    (
        END_TO_END,
        "processes",
        &["drain::", "engine_faults::", "hangs::", "peers::", "sidecar_faults::", "soak::"],
    ),
    ("sluice-agent", "system", &["huge_prompts::", "kills::", "slow_link::"]),
];
/// Options with which a test program prints the time of each test.
const TIMED: [&str; 3] = ["-Z", "unstable-options", "--report-time"];
/// Time after the end of a program in which its output must end: a process that it left behind would keep it open.
const OUTPUT_GRACE: Duration = Duration::from_secs(30);
/// How far others give way to the node's tests.
const NICE: i32 = 10;

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its package.
    pub package: String,
    /// The folder of that, in which it runs.
    pub folder: Utf8PathBuf,
    /// Its target.
    pub target: String,
    /// Where it is.
    pub path: Utf8PathBuf,
    /// Modules of the tests that run, or that do not; empty = all run.
    pub filter: Vec<String>,
}

impl Program {
    fn of(artifact: Artifact) -> Option<Program> {
        let path = artifact.executable.filter(|_| artifact.profile.test)?;
        let folder = artifact.manifest_path.parent()?.to_owned();
        let package = package(&artifact.package_id.repr).to_owned();
        Some(Program { package, folder, target: artifact.target.name, path, filter: Vec::new() })
    }

    fn is_of_node(&self) -> bool {
        self.package == END_TO_END && self.target == NODE
    }

    fn looks_at_the_clock(&self) -> bool {
        let on_api_server = self.package == END_TO_END && self.target == CLUSTER;
        BY_THE_CLOCK.contains(&self.package.as_str()) && !on_api_server
    }

    /// The parts to run alone and in parallel with the node's tests.
    fn parts(self) -> [Option<Program>; 2] {
        if !self.looks_at_the_clock() {
            return [None, Some(self)];
        }
        let named = |(package, target, _): &&(&str, &str, _)| {
            (self.package.as_str(), self.target.as_str()) == (*package, *target)
        };
        let Some((_, _, modules)) = TIMED_MODULES.iter().find(named) else { return [Some(self), None] };
        let timed = modules.iter().map(|module| (*module).to_owned()).collect();
        let others = modules.iter().flat_map(|module| ["--skip".to_owned(), (*module).to_owned()]).collect();
        [timed, others].map(|filter| Some(Program { filter, ..self.clone() }))
    }

    /// The command that runs it, as `cargo test` would.
    fn command(&self, environment: &Command) -> Command {
        let mut command = Command::new(&self.path);
        for (name, value) in environment.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        // Each test prints how long it took. The option is unstable, and stable test programs take it with this variable.
        command.args(TIMED).args(&self.filter).env("RUSTC_BOOTSTRAP", "1");
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    fn title(&self) -> String {
        [&[self.name()], &self.filter[..]].concat().join(" ")
    }
}

/// The name in an id like `path+file:///a/b#name@1.0.0`, or `path+file:///a/name#1.0.0`.
fn package(id: &str) -> &str {
    let (source, version) = id.rsplit_once('#').unwrap_or(("", id));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => source.rsplit('/').next().unwrap_or(source),
    }
}

/// Builds programs of tests; `None` = they do not compile.
fn built(mut build: Command) -> Result<Option<Vec<Program>>> {
    build.arg("--no-run");
    let Some(artifacts) = process::artifacts(build)? else { return Ok(None) };
    let mut programs: Vec<Program> = artifacts.into_iter().filter_map(Program::of).collect();
    programs.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(Some(programs))
}

/// Builds and runs all tests; `tests` is how cargo does. `true` = all passed; those that did not are named at the end.
pub fn all_pass(tests: impl Fn() -> Command + Sync) -> Result<bool> {
    let mut node = tests();
    node.args(["--test", NODE]);
    let Some(node) = built(node)? else { return Ok(false) };
    let node = node.iter().find(|program| program.is_of_node());
    let node = node.with_context(|| format!("{END_TO_END} has no tests `{NODE}`"))?;
    let background = BackgroundProgram::start(node, &tests())?;
    let Some((mut failed, mut times, exclusive)) = run_with_node_tests(&tests)? else { return Ok(false) };
    failed.extend(background.end(&mut times)?);
    failed.extend(failing(&exclusive, &tests(), &mut times)?);
    report(&failed, &times);
    Ok(failed.is_empty() && examples_pass(tests())?)
}

/// What the quick tests are of: the workspace without the packages whose tests start engines, browsers or processes of
/// CUDA, so that dependencies have the features that they have in all other builds. Of its integration tests those of
/// crates (`main`, `modules`) and those that need an API server alone (`cluster`). The others are not compiled.
#[rustfmt::skip]
const QUICK: [&str; 15] = [
    "--workspace", "--exclude", "sluice-kernels", "--exclude", "sluice-probe", "--exclude", "sluice-page", "--lib",
    "--bins", "--test", "main", "--test", "modules", "--test", "cluster",
];

/// Builds and runs the tests that take minutes together; `tests` makes `cargo test` of the targets that it is given.
pub fn quick_pass(tests: impl Fn(&[&str]) -> Command) -> Result<bool> {
    let Some(programs) = built(tests(&QUICK))? else { return Ok(false) };
    let mut times = Times::default();
    let failed = failing(&programs, &tests(&QUICK), &mut times)?;
    report(&failed, &times);
    Ok(failed.is_empty())
}

/// Names what failed and the tests that took longest.
fn report(failed: &[String], times: &Times) {
    print!("{times}");
    failed.iter().for_each(|title| println!("FAILED: {title}"));
}

/// Titles of programs that failed, times of tests, and the programs that are to run alone.
type Run = (Vec<String>, Times, Vec<Program>);

/// Builds the other programs and runs what checks no times, while the node's tests run.
fn run_with_node_tests(tests: &(impl Fn() -> Command + Sync)) -> Result<Option<Run>> {
    let work = || {
        // The nice value of this thread, which its child processes inherit.
        rustix::process::nice(NICE).context("nice")?;
        let Some(programs) = built(tests())? else { return Ok(None) };
        let others = programs.into_iter().filter(|program| !program.is_of_node());
        let (mut exclusive, mut parallel) = (Vec::new(), Vec::new());
        for [alone, other] in others.map(Program::parts) {
            exclusive.extend(alone);
            parallel.extend(other);
        }
        anyhow::ensure!(!parallel.is_empty() && !exclusive.is_empty(), "no crate has tests");
        let mut times = Times::default();
        let failed = failing(&parallel, &tests(), &mut times)?;
        Ok(Some((failed, times, exclusive)))
    };
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs one after another; titles of those that failed.
fn failing(programs: &[Program], environment: &Command, times: &mut Times) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for program in programs {
        println!("$ {}", program.title());
        let mut child = program
            .command(environment)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.path.clone())?;
        let printed = child.stdout.take().context("the program has no output")?;
        let (name, (sender, copied)) = (program.name(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let mut times = Times::default();
            let copied = times.copy(&name, BufReader::new(printed)).map(|()| times);
            // Nothing reads the result once the time below is over.
            let _ = sender.send(copied);
        });
        let status = child.wait()?;
        let copied = copied.recv_timeout(OUTPUT_GRACE);
        times.extend(
            copied.with_context(|| format!("{} did not end one of its processes", program.title()))??,
        );
        failed.extend((!status.success()).then(|| program.title()));
    }
    Ok(failed)
}

/// A program that runs in parallel with others. Its output is written to a file and shown after its end. Dropping
/// this value ends it.
struct BackgroundProgram {
    title: String,
    child: Child,
    printed: NamedTempFile,
}

impl BackgroundProgram {
    fn start(program: &Program, environment: &Command) -> Result<BackgroundProgram> {
        let printed =
            NamedTempFile::with_prefix("sluice-tests-").context("a file for the output of a test")?;
        println!("$ {}, in parallel with others; its output: {}", program.title(), printed.path().display());
        let mut command = program.command(environment);
        command.stdout(printed.as_file().try_clone()?).stderr(printed.as_file().try_clone()?);
        let child = command.spawn().with_context(|| program.path.clone())?;
        Ok(BackgroundProgram { title: program.title(), child, printed })
    }

    /// Its title, if it failed.
    fn end(mut self, times: &mut Times) -> Result<Option<String>> {
        let status = self.child.wait()?;
        println!("$ {}", self.title);
        times.copy(&self.title, BufReader::new(self.printed.reopen()?))?;
        Ok((!status.success()).then(|| self.title.clone()))
    }
}

impl Drop for BackgroundProgram {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the examples in comments.
fn examples_pass(mut command: Command) -> Result<bool> {
    command.arg("--doc");
    process::passes(command)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_package_is_named_by_its_id() {
        assert_eq!(package("path+file:///a/operator/plan#sluice-plan@0.1.0"), "sluice-plan");
        assert_eq!(package("path+file:///a/xtask#0.1.0"), "xtask");
    }

    fn program(package: &str, target: &str, path: &str) -> Program {
        let folder = Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Program {
            package: package.into(),
            folder,
            target: target.into(),
            path: path.into(),
            filter: Vec::new(),
        }
    }

    #[test]
    fn failing_program_is_reported_when_run_in_parallel() {
        let environment = Command::new("cargo");
        let (good, bad) = (program("a", "good", "/bin/true"), program("a", "bad", "/bin/false"));
        let programs = [good.clone(), bad.clone(), good.clone()];
        let failed = failing(&programs, &environment, &mut Times::default()).expect("they start");
        assert_eq!(failed, ["a bad"]);
        let beside = |program: &Program| {
            BackgroundProgram::start(program, &environment)
                .and_then(|program| program.end(&mut Times::default()))
        };
        assert_eq!(beside(&good).expect("it starts"), None);
        assert_eq!(beside(&bad).expect("it starts").as_deref(), Some("a bad"));
    }

    #[test]
    fn background_program_ends_with_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("sleeps");
        std::fs::write(&script, "#!/bin/sh\nexec sleep 600\n").expect("written");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("allowed");
        let sleeps = program("a", "sleeps", script.to_str().expect("UTF-8"));
        let (began, beside) = (Instant::now(), BackgroundProgram::start(&sleeps, &Command::new("cargo")));
        drop(beside.expect("it starts"));
        assert!(began.elapsed() < Duration::from_secs(300), "it was ended");
    }

    #[test]
    fn timing_and_node_programs_are_known() {
        assert!(program(END_TO_END, NODE, "").is_of_node());
        assert!(program(END_TO_END, "processes", "").looks_at_the_clock());
        assert!(program("sluice-memory", "main", "").looks_at_the_clock());
        assert!(!program(END_TO_END, "cluster", "").looks_at_the_clock());
        assert!(!program("sluice-plan", "main", "").looks_at_the_clock());
    }

    #[test]
    fn each_test_of_a_program_runs_alone_or_in_parallel() {
        let filters =
            |package, target| program(package, target, "").parts().map(|part| part.map(|part| part.filter));
        assert_eq!(filters("sluice-plan", "main"), [None, Some(vec![])]);
        assert_eq!(filters("sluice-memory", "main"), [Some(vec![]), None]);
        let [Some(timed), Some(others)] = filters(END_TO_END, "processes") else { panic!("it has both") };
        assert!(timed.contains(&"hangs::".to_owned()) && !timed.contains(&"--skip".to_owned()));
        let skipped: Vec<_> = others.chunks(2).map(|pair| (pair[0].as_str(), pair[1].clone())).collect();
        assert_eq!(skipped, timed.iter().map(|module| ("--skip", module.clone())).collect::<Vec<_>>());
    }

    #[test]
    fn modules_that_check_times_exist() {
        let root = Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        for (package, target, modules) in TIMED_MODULES {
            let folder = if package == END_TO_END { "e2e/tests" } else { "sidecar/agent/tests/system" };
            for module in modules {
                let file = root.join(folder).join(module.trim_end_matches(':')).with_extension("rs");
                assert!(file.is_file(), "{package} {target}: {file}");
            }
        }
    }
}

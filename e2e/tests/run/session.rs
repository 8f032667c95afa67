//! `sluice run` under way in a world, and commands that end by themselves.

use std::process::{Child, Command};

use rustix::process::Signal;

use crate::support::model::bin_folder;
use crate::support::{TestEnv, eventually, processes};

/// `sluice run` under way.
#[derive(Debug)]
pub struct Session<'a> {
    child: Child,
    world: &'a TestEnv,
}

impl<'a> Session<'a> {
    /// Starts it over `models` with more `arguments`, at a free port and with a cache in the world.
    pub fn start(world: &'a TestEnv, models: &[&str], arguments: &[&str]) -> Session<'a> {
        let mut command = command(world);
        world.record(&mut command);
        command.arg("run").args(models).args(["--port", "0", "--threads", "1"]).args(arguments);
        Session { child: command.spawn().unwrap(), world }
    }

    /// Waits until it serves; base URL of the API, with `/v1`.
    pub async fn ready(&mut self) -> String {
        let url = eventually("the models are ready", async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("`sluice run` ended ({status}) before it was ready");
            }
            let stdout = self.world.stdout();
            let whole = stdout.contains("\nstop    Ctrl-C\n");
            stdout.lines().find_map(|line| line.strip_prefix("ready   ")).filter(|_| whole).map(str::to_owned)
        });
        url.await
    }

    /// Sends it a signal that ends it; it must end with 0 and leave nothing but the cache.
    pub async fn end(mut self, signal: Signal) {
        processes::signal(self.child.id(), signal);
        let status = eventually("`sluice run` ends", async || self.child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0), "{}", self.world.stderr());
        self.world.assert_no_leftovers().await;
    }
}

/// `sluice` with a cache in the world.
pub fn command(world: &TestEnv) -> Command {
    let mut command = world.sluice(&bin_folder());
    command.env("SLUICE_MODELS", world.path("cache")).env_remove("HF_ENDPOINT").env_remove("HF_TOKEN");
    command
}

/// Standard output of a command that succeeds, else its standard error.
pub fn sluice(world: &TestEnv, arguments: &[&str]) -> Result<String, String> {
    let output = command(world).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// As [`sluice`], of `sluice models`.
pub fn models(world: &TestEnv, arguments: &[&str]) -> Result<String, String> {
    let mut all = vec!["models"];
    all.extend(arguments);
    sluice(world, &all)
}

//! `sluice top` and `sluice up` on a pseudo-terminal of the kernel, with keys and signals.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{TestEnv, text, wait_for};
use crate::top::{admin, tenant};
use crate::up::YAML;

/// Timeout until the program has drawn or ended.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Sequence that leaves the live screen.
const LEAVE_ALT_SCREEN: &str = "\u{1b}[?1049l";

/// The program on a terminal of 100 columns and 30 lines.
struct PtyProcess {
    child: Child,
    keys: File,
    user_side: OwnedFd,
    initial_termios: Termios,
    output: Receiver<Vec<u8>>,
    screen_text: String,
}

impl PtyProcess {
    fn start(world: &TestEnv, args: &[&str]) -> PtyProcess {
        PtyProcess::run(world.sluice(args))
    }

    fn run(mut command: Command) -> PtyProcess {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&name).unwrap();
        let user: OwnedFd = open().into();
        tcsetwinsize(&user, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&user).unwrap();
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let child = command.stdin(open()).stdout(open()).stderr(Stdio::from(open())).spawn().unwrap();
        let keys = File::from(controller);
        let mut reader = keys.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        PtyProcess {
            child,
            keys,
            user_side: user,
            initial_termios: before,
            output,
            screen_text: String::new(),
        }
    }

    /// Waits until `text` is on the screen. Unchanged cells are not drawn again, so if the text does not
    /// appear, the terminal is resized, which redraws the whole screen. The resize follows the keys, because
    /// crossterm delays a key that arrives together with a resize.
    fn wait_for_text(&mut self, text: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        let wanted = strip_escapes(text);
        self.screen_text.clear();
        for columns in [101, 100].into_iter().cycle() {
            let anew = Instant::now() + Duration::from_secs(1);
            while let Ok(bytes) = self.output.recv_timeout(anew.saturating_duration_since(Instant::now())) {
                self.screen_text += &String::from_utf8_lossy(&bytes);
                if strip_escapes(&self.screen_text).contains(&wanted) {
                    return;
                }
            }
            assert!(Instant::now() < end, "`{text}` was not drawn: {}", strip_escapes(&self.screen_text));
            self.resize(columns);
            self.screen_text.clear();
        }
    }

    /// Waits until `text`, which is written once and not drawn again, has been written since the start.
    fn wait_for_output(&mut self, text: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        let wanted = strip_escapes(text);
        while !strip_escapes(&self.screen_text).contains(&wanted) {
            let bytes = self.output.recv_timeout(end.saturating_duration_since(Instant::now()));
            let bytes = bytes
                .unwrap_or_else(|_| panic!("`{text}` was not written: {}", strip_escapes(&self.screen_text)));
            self.screen_text += &String::from_utf8_lossy(&bytes);
        }
    }

    fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.user_side, size).unwrap();
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the exit. Returns the status, and whether the terminal is restored.
    fn end(mut self) -> (ExitStatus, bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.screen_text.contains(LEAVE_ALT_SCREEN) {
            let left = end.saturating_duration_since(Instant::now());
            let bytes = self.output.recv_timeout(left).expect("the screen is given back");
            self.screen_text += &String::from_utf8_lossy(&bytes);
        }
        let status = self.child.wait().unwrap();
        let after = tcgetattr(&self.user_side).unwrap();
        let modes = |termios: &Termios| termios.local_modes & (LocalModes::ICANON | LocalModes::ECHO);
        (status, modes(&after) == modes(&self.initial_termios))
    }
}

impl Drop for PtyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the output without spaces and without the sequences that move the cursor or set colours.
fn strip_escapes(written: &str) -> String {
    let mut text = String::new();
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.next();
            characters.by_ref().find(|end| end.is_ascii_alphabetic());
        } else if !character.is_whitespace() {
            text.push(character);
        }
    }
    text
}

#[test]
fn keys_open_the_help_the_order_and_a_tenants_page_and_q_gives_the_terminal_back() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    let mut top = PtyProcess::start(&world, &["top"]);
    top.wait_for_text("■story");
    top.press("?");
    top.wait_for_text("sorts by SLO, the worst first");
    top.press("?");
    top.wait_for_text("Enter page");
    top.press("t");
    top.wait_for_text("TOK/S▼");
    top.press("\r");
    top.wait_for_text("Esc back");
    top.press("\u{1b}");
    top.wait_for_text("Enter page");
    top.press("q");
    let (status, restored) = top.end();
    assert!(status.success() && restored, "{status}, restored: {restored}");
}

#[test]
fn ctrl_c_and_signals_give_the_terminal_back() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    for signal in [None, Some(Signal::INT), Some(Signal::TERM), Some(Signal::HUP)] {
        let mut top = PtyProcess::start(&world, &["top"]);
        top.wait_for_text("■story");
        match signal {
            None => top.press("\u{3}"),
            Some(signal) => kill_process(Pid::from_child(&top.child), signal).unwrap(),
        }
        let (status, restored) = top.end();
        assert!(status.success() && restored, "{signal:?}: {status}, restored: {restored}");
    }
}

#[test]
fn up_on_a_terminal_shows_warnings_of_its_sidecars_unless_a_variable_asks_for_more() {
    for (variable, level, expected) in
        [(None, "", "warn"), (Some("RUST_LOG"), "error", "error"), (Some("SLUICE_LOG"), "debug", "debug")]
    {
        let world = TestEnv::new();
        world.write("local.yaml", YAML);
        world.script("sluice-engine", "exit 1\n");
        world.sidecar("echo \"$SLUICE_LOG\" > received.tmp && mv received.tmp received\nexec sleep 600\n");
        let mut command = world.sluice(&["up", "-f", "local.yaml", "--port", "0"]);
        command.envs(variable.map(|variable| (variable, level)));
        let mut up = PtyProcess::run(command);
        up.wait_for_output("sluice: loading default/story; Ctrl-C ends");
        let level_seen = wait_for("the sidecar starts", || {
            Some(text(&world.path("received"))).filter(|level_seen| !level_seen.is_empty())
        });
        assert_eq!(level_seen.trim_end(), expected, "{variable:?}");
        kill_process(Pid::from_child(&up.child), Signal::TERM).unwrap();
        assert_eq!(up.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_error_of_the_command_line_breaks_its_lines_between_words() {
    let world = TestEnv::new();
    let mut run = PtyProcess::start(&world, &["run", "model", "--policy", "none"]);
    run.wait_for_output("For more information, try '--help'.");
    assert_eq!(run.child.wait().unwrap().code(), Some(2), "{}", run.screen_text);
    let broken = "unknown value `none`, expected one of\r\n`Unified`, `Recompute`, ";
    assert!(run.screen_text.contains(broken), "{}", run.screen_text);
}

//! `sluice top` and `sluice up` on a terminal: a real one of the kernel, with keys and signals.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{World, eventually, text};
use crate::top::{admin, tenant};
use crate::up::YAML;

/// By when the program has drawn or ended.
const LIMIT: Duration = Duration::from_secs(30);
/// What a terminal is sent when the screen is given back.
const LEAVES: &str = "\u{1b}[?1049l";

/// The program on a terminal of 100 columns and 30 lines.
struct OnTerminal {
    child: Child,
    keys: File,
    user: OwnedFd,
    before: Termios,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl OnTerminal {
    fn start(world: &World, args: &[&str]) -> OnTerminal {
        OnTerminal::run(world.sluice(args))
    }

    fn run(mut command: Command) -> OnTerminal {
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
        OnTerminal { child, keys, user, before, output, seen: String::new() }
    }

    /// Waits until `text` is on the screen. What stays the same is not drawn again, so where the text does not come, the
    /// terminal changes its size, and the screen is drawn whole. That comes later than the keys: crossterm delays a key that
    /// arrives together with a change of size.
    fn until(&mut self, text: &str) {
        let end = Instant::now() + LIMIT;
        let wanted = plain(text);
        self.seen.clear();
        for columns in [101, 100].into_iter().cycle() {
            let anew = Instant::now() + Duration::from_secs(1);
            while let Ok(bytes) = self.output.recv_timeout(anew.saturating_duration_since(Instant::now())) {
                self.seen += &String::from_utf8_lossy(&bytes);
                if plain(&self.seen).contains(&wanted) {
                    return;
                }
            }
            assert!(Instant::now() < end, "`{text}` was not drawn: {}", plain(&self.seen));
            self.resize(columns);
            self.seen.clear();
        }
    }

    /// Waits until `text`, which is written once and not drawn again, has been written since the start.
    fn until_written(&mut self, text: &str) {
        let end = Instant::now() + LIMIT;
        let wanted = plain(text);
        while !plain(&self.seen).contains(&wanted) {
            let bytes = self.output.recv_timeout(end.saturating_duration_since(Instant::now()));
            let bytes = bytes.unwrap_or_else(|_| panic!("`{text}` was not written: {}", plain(&self.seen)));
            self.seen += &String::from_utf8_lossy(&bytes);
        }
    }

    fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.user, size).unwrap();
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for its end: how it ended, and whether the terminal is as it was.
    fn end(mut self) -> (ExitStatus, bool) {
        let end = Instant::now() + LIMIT;
        while !self.seen.contains(LEAVES) {
            let left = end.saturating_duration_since(Instant::now());
            let bytes = self.output.recv_timeout(left).expect("the screen is given back");
            self.seen += &String::from_utf8_lossy(&bytes);
        }
        let status = self.child.wait().unwrap();
        let after = tcgetattr(&self.user).unwrap();
        let modes = |termios: &Termios| termios.local_modes & (LocalModes::ICANON | LocalModes::ECHO);
        (status, modes(&after) == modes(&self.before))
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was written, without blanks and without the sequences that move the cursor, over blanks too, and set colours.
fn plain(written: &str) -> String {
    let mut text = String::new();
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            letters.next();
            letters.by_ref().find(|end| end.is_ascii_alphabetic());
        } else if !letter.is_whitespace() {
            text.push(letter);
        }
    }
    text
}

#[test]
fn keys_open_the_help_the_order_and_a_tenants_page_and_q_gives_the_terminal_back() {
    let world = World::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    let mut top = OnTerminal::start(&world, &["top"]);
    top.until("■story");
    top.press("?");
    top.until("sorts by SLO, the worst first");
    top.press("?");
    top.until("Enter page");
    top.press("t");
    top.until("TOK/S▼");
    top.press("\r");
    top.until("Esc back");
    top.press("\u{1b}");
    top.until("Enter page");
    top.press("q");
    let (status, restored) = top.end();
    assert!(status.success() && restored, "{status}, restored: {restored}");
}

#[test]
fn ctrl_c_and_signals_give_the_terminal_back() {
    let world = World::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    for signal in [None, Some(Signal::INT), Some(Signal::TERM), Some(Signal::HUP)] {
        let mut top = OnTerminal::start(&world, &["top"]);
        top.until("■story");
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
        let world = World::new();
        world.write("local.yaml", YAML);
        world.script("sluice-engine", "exit 1\n");
        world.script(
            "sluice-sidecar",
            "echo \"$SLUICE_LOG\" > told.tmp && mv told.tmp told\nexec sleep 600\n",
        );
        let mut command = world.sluice(&["up", "-f", "local.yaml", "--port", "0"]);
        command.envs(variable.map(|variable| (variable, level)));
        let mut up = OnTerminal::run(command);
        up.until_written("sluice: loading default/story; Ctrl-C ends");
        let told = eventually("the sidecar starts", || {
            Some(text(&world.path("told"))).filter(|told| !told.is_empty())
        });
        assert_eq!(told.trim_end(), expected, "{variable:?}");
        kill_process(Pid::from_child(&up.child), Signal::TERM).unwrap();
        assert_eq!(up.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_error_of_the_command_line_breaks_its_lines_between_words() {
    let world = World::new();
    let mut run = OnTerminal::start(&world, &["run", "model", "--policy", "none"]);
    run.until_written("For more information, try '--help'.");
    assert_eq!(run.child.wait().unwrap().code(), Some(2), "{}", run.seen);
    let broken = "unknown variant `none`, expected one of\r\n`Unified`, `Recompute`, ";
    assert!(run.seen.contains(broken), "{}", run.seen);
}

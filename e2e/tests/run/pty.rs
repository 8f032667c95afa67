//! A terminal with a program in it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::support::eventually;

/// A terminal, and what was written to it.
#[derive(Debug)]
pub struct Pty {
    keyboard: File,
    /// The program's side: its modes are the terminal's.
    inside: OwnedFd,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Pty {
    /// Starts `command` as the foreground of a terminal of its own.
    pub fn start(mut command: Command) -> Pty {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&outside).unwrap();
        unlockpt(&outside).unwrap();
        let name = ptsname(&outside, Vec::new()).unwrap();
        let inside = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        command.env("TERM", "xterm").stdin(inside()).stdout(inside()).stderr(inside());
        // SAFETY: between fork and exec only system calls are made, which are async-signal-safe; descriptor 0 is
        // open until exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                // Standard input is the terminal by then.
                rustix::process::ioctl_tiocsctty(BorrowedFd::borrow_raw(0))?;
                Ok(())
            });
        }
        let inside = OwnedFd::from(inside());
        let child = command.spawn().unwrap();
        let (keyboard, screen) = (File::from(outside), Arc::new(Mutex::new(Vec::new())));
        let (mut reader, written) = (keyboard.try_clone().unwrap(), screen.clone());
        // Ends when the terminal does.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                written.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Pty { keyboard, inside, screen, child }
    }

    /// Types keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// All that was written so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until `text` is there behind the first `from` bytes; where it ends.
    pub async fn shows(&self, from: usize, text: &str) -> usize {
        let found = eventually(text, async || {
            let screen = self.screen();
            screen.get(from..).and_then(|rest| Some(from + rest.find(text)? + text.len()))
        });
        found.await
    }

    /// Whether the terminal echoes what is typed and makes lines of it, as a shell leaves it.
    pub fn is_cooked(&self) -> bool {
        tcgetattr(&self.inside).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// The program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        eventually("the program ends", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the terminal:\n{}\n---", self.screen());
        }
    }
}

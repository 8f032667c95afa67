//! Journal files of a tenant: one per instance, so that a restart never destroys the evidence of a crash.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sluice_scheduler::journal::Recorder;

/// Records to a new file at `path`. Renames an earlier file to `path.1`, `path.2` and so on, oldest first.
pub fn open_recorder(path: &Path) -> io::Result<Recorder> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    rotate(path)?;
    let file = LogFirstError { out: File::create_new(path)?, path: path.to_owned(), has_failed: false };
    Ok(Recorder::new(Box::new(BufWriter::new(file))))
}

fn rotate(path: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        return Ok(());
    }
    let mut number = 1u32;
    while numbered_path(path, number).try_exists()? {
        number += 1;
    }
    std::fs::rename(path, numbered_path(path, number))
}

fn numbered_path(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

/// Logs the first write error: the recording ends while the tenant is served, and nothing else reports it.
struct LogFirstError<W> {
    out: W,
    path: PathBuf,
    has_failed: bool,
}

impl<W> LogFirstError<W> {
    fn log_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let journal = self.path.display();
            tracing::error!(%journal, %error, "the journal could not be written and ends here; the tenant \
                                               continues without it");
        }
        result
    }
}

impl<W: Write> Write for LogFirstError<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.log_error(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.log_error(flushed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn each_start_rotates_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/story.journal");
        for life in ["first", "second", "third"] {
            drop(open_recorder(&path).unwrap());
            std::fs::write(&path, life).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(path.with_file_name(name)).unwrap();
        assert_eq!(
            ["story.journal.1", "story.journal.2", "story.journal"].map(read),
            ["first", "second", "third"]
        );
    }

    /// Collects log output.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_logged_once() {
        let log = Log::default();
        let sink = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || sink.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let out = File::options().write(true).open("/dev/full").unwrap();
            let mut writer =
                BufWriter::new(LogFirstError { out, path: "a.journal".into(), has_failed: false });
            writer.write_all(b"12 tick").unwrap();
            assert!(writer.flush().is_err());
            assert!(writer.flush().is_err(), "as the recorder does when it goes");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("the journal could not be written and ends here").count(), 1, "{log}");
        assert!(log.contains("a.journal") && log.contains("No space left"), "{log}");
    }
}

//! Standard output and standard error of a long-lived program: a write neither fails nor blocks.
//!
//! ```text
//! write -> the file takes the line                     (nearly always: in the caller's thread, before `write` returns)
//!       -> it would block: the line waits (bounded)  -> a thread that exists only meanwhile writes what waits
//!       -> it fails, or too much waits already       -> the line is dropped and counted
//! ```
//!
//! A write fails when the disk is full or the reader of a pipe is gone. A write blocks when the reader does
//! not read, such as a journald that hangs. After the next successful write, a line reports the number of
//! dropped lines.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many bytes may wait for a slow reader: a few thousand lines.
const MOST_WAITING: usize = 256 * 1024;
/// How long the program's end waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(1);
/// The draining thread calls `write` and `poll`, and formats one event.
const STACK: usize = 128 * 1024;

pub(crate) static STDOUT: Stream = Stream::new(|| open(&std::io::stdout()), |_| {});
pub(crate) static STDERR: Stream = Stream::new(|| open(&std::io::stderr()), log_dropped);

pub(crate) struct Stream {
    open: fn() -> Result<Channel, Errno>,
    /// Called when lines were dropped, and the next one was written.
    recovered: fn(Dropped),
    inner: Mutex<Inner>,
    /// Notified when no line waits.
    drained: Condvar,
    dropped: AtomicU64,
    /// Number of dropped lines that were not reported yet.
    unreported: AtomicU64,
    /// The last error; 0: too much waited for a slow reader.
    errno: AtomicI32,
}

struct Inner {
    channel: Option<Channel>,
    /// Whole lines, except the first, which may be partly written.
    waiting: Vec<u8>,
    /// Bytes that the thread has taken from `waiting`.
    in_write: usize,
    is_draining: bool,
}

/// Lines that were dropped.
struct Dropped {
    lines: u64,
    in_all: u64,
    error: String,
}

/// Ways to write to a descriptor.
enum Channel {
    /// A file or device, or a pipe that this program has reopened as non-blocking. The flag is one of the
    /// open file description, which other programs share: setting it on the one that was inherited would
    /// change theirs.
    Immediate(OwnedFd),
    Socket(OwnedFd),
    /// A pipe that cannot be reopened: only the draining thread writes to it.
    Blocking(OwnedFd),
}

impl Channel {
    /// Fails with `AGAIN` instead of waiting, unless the channel is a blocking one.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        loop {
            let written = match self {
                Channel::Immediate(fd) | Channel::Blocking(fd) => rustix::io::write(fd, bytes),
                Channel::Socket(fd) => {
                    rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                }
            };
            match written {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::IO),
                written => return written,
            }
        }
    }

    fn wait(&self) {
        let (Channel::Immediate(fd) | Channel::Socket(fd) | Channel::Blocking(fd)) = self;
        // The next write reports the same error.
        let _ = poll(&mut [PollFd::new(fd, PollFlags::OUT)], None);
    }

    fn share(&self) -> Result<Channel, Errno> {
        let share = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        Ok(match self {
            Channel::Immediate(fd) => Channel::Immediate(share(fd)?),
            Channel::Socket(fd) => Channel::Socket(share(fd)?),
            Channel::Blocking(fd) => Channel::Blocking(share(fd)?),
        })
    }
}

fn open(stream: &impl AsFd) -> Result<Channel, Errno> {
    let fd = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    match kind {
        FileType::Socket => Ok(Channel::Socket(fd)),
        // A terminal blocks after Ctrl-S.
        kind if kind == FileType::Fifo || fd.is_terminal() => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(own) => Ok(Channel::Immediate(own)),
                // The pipe of another account, or without a reader at the moment.
                Err(_) => Ok(Channel::Blocking(fd)),
            }
        }
        _ => Ok(Channel::Immediate(fd)),
    }
}

fn log_dropped(dropped: Dropped) {
    let Dropped { lines, in_all, error } = dropped;
    tracing::warn!(
        lines,
        in_all,
        error,
        "log lines were dropped because standard error could not be written"
    );
}

impl Stream {
    const fn new(open: fn() -> Result<Channel, Errno>, recovered: fn(Dropped)) -> Stream {
        let inner = Inner { channel: None, waiting: Vec::new(), in_write: 0, is_draining: false };
        Stream {
            open,
            recovered,
            inner: Mutex::new(inner),
            drained: Condvar::new(),
            dropped: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            errno: AtomicI32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes whole lines, queues them, or drops them.
    pub(crate) fn write(&'static self, lines: &[u8]) {
        if self.offer(lines) {
            self.report_dropped();
        }
    }

    /// Returns whether the lines were written.
    fn offer(&'static self, lines: &[u8]) -> bool {
        let mut inner = self.lock();
        if inner.channel.is_none() {
            match (self.open)() {
                Ok(channel) => inner.channel = Some(channel),
                Err(error) => return self.drop_lines(lines, error.raw_os_error()),
            }
        }
        let mut rest = lines;
        // Otherwise these lines would overtake the waiting ones.
        if !inner.is_draining
            && let Some(channel @ (Channel::Immediate(_) | Channel::Socket(_))) = &inner.channel
        {
            while !rest.is_empty() {
                match channel.write(rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::AGAIN) => break,
                    Err(error) => return self.drop_lines(rest, error.raw_os_error()),
                }
            }
            if rest.is_empty() {
                return true;
            }
        }
        // The rest of a partly written line is always queued.
        let is_whole = rest.len() == lines.len();
        if is_whole && inner.waiting.len() + inner.in_write + rest.len() > MOST_WAITING {
            return self.drop_lines(rest, 0);
        }
        inner.waiting.extend_from_slice(rest);
        if !inner.is_draining {
            inner.is_draining = true;
            drop(inner);
            let thread = std::thread::Builder::new().name("procfleet-log".to_owned()).stack_size(STACK);
            if let Err(error) = thread.spawn(|| self.drain()) {
                let mut inner = self.lock();
                let waiting = std::mem::take(&mut inner.waiting);
                inner.is_draining = false;
                drop(inner);
                self.drop_lines(&waiting, error.raw_os_error().unwrap_or_default());
            }
        }
        false
    }

    /// Writes the waiting lines until there are none.
    fn drain(&self) {
        let channel = self.lock().channel.as_ref().map_or(Err(Errno::BADF), Channel::share);
        let mut is_written = false;
        loop {
            let taken = {
                let mut inner = self.lock();
                let taken = std::mem::take(&mut inner.waiting);
                inner.in_write = taken.len();
                if taken.is_empty() {
                    inner.is_draining = false;
                    self.drained.notify_all();
                    break;
                }
                taken
            };
            let mut rest = &taken[..];
            while !rest.is_empty() {
                match channel.as_ref().map_err(|error| *error).and_then(|channel| channel.write(rest)) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::AGAIN) => channel.iter().for_each(Channel::wait),
                    Err(error) => {
                        self.drop_lines(rest, error.raw_os_error());
                        break;
                    }
                }
            }
            is_written = rest.is_empty();
        }
        if is_written {
            self.report_dropped();
        }
    }

    fn drop_lines(&self, lines: &[u8], errno: i32) -> bool {
        let count = lines.iter().filter(|byte| **byte == b'\n').count().max(1);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.dropped.fetch_add(count, Ordering::Relaxed);
        self.errno.store(errno, Ordering::Relaxed);
        self.unreported.fetch_add(count, Ordering::Relaxed);
        false
    }

    /// Reports the number of lines that were dropped before the one just written.
    fn report_dropped(&self) {
        if self.unreported.load(Ordering::Relaxed) == 0 {
            return;
        }
        let lines = self.unreported.swap(0, Ordering::Relaxed);
        if lines > 0 {
            let error = match self.errno.load(Ordering::Relaxed) {
                0 => "its reader was too slow".to_owned(),
                errno => std::io::Error::from_raw_os_error(errno).to_string(),
            };
            (self.recovered)(Dropped { lines, in_all: self.dropped(), error });
        }
    }

    /// Waits until all lines are written, or the reader is too slow.
    pub(crate) fn flush(&self) {
        let inner = self.lock();
        let waited = self.drained.wait_timeout_while(inner, FLUSH, |inner| inner.is_draining);
        drop(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::io::Read;

    /// Streams are static, so each test has its own stream.
    macro_rules! stream {
        ($channel:expr) => {{
            thread_local! {
                static NEXT: RefCell<Option<Channel>> = const { RefCell::new(None) };
            }
            static REPORTED: Mutex<Vec<(u64, u64, String)>> = Mutex::new(Vec::new());
            static STREAM: Stream = Stream::new(
                || NEXT.take().ok_or(Errno::BADF),
                |dropped| {
                    REPORTED.lock().expect("no panic").push((dropped.lines, dropped.in_all, dropped.error))
                },
            );
            NEXT.set(Some($channel));
            (&STREAM, &REPORTED)
        }};
    }

    enum Waits {
        Yes,
        No,
    }

    fn pipe(writer_waits: Waits) -> (std::io::PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        if let Waits::No = writer_waits {
            rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).expect("our own pipe");
        }
        (reader, writer.into())
    }

    const PATIENCE: Duration = Duration::from_secs(120);

    fn wait_until(stream: &Stream, is_so: impl Fn() -> bool) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "in vain");
            stream.flush();
            std::thread::yield_now();
        }
    }

    #[test]
    fn lines_on_a_full_disk_are_dropped_and_reported_later() {
        let full = rustix::fs::open("/dev/full", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let (stream, reported) = stream!(Channel::Immediate(full.expect("this is Linux")));
        stream.write(b"one\n");
        stream.write(b"two\nthree\n");
        assert_eq!((stream.dropped(), stream.lock().waiting.len()), (3, 0));
        let void = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        stream.lock().channel = Some(Channel::Immediate(void.expect("this is Linux")));
        stream.write(b"four\n");
        stream.write(b"five\n");
        let reason = "No space left on device (os error 28)".to_owned();
        assert_eq!(*reported.lock().expect("no panic"), [(3, 3, reason)]);
    }

    #[test]
    fn a_pipe_whose_reader_is_gone_costs_only_the_lines() {
        let (reader, writer) = pipe(Waits::No);
        let (stream, _) = stream!(Channel::Immediate(writer));
        drop(reader);
        stream.write(b"one\n");
        assert_eq!(stream.dropped(), 1);
    }

    #[test]
    fn a_stalled_reader_does_not_block_the_writer_and_gets_whole_lines_later() {
        let (mut reader, writer) = pipe(Waits::No);
        let (stream, reported) = stream!(Channel::Immediate(writer));
        let line = format!("{}\n", "x".repeat(1_000));
        // The pipe holds 64 KiB, and 256 KiB may wait.
        for _ in 0..1_000 {
            stream.write(line.as_bytes());
        }
        let dropped = stream.dropped();
        assert!((600..800).contains(&dropped), "{dropped}");
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        wait_until(stream, || !stream.lock().is_draining && !reported.lock().expect("no panic").is_empty());
        assert_eq!(reported.lock().expect("no panic")[0].0, dropped);
        assert!(reported.lock().expect("no panic")[0].2.contains("too slow"));
        stream.write(b"the last\n");
        // The reader may not have emptied the pipe yet.
        wait_until(stream, || !stream.lock().is_draining);
        stream.lock().channel = None;
        let text = reading.join().expect("no panic").expect("a text");
        let (lines, last) = text.trim_end().rsplit_once('\n').expect("many lines");
        assert!(lines.lines().all(|each| each.len() == 1_000), "every line is whole");
        assert_eq!((lines.lines().count() as u64, last), (1_000 - dropped, "the last"));
    }

    #[test]
    fn a_pipe_of_another_account_is_written_by_a_thread() {
        let (mut reader, writer) = pipe(Waits::Yes);
        let (stream, _) = stream!(Channel::Blocking(writer));
        for number in 0..1_000 {
            stream.write(format!("{number}\n").as_bytes());
        }
        wait_until(stream, || !stream.lock().is_draining);
        stream.lock().channel = None;
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("a text");
        let expected: String = (0..1_000).map(|number| format!("{number}\n")).collect();
        assert_eq!((text, stream.dropped()), (expected, 0));
    }

    #[test]
    fn a_pipe_is_reopened_so_that_other_users_keep_their_flags() {
        let (_reader, writer) = pipe(Waits::Yes);
        let Ok(Channel::Immediate(own)) = open(&writer) else { panic!("our own pipe can be opened") };
        let is_nonblocking =
            |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).expect("flags").contains(OFlags::NONBLOCK);
        assert_eq!((is_nonblocking(&own), is_nonblocking(&writer)), (true, false));
    }
}

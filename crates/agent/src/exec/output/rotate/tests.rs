//! Logs that are rotated while processes write to them, and while the rotating process is killed.

use super::*;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The methods that a filesystem may allow.
const ALL_METHODS: [CutMethod; 3] = [CutMethod::Collapse, CutMethod::Hole, CutMethod::Empty];
/// Where the child finds what it is to rotate.
const LOG: &str = "PROCFLEET_TEST_ROTATED_LOG";
/// Only a defect makes a child take longer than this.
const DEADLINE: Duration = Duration::from_secs(120);

struct Log {
    folder: TempDir,
    rotation: Rotation,
}

impl Log {
    fn new(size: u64, keep: u64, method: CutMethod) -> Log {
        let folder = tempfile::tempdir().expect("a temp dir");
        fs::create_dir(folder.path().join("states")).expect("our own folder");
        Log { folder, rotation: Rotation { size, keep, method } }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("out.log")
    }

    fn writer(&self) -> File {
        OpenOptions::new().read(true).append(true).create(true).open(self.path()).expect("our own file")
    }

    fn write(&self, text: &str) {
        self.writer().write_all(text.as_bytes()).expect("room");
    }

    fn rotate(&self) -> Rotated {
        rotate(&self.path(), self.rotation)
    }

    fn copies(&self) -> Vec<(u64, String)> {
        let copies = copies(&self.path());
        let text = |copy: &Copied| fs::read_to_string(&copy.path).expect("a copy");
        copies.iter().map(|copy| (copy.offset, text(copy))).collect()
    }

    /// The content of the file, without the NUL bytes of a hole.
    fn rest(&self) -> String {
        fs::read_to_string(self.path()).expect("text").trim_start_matches('\0').to_owned()
    }
}

/// As an agent that has just begun.
fn rotate(path: &Path, rotation: Rotation) -> Rotated {
    let file = OpenOptions::new().read(true).append(true).open(path).expect("our own file");
    let states = path.with_file_name("states");
    let tracked = Tracked::new(&Arc::from(states), &file.metadata().expect("its data"), &Arc::from(path));
    Rotator { file: &file, path, tracked: &tracked, rotation }.rotate().expect("room for a copy")
}

fn lines(from: u64, to: u64) -> String {
    (from..to).map(|number| format!("{number:07}\n")).collect()
}

#[test]
fn the_excess_goes_into_copies_and_the_oldest_are_removed() {
    for method in [CutMethod::Collapse, CutMethod::Hole] {
        let log = Log::new(16_384, 2, method);
        log.write(&lines(0, 2_048));
        assert_eq!(log.rotate(), Rotated::default(), "{method:?}: it is just full");
        log.write(&lines(2_048, 2_050));
        assert_eq!(log.rotate().copies, 1, "{method:?}");
        assert_eq!(log.copies(), [(0, lines(0, 2_048))], "{method:?}");
        assert_eq!(log.rest(), lines(2_048, 2_050), "{method:?}");
        log.write(&lines(2_050, 8_000));
        assert_eq!(log.rotate().copies, 2, "{method:?}");
        let second = (16_384, lines(2_048, 4_096));
        assert_eq!(
            log.copies(),
            [second, (32_768, lines(4_096, 6_144))],
            "{method:?}: each copy is of one size"
        );
        assert_eq!(log.rest(), lines(6_144, 8_000), "{method:?}");
        let length = fs::metadata(log.path()).expect("it is there").len();
        let room = fs::metadata(log.path()).expect("it is there").blocks() * 512;
        assert!(room < 24_576, "{method:?}: {room} bytes of room");
        if method == CutMethod::Collapse {
            procfleet_testkit::has(procfleet_testkit::Need::CollapsibleFiles, length <= 24_576);
        }
    }
}

#[test]
fn bytes_that_no_copy_would_keep_are_not_copied() {
    for keep in [0, 1] {
        let log = Log::new(16_384, keep, CutMethod::Collapse);
        log.write(&lines(0, 50_000));
        let rotated = log.rotate();
        assert_eq!(rotated.copies, keep, "{rotated:?}");
        assert!(rotated.dropped > 0, "{rotated:?}");
        let kept: String = log.copies().into_iter().map(|(_, text)| text).chain([log.rest()]).collect();
        assert!(
            lines(0, 50_000).ends_with(&kept) && kept.len() >= 8_000,
            "keep {keep}: {} bytes",
            kept.len()
        );
        assert_eq!(kept.len() % 8, 0, "whole lines");
    }
}

#[test]
fn a_line_that_is_too_long_is_cut_between_characters() {
    let log = Log::new(16_384, 8, CutMethod::Collapse);
    log.write(&"é".repeat(10_000));
    assert_eq!(log.rotate(), Rotated::default(), "its end may still come");
    log.write("\nshort\n");
    assert_eq!(log.rotate().copies, 1);
    assert_eq!((log.copies()[0].1.len(), log.rest().as_str()), (20_001, "short\n"));
    log.write(&"é".repeat(30_000));
    log.rotate();
    let all: String = log.copies().into_iter().map(|(_, text)| text).chain([log.rest()]).collect();
    assert_eq!(all, format!("{}\nshort\n{}", "é".repeat(10_000), "é".repeat(30_000)), "no character is cut");
    assert!(log.copies().len() >= 3, "it does not grow for ever");
}

#[test]
fn a_truncated_log_file_continues() {
    for method in ALL_METHODS {
        let log = Log::new(16_384, 8, method);
        log.write(&lines(0, 3_000));
        log.rotate();
        log.writer().set_len(0).expect("ours");
        log.write(&lines(3_000, 6_000));
        log.rotate();
        let copies = log.copies();
        assert_eq!(copies.len(), 2, "{method:?}");
        assert!(copies[1].0 > copies[0].0, "{method:?}: offsets only grow");
        let second = &copies[1].1;
        assert!(second.starts_with("0003000\n"), "{method:?}: {}", &second[..8]);
        assert_eq!(format!("{second}{}", log.rest()), lines(3_000, 6_000), "{method:?}");
    }
}

/// The state is lost, and the file may be another: nothing is taken for what it is not.
#[test]
fn copies_of_another_file_are_not_taken_for_its_own() {
    let log = Log::new(16_384, 8, CutMethod::Collapse);
    log.write(&lines(0, 3_000));
    log.rotate();
    fs::remove_dir_all(log.folder.path().join("states")).expect("ours");
    fs::create_dir(log.folder.path().join("states")).expect("ours");
    fs::rename(log.path(), log.folder.path().join("away")).expect("ours");
    log.write(&lines(3_000, 6_000));
    log.rotate();
    let offsets: Vec<u64> = log.copies().iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [0, 16_384]);
    assert_eq!(format!("{}{}", log.copies()[1].1, log.rest()), lines(3_000, 6_000));
}

/// Every step at which an agent may be cut off, one after the other.
#[test]
fn a_rotation_that_was_cut_off_is_finished_and_not_repeated() {
    let text = lines(0, 3_000);
    let held = 16_384;
    for step in ["copied", "recorded", "punched", "collapsing", "collapsed"] {
        let log = Log::new(16_384, 8, CutMethod::Collapse);
        log.write(&text);
        let file = log.writer();
        let states = log.folder.path().join("states");
        let tracked =
            Tracked::new(&Arc::from(states), &file.metadata().expect("data"), &Arc::from(log.path()));
        tracked.state(&file).expect("a state").save(&tracked.state_path()).expect("room");
        fs::write(log.folder.path().join("out.log.000000000000000"), &text[..held]).expect("room");
        let mut state = tracked.state(&file).expect("a state").clone();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if step != "copied" {
            (state.taken, state.step) = (held as u64, RotationStep::Cutting);
        }
        if ["punched", "collapsing", "collapsed"].contains(&step) {
            rustix::fs::fallocate(&file, hole, 0, held as u64).expect("a filesystem with holes");
        }
        if ["collapsing", "collapsed"].contains(&step) {
            state.step = RotationStep::Collapsing(held as u64);
        }
        if step == "collapsed" && collapse(&file, held as u64).is_err() {
            continue;
        }
        state.save(&tracked.state_path()).expect("room");
        // More than was taken is written before the next agent comes.
        log.write(&lines(3_000, 9_000));
        log.rotate();
        let all: String = log.copies().into_iter().map(|(_, text)| text).chain([log.rest()]).collect();
        assert!(all == lines(0, 9_000), "{step}: {} of {} bytes", all.len(), 9_000 * 8);
    }
}

/// Several threads write numbered lines as fast as they can, while the process that rotates the log is killed
/// again and again. That process is this test itself, started with `LOG` in its environment.
#[test]
fn no_line_is_lost_or_doubled_while_the_rotating_process_is_killed() {
    const WRITERS: u64 = 3;
    #[expect(clippy::disallowed_methods, reason = "the parent passes the log to its child this way")]
    if let Ok(log) = std::env::var(LOG) {
        return rotate_until_killed(&log);
    }
    for (method, rounds) in [(CutMethod::Collapse, 40), (CutMethod::Hole, 20)] {
        let log = Log::new(32_768, 100_000, method);
        let stop = AtomicBool::new(false);
        log.write("");
        let written: Vec<u64> = std::thread::scope(|scope| {
            let write = |writer: u64| {
                let mut file = log.writer();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let line = format!("{writer} {number} {}\n", "x".repeat((number % 97) as usize));
                    file.write_all(line.as_bytes()).expect("room");
                    number += 1;
                    // As fast as possible, without filling the disk.
                    if number % 64 == 0 {
                        std::thread::yield_now();
                        while file.metadata().expect("data").blocks() > 8 * 2_048
                            && !stop.load(Ordering::Relaxed)
                        {
                            std::thread::yield_now();
                        }
                    }
                }
                number
            };
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            for round in 0..rounds {
                let mut child = child(&log.path(), method);
                let began = Instant::now();
                // Not at once, because the child takes a while to start, and then after a varying delay.
                let made = |log: &Log| copies(&log.path()).len();
                let before = made(&log);
                while made(&log) == before {
                    assert!(began.elapsed() < DEADLINE, "the child rotates the log");
                    std::thread::yield_now();
                }
                let reached = Instant::now();
                while reached.elapsed() < Duration::from_micros(round * 137 % 4_000) {
                    std::hint::spin_loop();
                }
                child.kill().expect("it is ours");
                child.wait().expect("it is ours");
            }
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
        });
        rotate(&log.path(), log.rotation);
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let mut check = |line: &str, whence: &Path| {
            let mut words = line.split(' ');
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(writer), Some(number)) = (number(), number()) else {
                panic!("{method:?}: {whence:?} has a line {line:?}")
            };
            let whole = words.next().is_some_and(|rest| rest.len() as u64 == number % 97);
            assert!(
                whole,
                "{method:?}: {whence:?} has a part of a line: {line:.200?} of {} bytes",
                line.len()
            );
            let expected = next.entry(writer).or_default();
            assert_eq!(number, *expected, "{method:?}: {whence:?}, writer {writer}");
            *expected += 1;
        };
        let copies = copies(&log.path());
        for copy in &copies {
            let bytes = fs::read(&copy.path).expect("a copy");
            if let Some(first) = bytes.iter().position(|byte| *byte == 0) {
                let behind = bytes[first..].iter().position(|byte| *byte != 0).map(|at| at + first);
                panic!("{method:?}: {copy:?} has NUL bytes from {first} to {behind:?} of {}", bytes.len());
            }
            for line in io::BufReader::new(File::open(&copy.path).expect("a copy")).lines() {
                check(&line.expect("text"), &copy.path);
            }
        }
        for line in log.rest().lines() {
            check(line, &log.path());
        }
        let seen: Vec<u64> = (0..WRITERS).map(|writer| next.get(&writer).copied().unwrap_or(0)).collect();
        assert_eq!(seen, written, "{method:?}: every line is there, once");
        eprintln!("{method:?}: {seen:?} lines in {} copies, {rounds} kills", copies.len());
    }
}

fn rotate_until_killed(log: &str) {
    let (path, method) = log.rsplit_once(':').expect("a path and a method");
    let method = ALL_METHODS.into_iter().find(|known| format!("{known:?}") == method).expect("a known one");
    loop {
        rotate(Path::new(path), Rotation { size: 32_768, keep: 100_000, method });
    }
}

fn child(path: &Path, method: CutMethod) -> std::process::Child {
    let program = std::env::current_exe().expect("this program");
    let (_, module) = module_path!().split_once("::").expect("a module of this crate");
    let test = format!("{module}::no_line_is_lost_or_doubled_while_the_rotating_process_is_killed");
    #[expect(
        clippy::disallowed_methods,
        reason = "it is this very program, and nothing that the agent looks after"
    )]
    let mut child = std::process::Command::new(program);
    child
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(LOG, format!("{}:{method:?}", path.display()))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("this program can be run")
}

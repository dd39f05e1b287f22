//! A reader that has seen enough, as `head` after its last line, closes its pipe: the command ends without a word.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::evener;

/// No command below takes this long unless it hangs.
const LIMIT: Duration = Duration::from_secs(100);

/// Returns a pipe whose reader is closed.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn end_of(mut child: Child, about: &str) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{about}: not ended after {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Everything that an ended child has written to a pipe. Only for less than a pipe holds.
fn written(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    pipe.unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn log_lines_to_a_closed_pipe_are_lost_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leaves");
    std::fs::write(&path, vec![7; 16 << 20]).unwrap();
    let path = path.to_str().unwrap();
    let expected = evener().args(["merkle", "--json", path]).output().unwrap();
    let root = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap()["root"].clone();
    assert!(root(&expected.stdout).is_string());
    // Closed from the first line on, where the main thread logs; and later, where workers do.
    for lines in [0, 4, 8, 16] {
        let mut command = evener();
        command.args(["-vvv", "merkle", "--json", path]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, log) = (child.stdout.take(), BufReader::new(child.stderr.take().unwrap()));
        assert_eq!(log.lines().take(lines).map(Result::unwrap).count(), lines);
        assert_eq!(end_of(child, "merkle").code(), Some(0));
        assert_eq!(root(written(out).as_bytes()), root(&expected.stdout));
    }
}

/// Commands that write to standard output, each in a second or so.
const COMMANDS: [&[&str]; 15] = [
    &["help"],
    &["exit-codes"],
    &["help", "environment"],
    &["devices"],
    &["devices", "--all-apis", "--json"],
    &["sim", "../../scenarios/unlike.toml"],
    &["sim", "../../scenarios/unlike.toml", "--json"],
    &["sim", "../../scenarios/unlike.toml", "--quiet", "--trace", "/dev/stdout"],
    &["completions", "bash"],
    &["man"],
    &["mesh", "plan", "../../meshes/mixed-cards.toml"],
    &["mesh", "bench", "--ranks", "2", "--sizes", "4KiB..8KiB"],
    &["mesh", "bench", "--ranks", "2", "--sizes", "4KiB..8KiB", "--json"],
    &["merkle", "--leaves", "100000"],
    &["merkle", "--leaves", "100000", "--json"],
];

#[test]
fn a_closed_standard_output_ends_every_command_without_a_word() {
    for arguments in COMMANDS {
        let mut command = evener();
        command.args(arguments).stdout(closed()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let error = child.stderr.take();
        let status = end_of(child, &format!("{arguments:?}"));
        assert_eq!((status.code(), written(error)), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn nothing_can_be_said_when_both_are_closed_and_nothing_breaks() {
    for arguments in COMMANDS {
        let mut command = evener();
        command.arg("-vvv").args(arguments.iter().filter(|argument| **argument != "--quiet"));
        let child = command.stdout(closed()).stderr(closed()).spawn().unwrap();
        assert_eq!(end_of(child, &format!("{arguments:?}")).code(), Some(0), "{arguments:?}");
    }
    // An error keeps its exit code, even where its message cannot be written.
    let child = evener().args(["sim", "nowhere.toml"]).stderr(closed()).spawn().unwrap();
    assert_eq!(end_of(child, "sim").code(), Some(1));
    let child = evener().args(["sim", "--nonsense"]).stderr(closed()).spawn().unwrap();
    assert_eq!(end_of(child, "sim").code(), Some(2));
}

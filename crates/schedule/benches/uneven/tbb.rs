//! TBB's `parallel_for` in a child process.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::shapes::Item;

/// Path of a peer that was built on another machine.
const PEER: &str = "EVENER_TBB_PEER";

const SOURCE: &str = include_str!("tbb.cc");

/// Libraries that a bare machine may not have. TBB has no static library on most systems.
const LIBRARIES: [&str; 3] = ["libtbb.so.12", "libstdc++.so.6", "libgcc_s.so.1"];

/// A running peer.
pub(crate) struct Tbb {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    version: String,
    /// The items that were sent to it.
    loaded: Vec<Item>,
    _folder: Option<tempfile::TempDir>,
}

impl Tbb {
    /// Builds the peer, unless it was built before, and starts it. Fails with a reason.
    pub(crate) fn start() -> Result<Tbb, String> {
        let (path, folder) = match std::env::var_os(PEER) {
            Some(path) => (PathBuf::from(path), None),
            None => {
                let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
                let path = folder.path().join("tbb");
                build(&path, &[])?;
                (path, Some(folder))
            }
        };
        let mut child = Command::new(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{}: {why}", path.display()))?;
        let input = child.stdin.take().ok_or("no input")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut version = String::new();
        output.read_line(&mut version).map_err(|why| why.to_string())?;
        if version.trim().is_empty() {
            return Err(format!("{} does not start", path.display()));
        }
        Ok(Tbb { child, input, output, version: version.trim().into(), loaded: Vec::new(), _folder: folder })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Runs all items, and returns the time and the results' checksum.
    pub(crate) fn run(&mut self, items: &[Item]) -> (Duration, u64) {
        // The same items are sent once only.
        if self.loaded != items {
            self.load(items);
        }
        writeln!(self.input, "run").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
        let (nanoseconds, checksum) = (words.next().unwrap(), words.next().unwrap());
        (Duration::from_nanos(nanoseconds), checksum)
    }

    fn load(&mut self, items: &[Item]) {
        let mut text = format!("load {}\n", items.len());
        for item in items {
            text.push_str(&format!("{} {}\n", item.seed, item.rounds));
        }
        self.input.write_all(text.as_bytes()).unwrap();
        self.loaded = items.to_vec();
    }
}

impl Drop for Tbb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the peer and its libraries for another machine. Returns all files.
pub(crate) fn build_to_carry(path: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    // An `RPATH`, which also applies to TBB's own libraries.
    build(path, &["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"])?;
    let mut files = vec![path.to_owned()];
    for library in LIBRARIES {
        let found = Command::new("c++").arg(format!("-print-file-name={library}")).output();
        let found = found.map_err(|why| format!("c++: {why}"))?.stdout;
        let from = PathBuf::from(String::from_utf8_lossy(&found).trim());
        let to = folder.join(library);
        std::fs::copy(&from, &to).map_err(|why| format!("{}: {why}", from.display()))?;
        files.push(to);
    }
    Ok(files)
}

fn build(path: &Path, options: &[&str]) -> Result<(), String> {
    let mut compiler = Command::new("c++")
        .args(["-std=c++17", "-O3", "-pthread", "-x", "c++", "-", "-o"])
        .arg(path)
        .args(options)
        .arg("-ltbb")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| format!("c++: {why}"))?;
    let mut input = compiler.stdin.take().ok_or("no input")?;
    input.write_all(SOURCE.as_bytes()).map_err(|why| why.to_string())?;
    drop(input);
    let output = compiler.wait_with_output().map_err(|why| why.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().find(|line| line.contains("error")).unwrap_or("c++ fails").to_owned())
}

//! `evener serve` and `--serve`.
#![cfg(unix)]
#![allow(clippy::panic, clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/unlike.toml");

fn evener(runtime: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evener"));
    command.env("XDG_RUNTIME_DIR", runtime).env("EVENER_CACHE_DIR", runtime).env_remove("EVENER_VIEW");
    command
}

fn runtime() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// Ends a program when the test ends, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn interrupt(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}

/// The host and port in the first line that has an address, and what follows them.
fn address_in(reader: impl Read) -> (String, String) {
    for line in BufReader::new(reader).lines() {
        let line = line.unwrap();
        if let Some((_, url)) = line.split_once("http://") {
            let (host, path) = url.split_once('/').unwrap();
            return (host.into(), path.trim().into());
        }
    }
    panic!("no address was printed");
}

fn get(host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn serve_shows_a_program_of_this_user_and_ends_by_ctrl_c() {
    let runtime = runtime();
    let mut serve = evener(runtime.path());
    let serve = serve.args(["serve", "--listen", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut serve = Ended(serve);
    let (host, path) = address_in(serve.0.stdout.take().unwrap());
    assert!(host.starts_with("127.0.0.1:") && path.is_empty(), "{host} {path}");
    assert!(get(&host, "/").contains("<html"));
    assert!(get(&host, "/api/runs").contains("{\"programs\":[]}"));
    // A program that goes on after its run, so that it is surely found.
    let mut sim = evener(runtime.path());
    sim.args(["sim", SCENARIO, "--serve", "0", "--keep-serving"]).env("EVENER_VIEW", "1");
    let mut sim = Ended(sim.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let (own, _) = address_in(sim.0.stderr.take().unwrap());
    let start = Instant::now();
    while !get(&host, "/api/runs").contains(&format!("\"pid\":{}", sim.0.id())) {
        assert!(start.elapsed() < Duration::from_secs(20), "the program is not found");
        thread::sleep(Duration::from_millis(200));
    }
    assert!(get(&own, "/metrics").contains("evener_programs 1"));
    interrupt(&sim.0);
    assert!(sim.0.wait().unwrap().success());
    interrupt(&serve.0);
    assert!(serve.0.wait().unwrap().success());
}

#[test]
fn an_address_for_other_machines_has_a_token_and_a_token_of_a_file_is_not_printed() {
    let runtime = runtime();
    let mut serve = evener(runtime.path());
    let mut serve =
        Ended(serve.args(["-q", "serve", "--listen", "0.0.0.0:0"]).stdout(Stdio::piped()).spawn().unwrap());
    let (host, path) = address_in(serve.0.stdout.take().unwrap());
    assert!(path.starts_with("?token=") && path.len() > 40, "{path}");
    let local = format!("127.0.0.1:{}", host.rsplit(':').next().unwrap());
    assert!(get(&local, "/api/runs").starts_with("HTTP/1.1 401"));
    assert!(get(&local, &format!("/{path}")).contains("set-cookie: evener_"));
    let file = runtime.path().join("token");
    fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
    let mut other = evener(runtime.path());
    other.args(["serve", "--listen", "0", "--token-file"]).arg(&file);
    let mut other = Ended(other.stdout(Stdio::piped()).spawn().unwrap());
    let (host, path) = address_in(other.0.stdout.take().unwrap());
    assert!(path.is_empty(), "{path}");
    assert!(get(&host, "/metrics").starts_with("HTTP/1.1 401"));
}

#[test]
fn what_is_wrong_with_an_address_is_said() {
    let runtime = runtime();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let short = runtime.path().join("short");
    fs::write(&short, "secret").unwrap();
    let short = short.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 5] = [
        (&["serve", "--listen", &taken], 1, "is in use by another program"),
        (&["serve", "--listen", "192.0.2.1:9200"], 1, "not an address of this machine"),
        (&["serve", "--listen", "http://127.0.0.1"], 2, "expected IP:PORT"),
        (&["serve", "--listen", "0", "--allow-host", "http://x"], 2, "is not a host name"),
        (&["sim", SCENARIO, "--serve", "0", "--token-file", short], 2, "at least 22 characters"),
    ];
    for (arguments, code, message) in cases {
        let output = evener(runtime.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    let output = evener(runtime.path()).args(["sim", SCENARIO, "--keep-serving"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "--keep-serving needs --serve");
}

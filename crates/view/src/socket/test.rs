use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::{UnixListener, UnixStream},
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use evener_schedule::events::{Event, EventKind, EventStream, RunEnd, RunKind, RunStatus};

use super::{folder::make, *};
use crate::Live;

fn own_stream() -> &'static EventStream {
    Box::leak(Box::new(EventStream::new()))
}

/// A folder that only this user can use.
fn private() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

fn begin(stream: &EventStream, run: u64) {
    let status = RunStatus {
        task: "any".into(),
        kind: RunKind::Map,
        strategy: "adaptive",
        items: Some(10),
        predicted: None,
        devices: Vec::new(),
        left_out: Vec::new(),
    };
    stream.publish(Event { run, at: Duration::ZERO, kind: EventKind::Status(Arc::new(status)) });
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_an_error() {
    let around = private();
    let folder = around.path().join("y".repeat(120));
    let why = Server::open_in(&folder, Live::of(own_stream()).unwrap()).unwrap_err();
    assert!(matches!(why, SocketError::Io(_)), "{why}");
}

#[test]
fn a_folder_that_is_called_like_a_socket_hides_no_program() {
    let folder = private();
    fs::create_dir(folder.path().join("8.sock")).unwrap();
    let server = Server::open_in(folder.path(), Live::of(own_stream()).unwrap()).unwrap();
    let mut programs = Programs::in_folder(folder.path()).unwrap();
    programs.refresh().unwrap();
    assert_eq!(programs.connections().count(), 1);
    assert!(programs.refused().any(|(name, _)| name == "8.sock"));
    drop(server);
}

#[test]
fn a_folder_that_others_could_use_is_refused() {
    let around = private();
    let folder = around.path().join("evener");
    make(&folder).unwrap();
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    make(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(make(&folder).unwrap_err().to_string().contains("its mode is 755"));
    let link = around.path().join("link");
    symlink(around.path(), &link).unwrap();
    assert!(make(&link).unwrap_err().to_string().contains("it is no folder"));
}

#[test]
fn a_view_finds_programs_follows_them_and_notices_their_end() {
    let (folder, stream) = (private(), own_stream());
    let mut programs = Programs::in_folder(folder.path()).unwrap();
    programs.refresh().unwrap();
    assert_eq!(programs.connections().count(), 0);
    let server = Server::open_in(folder.path(), Live::of(stream).unwrap()).unwrap();
    assert_eq!(fs::metadata(server.path()).unwrap().permissions().mode() & 0o777, 0o600);
    programs.refresh().unwrap();
    let connection = programs.connection(std::process::id()).unwrap().clone();
    assert_eq!((connection.program().runs.len(), server.views()), (0, 1));
    begin(stream, 3);
    wait_until("the run is seen", || connection.with_program(|program| program.run(3).is_some()));
    // A view of the view, which reads less often.
    let version = connection.program().version;
    stream.publish(Event {
        run: 3,
        at: Duration::from_secs(1),
        kind: EventKind::RunEnded(Arc::new(RunEnd { error: None, report: None })),
    });
    wait_until("its end is seen", || connection.with_program(|program| program.past.len() == 1));
    let mut second = None::<Box<crate::state::Program>>;
    let mut seen = None;
    while let Some(update) = connection.update_since(seen) {
        seen = Some(update.version());
        match (&mut second, update) {
            (None, Update::Snapshot(program)) => second = Some(program),
            (Some(program), update) => assert!(program.apply(update)),
            (None, delta) => panic!("{delta:?}"),
        }
    }
    assert_eq!(second.map(|program| *program), Some(connection.program()));
    assert!(matches!(connection.update_since(Some(version)), Some(Update::Delta(_)) | None));
    let path = server.path().to_owned();
    drop(server);
    assert!(!path.exists());
    wait_until("the program has gone", || connection.is_closed());
    programs.refresh().unwrap();
    assert_eq!(programs.connections().count(), 0);
}

#[test]
fn a_request_cancels_a_run_that_is_there_and_no_other() {
    let (folder, stream) = (private(), own_stream());
    let server = Server::open_in(folder.path(), Live::of(stream).unwrap()).unwrap();
    let connection = Connection::open(server.path()).unwrap();
    begin(stream, 3);
    assert!(!connection.cancel(4).unwrap());
    assert!(connection.cancel(3).unwrap());
    assert!(stream.is_cancel_requested(3) && !stream.is_cancel_requested(4));
}

#[test]
fn the_socket_of_a_killed_program_is_removed_and_that_of_a_running_one_is_not() {
    let folder = private();
    let (stale, running) = (folder.path().join("1.sock"), folder.path().join("2.sock"));
    // Dropping a listener leaves its socket.
    drop(UnixListener::bind(&stale).unwrap());
    let _listener = UnixListener::bind(&running).unwrap();
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    assert!(server::is_free(&stale).unwrap() && !stale.exists());
    drop(UnixListener::bind(&stale).unwrap());
    let mut programs = Programs::in_folder(folder.path()).unwrap();
    programs.refresh().unwrap();
    assert!(!stale.exists() && running.exists() && folder.path().join("notes.txt").exists());
    let refused: Vec<String> = programs.refused().map(|(name, _)| name).collect();
    assert_eq!(refused, ["2.sock"], "a listener that never greets is told of");
}

#[test]
fn a_view_that_does_not_read_holds_nothing_up_and_nonsense_ends_its_connection() {
    let (folder, stream) = (private(), own_stream());
    let server = Server::open_in(folder.path(), Live::of(stream).unwrap()).unwrap();
    let _deaf = UnixStream::connect(server.path()).unwrap();
    for nonsense in [&[255; 8][..], &[4, 0, 0, 0, b'{', b'}', b'{', b'}'], &[2, 0, 0, 0, b'{', b'}']] {
        let mut other = UnixStream::connect(server.path()).unwrap();
        other.write_all(nonsense).unwrap();
        other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The greeting and a snapshot, and then the end.
        other.read_to_end(&mut Vec::new()).unwrap();
    }
    let connection = Connection::open(server.path()).unwrap();
    for run in 0..2_000 {
        begin(stream, run);
    }
    wait_until("the last run is seen", || connection.with_program(|program| program.run(1_999).is_some()));
}

#[test]
fn views_beyond_the_limit_are_refused() {
    let (folder, stream) = (private(), own_stream());
    let server = Server::open_in(folder.path(), Live::of(stream).unwrap()).unwrap();
    let views: Vec<Connection> = (0..MAX_VIEWS).map(|_| Connection::open(server.path()).unwrap()).collect();
    assert!(Connection::open(server.path()).is_err());
    drop(views);
    wait_until("a view fits again", || Connection::open(server.path()).is_ok());
}

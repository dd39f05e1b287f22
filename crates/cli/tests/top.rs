//! `evener top` and `--view` in a real terminal, which tmux provides.
#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Description, Device, DeviceKind, Kernel,
    backend::{Backend, Source},
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Closure, KernelParams, KernelTask, Pool, Report, RunError};
use evener_view::socket::Server;
use tempfile::TempDir;

/// The processor under another name, scheduled like a card.
#[derive(Debug)]
struct Renamed {
    description: Description,
    under: Arc<dyn Source>,
}

impl Source for Renamed {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> evener_device::Result<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> evener_device::Result<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }
}

fn card(id: &str) -> Device {
    let under = Device::cpu().source().clone();
    let mut description = Description { id: id.into(), ..under.describe().clone() };
    (description.kind, description.compute_units) = (DeviceKind::Discrete, Some(16));
    Device::from_source(Arc::new(Renamed { description, under }))
}

/// A kernel that sleeps for each item, so that the run lasts as long on a busy machine.
fn paced() -> KernelTask<u32, u32> {
    let kernel = Kernel::new("paced").reads::<u32>().writes::<u32>().params::<KernelParams>();
    KernelTask::new(&kernel.rust(|launch| {
        let count = launch.params::<KernelParams>()?.count;
        let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
        for (result, &item) in results.iter_mut().zip(items).take(count as usize) {
            *result = item.rotate_left(1);
        }
        thread::sleep(Duration::from_micros(20) * count);
        Ok(())
    }))
}

/// Where the program that is watched writes its report, and how many views it waits for.
const REPORT: &str = "EVENER_TEST_TOP_REPORT";
const VIEWS: &str = "EVENER_TEST_TOP_VIEWS";

/// The program that is watched: waits for views, runs with a device that is lost and comes back, writes its report, and then
/// runs until it is cancelled.
#[test]
#[ignore = "a program that other tests start"]
fn program_that_is_watched() {
    let Some(report) = std::env::var_os(REPORT).map(PathBuf::from) else { return };
    let views: usize = std::env::var(VIEWS).unwrap().parse().unwrap();
    let server = Server::open().unwrap();
    wait_for("the views", || (server.views() >= views).then_some(()));
    thread::sleep(Duration::from_millis(300));
    let (failing, faults) = Faults::wrap(&card("card:0"));
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1_200));
        // The canaries fail as well, so that the quarantine lasts long enough to be seen.
        let next = faults.operations() + 1;
        (next..next + 4).for_each(|operation| faults.at(operation, Fault::Fail(InjectedError::Lost)));
    });
    let pool = Pool::builder().devices([failing, card("card:1")]).keep_history_at(None).build().unwrap();
    let items: Vec<u32> = (0..700_000).collect();
    let run = pool.job(&paced()).all_devices().map(&items).unwrap();
    // Written whole before it is there.
    let part = report.with_extension("part");
    fs::write(&part, serde_json::to_string(run.report()).unwrap()).unwrap();
    fs::rename(&part, &report).unwrap();
    wait_for("the sign to go on", || report.with_extension("go").exists().then_some(()));
    let endless = Closure::new("endless", |_: &u32| thread::sleep(Duration::from_millis(2)));
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let ended = pool.job(&endless).deadline(Duration::from_secs(120)).for_each(&items);
    assert!(matches!(ended, Err(RunError::Cancelled { .. })), "{ended:?}");
}

fn wait_for<R>(what: &str, mut get: impl FnMut() -> Option<R>) -> R {
    let start = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Ends a program when the test ends, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A folder for sockets and a server of tmux of its own, which ends with the test.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Desk { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let socket = self.path("tmux");
        let mut command = Command::new("tmux");
        command.args(["-f", "/dev/null", "-u", "-S"]).arg(&socket).args(arguments);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").output().unwrap()
    }

    /// Starts a shell in a terminal of this size, which has printed a line.
    fn terminal(&self, name: &str, width: u16, height: u16) -> Screen<'_> {
        let (width, height) = (width.to_string(), height.to_string());
        let shell = format!(
            "env XDG_RUNTIME_DIR={} LC_ALL=C.UTF-8 EVENER_CACHE_DIR={} NO_COLOR= PS1='$ ' sh",
            self.folder.path().display(),
            env!("CARGO_TARGET_TMPDIR")
        );
        let output = self.tmux(&["new-session", "-d", "-s", name, "-x", &width, "-y", &height, &shell]);
        assert!(output.status.success(), "{}", common::stderr(&output));
        let screen = Screen { desk: self, name: name.into() };
        screen.type_line("echo be''fore");
        screen.wait_for_text("before");
        screen
    }

    /// Starts the program that is watched.
    fn program(&self, views: usize) -> Ended {
        let program = Command::new(std::env::current_exe().unwrap())
            .args(["program_that_is_watched", "--exact", "--ignored", "--nocapture"])
            .env(REPORT, self.path("report.json"))
            .env(VIEWS, views.to_string())
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .stdout(Stdio::null())
            .spawn();
        Ended(program.unwrap())
    }

    fn report(&self) -> Report {
        let text = wait_for("the report", || fs::read_to_string(self.path("report.json")).ok());
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// A terminal of tmux.
struct Screen<'a> {
    desk: &'a Desk,
    name: String,
}

impl Screen<'_> {
    fn keys(&self, keys: &[&str]) {
        let output = self.desk.tmux(&[&["send-keys", "-t", &self.name], keys].concat());
        assert!(output.status.success(), "{}", common::stderr(&output));
    }

    fn type_line(&self, line: &str) {
        self.keys(&["-l", line]);
        self.keys(&["Enter"]);
    }

    fn text(&self) -> String {
        let output = self.desk.tmux(&["capture-pane", "-p", "-t", &self.name]);
        common::stdout(&output).to_owned()
    }

    fn wait_for_text(&self, text: &str) -> String {
        wait_for(&format!("{text:?} on {}", self.name), || {
            Some(self.text()).filter(|screen| screen.contains(text))
        })
    }

    /// What tmux knows about the terminal.
    fn flag(&self, name: &str) -> String {
        let output = self.desk.tmux(&["display-message", "-p", "-t", &self.name, &format!("#{{{name}}}")]);
        common::stdout(&output).trim().to_owned()
    }

    fn start_top(&self, settings: &str) {
        self.type_line(&format!("{settings} {} top; echo ended $?", env!("CARGO_BIN_EXE_evener")));
        self.wait_for_text("DEVICE");
        assert_eq!((self.flag("alternate_on"), self.flag("cursor_flag")), ("1".into(), "0".into()));
    }

    /// Checks that the shell has its terminal back as it was.
    fn assert_restored(&self, what: &str) {
        self.wait_for_text("ended ");
        let screen =
            wait_for("the screen of before", || Some(self.text()).filter(|text| text.contains("before")));
        assert_eq!(
            (self.flag("alternate_on"), self.flag("cursor_flag")),
            ("0".into(), "1".into()),
            "{what}: {screen}"
        );
        self.type_line("stty -a; echo list''ed");
        let settings = self.wait_for_text("listed");
        for setting in ["echo", "icanon", "isig", "opost", "icrnl"] {
            assert!(settings.split_whitespace().any(|it| it == setting), "{what}: {setting}: {settings}");
        }
    }

    /// The process of `evener top` that this terminal's shell has started.
    fn pid_of_top(&self) -> String {
        let shell = self.flag("pane_pid");
        wait_for("the process of top", || {
            let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
            children.split_whitespace().next().map(str::to_owned)
        })
    }
}

/// The words of the row of a device, or of a run.
fn row<'a>(screen: &'a str, name: &str) -> Vec<&'a str> {
    let is_row = |line: &&str| {
        line.split_whitespace().take(4).any(|word| word == name) && line.starts_with([' ', '▾', '▸'])
    };
    let line = screen.lines().find(is_row).unwrap_or_else(|| panic!("no row of {name}: {screen}"));
    line.split_whitespace().collect()
}

#[test]
#[ignore = "needs tmux"]
fn with_tmux_the_screen_agrees_with_the_report_at_every_size() {
    let desk = Desk::new();
    let _program = desk.program(3);
    let sizes = [("small", 80, 24), ("middle", 120, 40), ("large", 200, 60)];
    let screens = sizes.map(|(name, width, height)| desk.terminal(name, width, height));
    screens.iter().for_each(|screen| screen.start_top(""));
    // While it runs: the quarantine, and its end.
    screens[0].wait_for_text("quarantined");
    let report = desk.report();
    assert!(report.devices[0].quarantines >= 1 && report.devices[0].state == "healthy", "{report}");
    let all: u64 = report.devices.iter().map(|device| device.items).sum();
    for (screen, (name, ..)) in screens.iter().zip(sizes) {
        let text = screen.wait_for_text(" done ");
        let run = row(&text, "paced");
        assert!(run.contains(&"100") && run.contains(&"done"), "{text}");
        let efficiency = format!("{:.2}", report.efficiency.unwrap());
        assert!(run.contains(&efficiency.as_str()), "{efficiency}: {text}");
        for device in &report.devices {
            let found = row(&text, &device.id);
            let share = format!("{:.0}", device.items as f64 / all as f64 * 100.0);
            assert_eq!(found[1..5].join(" "), format!("{} healthy {share} %", device.id), "{text}");
            // After the share: the rate with its unit, and then what is in hand, retries and rescues.
            let rate = found.iter().position(|word| word.ends_with("/s")).unwrap();
            let rescues = device.speculative + device.steals;
            let counters = [0, device.retries, rescues].map(|it| it.to_string());
            assert_eq!(found[rate + 1..rate + 4], counters, "{text}");
            if name != "small" {
                let chunks = device.chunks.to_string();
                assert!(device.chunks >= 1_000 || found.contains(&chunks.as_str()), "{chunks}: {text}");
            }
        }
        assert!(text.contains("is back") || name == "small", "{text}");
    }
    // The details of the device that failed have its counters in full.
    let screen = &screens[1];
    screen.keys(&["Down", "Enter"]);
    let text = screen.wait_for_text("Lanes");
    let device = &report.devices[0];
    let items = format!("{} in {} chunks", device.items, device.chunks);
    assert!(
        text.contains(&items) && text.contains(&format!("{}, of which", device.quarantines)),
        "{items}: {text}"
    );
    assert!(text.contains("last error"), "{text}");
    screen.keys(&["q"]);
    cancel_a_run(&desk, &screens[0]);
}

/// Cancels the second run of the program that is watched: not by an answer other than yes.
fn cancel_a_run(desk: &Desk, screen: &Screen<'_>) {
    fs::write(desk.path("report.go"), "").unwrap();
    screen.wait_for_text("endless");
    screen.keys(&["Home", "k"]);
    screen.wait_for_text("any other key: do not");
    screen.keys(&["n"]);
    screen.wait_for_text("not cancelled");
    screen.keys(&["F9"]);
    screen.wait_for_text("(endless)");
    screen.keys(&["y"]);
    screen.wait_for_text("cancel");
    // The program ends well only if its run was cancelled, and then is not listed any more.
    screen.wait_for_text("No Evener program can be seen");
    screen.keys(&["q"]);
    screen.assert_restored("q");
}

#[test]
#[ignore = "needs tmux"]
fn with_tmux_the_terminal_is_restored_after_keys_signals_and_a_panic() {
    let desk = Desk::new();
    for (name, key, status) in [("interrupt", "C-c", "ended 0"), ("quit", "F10", "ended 0")] {
        let screen = desk.terminal(name, 80, 24);
        screen.start_top("");
        screen.keys(&[key]);
        screen.wait_for_text(status);
        screen.assert_restored(key);
    }
    // Not SIGINT: the shell would not go on with the rest of its line.
    for (signal, status) in [("TERM", "ended 143"), ("HUP", "ended 129"), ("QUIT", "ended 131")] {
        let screen = desk.terminal(signal, 80, 24);
        screen.start_top("");
        let pid = screen.pid_of_top();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
        screen.wait_for_text(status);
        screen.assert_restored(signal);
    }
    let screen = desk.terminal("panic", 80, 24);
    screen.type_line(&format!(
        "EVENER_TEST_TOP_PANIC=2 RUST_BACKTRACE=0 {} top; echo ended $?",
        env!("CARGO_BIN_EXE_evener")
    ));
    if cfg!(debug_assertions) {
        screen.wait_for_text("asked for by EVENER_TEST_TOP_PANIC");
        screen.wait_for_text("ended 101");
    } else {
        // Only a build with checks can be made to panic.
        screen.keys(&["q"]);
    }
    screen.assert_restored("panic");
}

#[test]
#[ignore = "needs tmux"]
fn with_tmux_a_view_ends_with_its_terminal() {
    let desk = Desk::new();
    let screen = desk.terminal("gone", 80, 24);
    screen.start_top("");
    let process = PathBuf::from(format!("/proc/{}", screen.pid_of_top()));
    desk.tmux(&["kill-server"]);
    // It would read a terminal that is not there, and keep a core busy for ever.
    wait_for("the end of the view", || (!process.exists()).then_some(()));
}

#[test]
#[ignore = "needs tmux"]
fn with_tmux_a_suspended_view_gives_the_terminal_back_and_takes_it_again() {
    let desk = Desk::new();
    let screen = desk.terminal("suspend", 80, 24);
    // A shell that has jobs.
    screen.type_line("set -m");
    screen.start_top("");
    screen.keys(&["C-z"]);
    wait_for("the shell's screen", || (screen.flag("alternate_on") == "0").then_some(()));
    assert_eq!(screen.flag("cursor_flag"), "1");
    screen.type_line("fg");
    wait_for("the view's screen", || (screen.flag("alternate_on") == "1").then_some(()));
    screen.wait_for_text("UTILIZATION");
    assert!(screen.desk.tmux(&["resize-window", "-t", "suspend", "-x", "120", "-y", "40"]).status.success());
    screen.wait_for_text("F10 Quit  Tab Devices");
    screen.keys(&["q"]);
    screen.assert_restored("suspended");
}

#[test]
#[ignore = "needs tmux"]
fn with_tmux_the_view_of_a_command_shows_its_devices_and_makes_room_for_the_report() {
    let desk = Desk::new();
    let screen = desk.terminal("view", 100, 30);
    let command = "merkle --leaves 40000000 --devices 'cpu[1,1]' --view -v";
    screen.type_line(&format!("{} {command}; echo ended $?", env!("CARGO_BIN_EXE_evener")));
    let text = screen.wait_for_text("TREND");
    assert!(text.contains("PROGRESS") && text.contains("cpu/a"), "{text}");
    let text = screen.wait_for_text("ended 0");
    assert!(text.contains("an item is a block of") && !text.contains("TREND"), "{text}");
    assert_eq!(screen.flag("cursor_flag"), "1");
}

#[test]
fn without_a_terminal_one_look_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let top = |arguments: &[&str], runtime: &Path| {
        let mut command = common::evener();
        command.arg("top").args(arguments).env("XDG_RUNTIME_DIR", runtime).env("LC_ALL", "C");
        command.output().unwrap()
    };
    let output = top(&[], folder.path());
    let text = common::stdout(&output);
    assert!(output.status.success(), "{}", common::stderr(&output));
    assert!(text.contains("cpu") && text.contains("EVENER_VIEW=1") && text.is_ascii(), "{text}");
    let output = top(&["--json"], folder.path());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["programs"], serde_json::json!([]));
    assert!(json["devices"].as_array().unwrap().iter().any(|device| device["id"] == "cpu"), "{json}");
    assert_eq!(top(&["--interval", "0"], folder.path()).status.code(), Some(2));
}

#[test]
fn a_command_says_that_it_shows_no_view_without_a_terminal_and_leaves_its_output_alone() {
    let output = common::evener().args(["merkle", "--leaves", "1000", "--json", "--view"]).output().unwrap();
    assert!(output.status.success());
    assert!(serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok());
    assert!(common::stderr(&output).contains("--view shows nothing: standard error is not a terminal"));
}

#[test]
fn a_wrong_value_of_the_variable_for_views_is_an_error_of_use() {
    let output =
        common::evener().args(["merkle", "--leaves", "1000"]).env("EVENER_VIEW", "yes").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        common::stderr(&output).contains("EVENER_VIEW is \"yes\": set it to 1"),
        "{}",
        common::stderr(&output)
    );
}

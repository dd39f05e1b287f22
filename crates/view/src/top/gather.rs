//! Finds programs and reads hardware, on threads of their own: a program that does not answer holds up no frame.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use evener_device::Telemetry;
use evener_schedule::LeftOut;

use super::{model::Target, scene::Scene};
use crate::hardware::{DeviceHardware, Hardware};
#[cfg(unix)]
use crate::{
    socket::{Connection, Programs},
    top::scene::without_bars,
};

/// Time between two looks for new programs, and between two reads of the hardware's counters.
const FIND_EVERY: Duration = Duration::from_secs(1);

/// What the threads have found.
#[derive(Debug)]
pub(super) struct Gathering {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// The newest scene that was not taken yet.
    scene: Option<Scene>,
    messages: Vec<String>,
    #[cfg(unix)]
    connections: Vec<Arc<Connection>>,
    problems: Vec<String>,
    hardware: Vec<DeviceHardware>,
    has_looked: bool,
}

impl Shared {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathering {
    /// Starts the threads, which end when this is dropped.
    pub(super) fn begin(
        hardware: Hardware,
        absent: Vec<LeftOut>,
        interval: Duration,
    ) -> io::Result<Gathering> {
        let shared = Arc::new(Shared { found: Mutex::default() });
        let spawn = |name: &str, work: Box<dyn FnOnce(Weak<Shared>) + Send>| {
            let weak = Arc::downgrade(&shared);
            thread::Builder::new().name(name.into()).spawn(move || work(weak)).map(drop)
        };
        spawn("evener-find", Box::new(|shared| find(&shared)))?;
        spawn("evener-hardware", Box::new(move |shared| read_hardware(&shared, &hardware)))?;
        spawn("evener-gather", Box::new(move |shared| gather(&shared, &absent, interval)))?;
        Ok(Gathering { shared })
    }

    /// Takes the newest scene, if there is one, and what is to be told to the user.
    pub(super) fn take(&self) -> (Option<Scene>, Vec<String>) {
        let mut found = self.shared.found();
        (found.scene.take(), std::mem::take(&mut found.messages))
    }

    /// Asks a program to cancel a run. The answer comes as a message.
    #[cfg(unix)]
    pub(super) fn cancel(&self, target: Target) {
        let found = self.shared.found();
        let connection = found.connections.iter().find(|connection| connection.pid() == target.pid).cloned();
        drop(found);
        let weak = Arc::downgrade(&self.shared);
        let say = move |text: String| {
            if let Some(shared) = weak.upgrade() {
                shared.found().messages.push(text);
            }
        };
        let Target { pid, run } = target;
        let Some(connection) = connection else { return say(format!("process {pid} has ended")) };
        let ask = move || {
            say(match connection.cancel(run) {
                Ok(true) => format!("process {pid} cancels run {run}"),
                Ok(false) => format!("run {run} of process {pid} has ended already"),
                Err(error) => format!("run {run} of process {pid} could not be cancelled: {error}"),
            });
        };
        if let Err(error) = thread::Builder::new().name("evener-cancel".into()).spawn(ask) {
            self.shared.found().messages.push(format!("not cancelled: {error}"));
        }
    }

    /// Programs are found on Unix only, so that there is nothing to cancel.
    #[cfg(not(unix))]
    pub(super) fn cancel(&self, _: Target) {}
}

/// Looks for programs until nobody wants to know. A program that does not greet takes seconds.
#[cfg(unix)]
fn find(shared: &Weak<Shared>) {
    let mut programs = None;
    loop {
        let mut problems = Vec::new();
        if programs.is_none() {
            programs = Programs::of_user().map_err(|error| problems.push(error.to_string())).ok();
        }
        if let Some(programs) = &mut programs {
            if let Err(error) = programs.refresh() {
                problems.push(error.to_string());
            }
            problems.extend(programs.refused().map(|(name, why)| format!("{name}: {why}")));
        }
        let connections = programs.iter().flat_map(|programs| programs.connections().cloned()).collect();
        let Some(shared) = shared.upgrade() else { return };
        let mut found = shared.found();
        (found.connections, found.problems, found.has_looked) = (connections, problems, true);
        drop(found);
        drop(shared);
        thread::sleep(FIND_EVERY);
    }
}

/// Other systems have no sockets of programs.
#[cfg(not(unix))]
fn find(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade() {
        let mut found = shared.found();
        found.problems = vec!["programs can be seen on Linux only".into()];
        found.has_looked = true;
    }
}

fn read_hardware(shared: &Weak<Shared>, hardware: &Hardware) {
    // The first read has no utilization of a processor, but all the rest.
    let mut pause = Telemetry::UTILIZATION_WINDOW;
    loop {
        let read = hardware.read();
        let Some(shared) = shared.upgrade() else { return };
        shared.found().hardware = read;
        drop(shared);
        thread::sleep(std::mem::replace(&mut pause, FIND_EVERY));
    }
}

/// Makes a scene whenever something has changed.
fn gather(shared: &Weak<Shared>, absent: &[LeftOut], interval: Duration) {
    let mut seen = None;
    loop {
        let began = Instant::now();
        let Some(strong) = shared.upgrade() else { return };
        strong.look(absent, &mut seen);
        drop(strong);
        thread::sleep(interval.saturating_sub(began.elapsed()));
    }
}

/// What a scene was made from.
#[derive(Debug, PartialEq)]
struct Seen {
    programs: Vec<(u32, u64)>,
    hardware: Vec<DeviceHardware>,
    problems: Vec<String>,
}

impl Shared {
    fn look(&self, absent: &[LeftOut], seen: &mut Option<Seen>) {
        let found = self.found();
        if !found.has_looked {
            return;
        }
        let (hardware, problems) = (found.hardware.clone(), found.problems.clone());
        #[cfg(unix)]
        let connections = found.connections.clone();
        drop(found);
        #[cfg(unix)]
        let programs: Vec<(u32, u64)> = connections
            .iter()
            .filter(|connection| !connection.is_closed())
            .map(|connection| (connection.pid(), connection.with_program(|program| program.version)))
            .collect();
        #[cfg(not(unix))]
        let programs = Vec::new();
        let now = Seen { programs, hardware, problems };
        if seen.as_ref() == Some(&now) {
            return;
        }
        let scene = Scene {
            devices: now.hardware.clone(),
            absent: absent.to_vec(),
            #[cfg(unix)]
            programs: connections
                .iter()
                .filter(|connection| !connection.is_closed())
                .map(|connection| connection.with_program(without_bars))
                .collect(),
            #[cfg(not(unix))]
            programs: Vec::new(),
            problems: now.problems.clone(),
        };
        *seen = Some(now);
        self.found().scene = Some(scene);
    }
}

/// Looks once.
pub(super) fn once(hardware: &Hardware, absent: Vec<LeftOut>) -> Scene {
    #[cfg(unix)]
    let (programs, problems) = {
        let mut problems = Vec::new();
        let mut note = |error: crate::socket::SocketError| problems.push(error.to_string());
        let mut programs = Programs::of_user().map_err(&mut note).ok();
        if let Some(Err(error)) = programs.as_mut().map(Programs::refresh) {
            note(error);
        }
        let refused = programs.iter().flat_map(Programs::refused);
        problems.extend(refused.map(|(name, why)| format!("{name}: {why}")));
        let connections = programs.iter().flat_map(Programs::connections);
        (connections.map(|connection| connection.with_program(without_bars)).collect(), problems)
    };
    #[cfg(not(unix))]
    let (programs, problems) = (Vec::new(), vec!["programs can be seen on Linux only".to_owned()]);
    thread::sleep(Telemetry::UTILIZATION_WINDOW);
    Scene { devices: hardware.read(), absent, programs, problems }
}

//! Commands on other machines: started by the launchers of the crate `cluster`, with a socket to talk to each.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::IntoRawFd, unix::net::UnixStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use evener_cluster::{Hosts, Launched, Slurm, Ssh};
use evener_device::remote::{ReadPipe, WorkerHandle, WritePipe};
use pyo3::{
    exceptions::{PyConnectionError, PyOSError, PyValueError},
    prelude::*,
};

/// Bytes that are moved at once between a socket and a pipe.
const PIECE: usize = 1 << 18;

/// A machine, or a node of a cluster, on which one command is started.
#[pyclass(frozen, module = "evener._evener")]
pub(crate) struct Host(evener_cluster::Host);

#[pymethods]
impl Host {
    /// The name, for people.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Seconds that it has to answer.
    #[getter]
    fn timeout(&self) -> f64 {
        self.0.answer_timeout().as_secs_f64()
    }

    /// Starts the command. Raises ConnectionError with a reason for the user.
    fn launch(&self, py: Python<'_>) -> PyResult<Connection> {
        let launched = py.detach(|| self.0.launch()).map_err(|why| PyConnectionError::new_err(why.detail))?;
        Connection::new(launched)
            .map_err(|why| PyOSError::new_err(format!("{}: no socket: {why}", self.0.name())))
    }

    /// Whether it is still to come: SLURM has not allocated it yet.
    fn is_to_come(&self) -> bool {
        self.0.is_to_come()
    }

    /// Seconds until it is taken away, if that is known.
    fn seconds_left(&self) -> Option<f64> {
        let until = self.0.available_until()?;
        Some(until.saturating_duration_since(Instant::now()).as_secs_f64())
    }
}

/// A machine that `ssh` reaches, as `hosts.toml` says or by its name. `command` is a line for the shell there.
#[pyfunction]
pub(crate) fn ssh_host(
    name: &str,
    command: String,
    options: Vec<String>,
    setup: Vec<String>,
    timeout: Option<f64>,
) -> PyResult<Host> {
    let refuse = |why: evener_cluster::HostError| PyValueError::new_err(why.to_string());
    let hosts = Hosts::load().map_err(refuse)?.running(command.clone());
    let host = if options.is_empty() && setup.is_empty() {
        hosts.host(name).map_err(refuse)?
    } else if hosts.knows(name) {
        let text = format!("{name} is in hosts.toml: give its options there");
        return Err(PyValueError::new_err(text));
    } else {
        let mut ssh = Ssh::new(name).map_err(refuse)?.command(command);
        for option in options {
            ssh = ssh.option(option);
        }
        for line in setup {
            ssh = ssh.setup(line);
        }
        let short = name.rsplit('@').next().unwrap_or(name).split(':').next().unwrap_or(name);
        evener_cluster::Host::new(short, ssh).map_err(refuse)?
    };
    Ok(Host(match timeout {
        Some(timeout) => host.timeout(seconds(timeout)?),
        None => host,
    }))
}

/// The nodes of a SLURM request, or of the allocation that this process runs in. `command` is a line for the shell there.
#[pyfunction]
pub(crate) fn slurm_hosts(
    name: &str,
    request: &str,
    command: &str,
    options: Vec<String>,
    setup: Vec<String>,
) -> PyResult<Vec<Host>> {
    let mut slurm = Slurm::parse(request).map_err(PyValueError::new_err)?.command(["sh", "-c", command]);
    for option in options {
        slurm = slurm.option(option);
    }
    for line in setup {
        slurm = slurm.setup(line);
    }
    let hosts = slurm.hosts(name).map_err(|why| PyValueError::new_err(why.to_string()))?;
    Ok(hosts.into_iter().map(Host).collect())
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|it| !it.is_zero());
    duration
        .ok_or_else(|| PyValueError::new_err(format!("timeout={seconds}: it is a number of seconds above 0")))
}

/// A command that was started on a host. Two threads move bytes between its pipes and a socket.
#[pyclass(frozen, module = "evener._evener")]
pub(crate) struct Connection {
    socket: Mutex<Option<UnixStream>>,
    worker: Arc<dyn WorkerHandle>,
}

impl Connection {
    fn new(launched: Launched) -> io::Result<Self> {
        let Launched { from_worker, to_worker, worker } = launched;
        let connected = connect(from_worker, to_worker);
        if connected.is_err() {
            worker.end();
        }
        Ok(Connection { socket: Mutex::new(Some(connected?)), worker })
    }
}

#[pymethods]
impl Connection {
    /// Takes the socket's descriptor, which belongs to the caller from then on.
    fn take_socket(&self) -> PyResult<i32> {
        let taken = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let socket = taken.ok_or_else(|| PyValueError::new_err("the socket was taken already"))?;
        Ok(socket.into_raw_fd())
    }

    /// Why the command has ended, if that is known.
    fn last_words(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.worker.last_words())
    }

    /// Ends the command.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.worker.end());
    }
}

/// Returns the end of a socket through which the pipes are read and written.
fn connect(mut from: Box<dyn ReadPipe>, mut to: Box<dyn WritePipe>) -> io::Result<UnixStream> {
    let (near, far) = UnixStream::pair()?;
    let (mut reads, mut writes) = (far.try_clone()?, far);
    let inward = move || {
        // Either end may close at any time, which ends both directions.
        let _ = copy(&mut *from, &mut writes);
        let _ = writes.shutdown(Shutdown::Both);
    };
    let outward = move || {
        let _ = copy(&mut reads, &mut *to);
    };
    thread::Builder::new().name("evener-from-host".into()).spawn(inward)?;
    thread::Builder::new().name("evener-to-host".into()).spawn(outward)?;
    Ok(near)
}

fn copy(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(bytes) => to.write_all(&piece[..bytes])?,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}

/// Makes this process end with the session of `ssh` or SLURM that has started it.
#[pyfunction]
pub(crate) fn end_with_session() {
    evener_cluster::worker::end_with_session();
}

#[cfg(test)]
mod test {
    use evener_cluster::{Launcher, Process};

    use super::*;

    #[test]
    fn a_socket_carries_what_a_command_reads_and_writes_and_its_end() {
        let launched = Process::new("cat", [""; 0]).launch(Duration::from_secs(5)).unwrap();
        let connection = Connection::new(launched).unwrap();
        let mut socket = connection.socket.lock().unwrap().take().unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut writer = socket.try_clone().unwrap();
        let sent = data.clone();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut back = vec![0; data.len()];
        socket.read_exact(&mut back).unwrap();
        writing.join().unwrap();
        assert!(back == data);
        connection.worker.end();
        assert_eq!(socket.read(&mut back).unwrap(), 0);
    }
}

//! The server: an address, and the thread that answers there.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    access::{Access, Token},
    answer::Answers,
    connection::{Connections, Limited},
    counters::{Counters, Read},
    limits::{ACCEPT_TIME, HEAD_LIMIT, MAX_ACCEPTED, MAX_HEAD, MAX_HEADERS, SEND_BUFFER},
    source::Source,
};
use crate::hardware::Hardware;

/// Where a server listens, and who may look.
#[derive(Debug, Clone)]
pub struct Options {
    address: SocketAddr,
    names: Vec<String>,
    token: Option<Token>,
}

impl Options {
    /// A server on this address; port 0 is any that is free. An address that is not a loopback address requires a token, and
    /// has a random one unless [`token`](Self::token) sets another.
    pub fn new(address: SocketAddr) -> Options {
        Options { address, names: Vec::new(), token: None }
    }

    /// Answers requests to this host name too, for example that of a proxy.
    #[must_use]
    pub fn allow_host(mut self, name: &str) -> Options {
        self.names.push(name.into());
        self
    }

    /// Requires this token, also on a loopback address, which every user of the machine reaches.
    #[must_use]
    pub fn token(mut self, token: Token) -> Options {
        self.token = Some(token);
        self
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another program listens there.
    #[error("{0} is in use by another program: choose another port, or 0 for any that is free")]
    InUse(SocketAddr),
    /// This machine does not have the address.
    #[error(
        "{0} is not an address of this machine: use 127.0.0.1, or 0.0.0.0 for all addresses of this machine"
    )]
    NotHere(SocketAddr),
    /// The user may not use the port.
    #[error("this user may not listen on {0}: choose a port from 1024 on")]
    Forbidden(SocketAddr),
    /// Something else failed.
    #[error("cannot listen on {address}: {error}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
}

impl ServeError {
    fn of(address: SocketAddr, error: io::Error) -> ServeError {
        match error.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse(address),
            io::ErrorKind::AddrNotAvailable => ServeError::NotHere(address),
            io::ErrorKind::PermissionDenied => ServeError::Forbidden(address),
            _ => ServeError::Io { address, error },
        }
    }
}

/// A server, which answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    token: Option<Token>,
    connections: Arc<Connections>,
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on an address, and answers there on a thread of its own.
    pub fn open(options: &Options, source: Source) -> Result<Server, ServeError> {
        let make = || {
            // Discovery loads drivers, which count the cores that they may use.
            let hardware = evener_device::affinity::unbound(Hardware::discover);
            Box::new(move || hardware.read()) as Read
        };
        Server::open_with(options, source, make)
    }

    /// Listens on an address, with hardware of the caller's own.
    pub(super) fn open_with(
        options: &Options,
        source: Source,
        make: impl FnOnce() -> Read + Send + 'static,
    ) -> Result<Server, ServeError> {
        let asked = options.address;
        let failed = |error| ServeError::of(asked, error);
        let token = match &options.token {
            None if !options.address.ip().is_loopback() => Some(Token::random().map_err(failed)?),
            token => token.clone(),
        };
        let (closing, is_closing) = watch::channel(false);
        let connections = Arc::new(Connections::default());
        let counters = Counters::start(make).map_err(failed)?;
        let (tell, told) = mpsc::channel();
        let (open, options, needed) = (connections.clone(), options.clone(), token.clone());
        let serve = move || {
            evener_device::affinity::lower_priority();
            let answers = |address| {
                let access = Access::new(address, &options.names, needed.clone())?;
                Ok(Answers::new(access, source, counters, open.clone(), is_closing.clone()))
            };
            // The caller may be in a runtime of its own, so that this one lives on this thread only.
            let result = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            let result = result.and_then(|runtime| {
                let listener = runtime.block_on(async { listen(options.address) })?;
                let address = listener.local_addr()?;
                Ok((runtime, listener, address, answers(address)?))
            });
            let (runtime, listener, address, answers) = match result {
                Ok(begun) => begun,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let answers = Arc::new(answers);
            drop(tell.send(Ok(address)));
            let mut is_closing = is_closing.clone();
            runtime.block_on(async {
                tokio::select! {
                    () = accept(&listener, &answers, &open) => {}
                    _ = is_closing.wait_for(|it| *it) => {}
                }
            });
            open.close();
        };
        let start = || thread::Builder::new().name("evener-web".into()).spawn(serve);
        let thread = evener_device::affinity::unbound(start).map_err(failed)?;
        let address = told.recv().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")));
        let address = address.map_err(failed)?;
        Ok(Server { address, token, connections, closing, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token that a client must send, if one is required.
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The address to open in a browser, with the token if there is one.
    pub fn url(&self) -> String {
        let host = match self.address.ip() {
            IpAddr::V4(ip) if !ip.is_unspecified() => ip.to_string(),
            IpAddr::V6(ip) if !ip.is_unspecified() => format!("[{ip}]"),
            _ => super::source::host_name().unwrap_or_else(|| "localhost".into()),
        };
        let token = self.token.as_ref().map_or(String::new(), |token| format!("?token={}", token.secret()));
        format!("http://{host}:{}/{token}", self.address.port())
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    /// Connections that the system holds until they are accepted.
    const BACKLOG: u32 = 128;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a new server can begin where an old one has just ended. On Windows it would mean more than that.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections, but only so many in a time.
async fn accept(listener: &TcpListener, answers: &Arc<Answers>, open: &Arc<Connections>) {
    let (mut since, mut accepted) = (Instant::now(), 0);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => begin(stream, peer.ip().to_canonical(), answers, open),
            Err(error) => {
                // For example because the process has too many open files.
                tracing::debug!(%error, "a connection was not accepted");
                sleep(Duration::from_millis(50)).await;
            }
        }
        accepted += 1;
        if since.elapsed() >= ACCEPT_TIME {
            (since, accepted) = (Instant::now(), 0);
        } else if accepted >= MAX_ACCEPTED {
            sleep_until(since + ACCEPT_TIME).await;
        }
    }
}

/// Answers the requests of a connection, if there is a place for it.
fn begin(stream: TcpStream, peer: IpAddr, answers: &Arc<Answers>, open: &Arc<Connections>) {
    let Some(place) = open.take(peer) else {
        tracing::debug!(%peer, "a connection was refused: there are too many");
        return;
    };
    // An update is small, and is read at once.
    drop(stream.set_nodelay(true));
    let (number, place, answers) = (place.number(), Arc::new(place), answers.clone());
    let task = tokio::spawn(async move {
        let service = service_fn(|request| {
            let (answers, place) = (answers.clone(), place.clone());
            async move { Ok::<_, std::convert::Infallible>(answers.answer(&request, &place).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(Limited::new(stream)), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, %peer, "a connection has ended");
        }
    });
    open.set_abort(number, task.abort_handle());
}

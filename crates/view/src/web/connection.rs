//! Connections: how many there are, which of them wait, and how long a client may take to read.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::AbortHandle,
    time::{Sleep, sleep},
};

use super::limits::{MAX_CONNECTIONS, MAX_OF_PEER, MIN_TAKEN, WRITE_LIMIT};

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<Vec<Open>>,
    /// Connections so far: their numbers.
    so_far: AtomicUsize,
    /// Connections that were refused or closed for others.
    refused: AtomicUsize,
}

#[derive(Debug)]
struct Open {
    number: usize,
    peer: IpAddr,
    /// Requests that are being answered.
    busy: Arc<AtomicUsize>,
    /// Ends the connection, once its task is there.
    abort: Option<AbortHandle>,
}

/// An open connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Arc<Connections>,
    number: usize,
    busy: Arc<AtomicUsize>,
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<AtomicUsize>);

impl Connections {
    fn open(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection: a free one, or that of the connection which has waited longest for a request.
    /// `None` if all connections are being answered, or if the peer has too many.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let mut open = self.open();
        let is_waiting = |it: &&Open| it.busy.load(SeqCst) == 0;
        let of_peer = |it: &&Open| it.peer == peer;
        let mut oldest = None;
        // All users of this machine have the same loopback address, so it has no limit of its own.
        if !peer.is_loopback() && open.iter().filter(of_peer).count() >= MAX_OF_PEER {
            oldest = Some(open.iter().filter(of_peer).find(is_waiting).map(|it| it.number));
        } else if open.len() >= MAX_CONNECTIONS {
            oldest = Some(open.iter().find(is_waiting).map(|it| it.number));
        }
        if let Some(oldest) = oldest {
            self.refused.fetch_add(1, SeqCst);
            let oldest = oldest?;
            open.retain(|it| {
                if it.number == oldest
                    && let Some(abort) = &it.abort
                {
                    abort.abort();
                }
                it.number != oldest
            });
        }
        let number = self.so_far.fetch_add(1, SeqCst);
        let busy = Arc::new(AtomicUsize::new(0));
        open.push(Open { number, peer, busy: busy.clone(), abort: None });
        Some(Place { all: self.clone(), number, busy })
    }

    /// Tells how a connection is ended.
    pub(super) fn set_abort(&self, number: usize, abort: AbortHandle) {
        match self.open().iter_mut().find(|it| it.number == number) {
            Some(open) => open.abort = Some(abort),
            // It was closed for another one, or has ended already.
            None => abort.abort(),
        }
    }

    /// Number of open connections.
    pub(super) fn count(&self) -> usize {
        self.open().len()
    }

    /// Connections that were refused, or closed for others, so far.
    pub(super) fn refused(&self) -> usize {
        self.refused.load(SeqCst)
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.open().iter().filter_map(|it| it.abort.as_ref()).for_each(AbortHandle::abort);
    }
}

impl Place {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Says that a request is being answered.
    pub(super) fn busy(&self) -> Busy {
        self.busy.fetch_add(1, SeqCst);
        Busy(self.busy.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.open().retain(|it| it.number != self.number);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A connection that fails when its client does not read.
#[derive(Debug)]
pub(super) struct Limited {
    stream: TcpStream,
    /// Since the client has not taken all: when the connection fails, and what it has taken.
    blocked: Option<(Pin<Box<Sleep>>, usize)>,
}

impl Limited {
    pub(super) fn new(stream: TcpStream) -> Limited {
        Limited { stream, blocked: None }
    }

    /// Notes how a write went. A client that takes a little now and then must take enough.
    fn note(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match (&written, &mut self.blocked) {
            (Poll::Ready(Ok(count)), Some((_, taken))) => {
                *taken += count;
                if *taken >= MIN_TAKEN {
                    self.blocked = None;
                }
            }
            (Poll::Pending, blocked) => {
                let (sleep, _) = blocked.get_or_insert_with(|| (Box::pin(sleep(WRITE_LIMIT)), 0));
                if sleep.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            _ => {}
        }
        written
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes once it has written all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.blocked = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

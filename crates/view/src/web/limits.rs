//! What a client can take from the server, whatever it does.

use std::time::Duration;

/// Maximum open connections. Beyond it, the connection that has waited longest for a request is closed for a new one.
pub(super) const MAX_CONNECTIONS: usize = 128;
/// Maximum open connections of one address other than loopback.
pub(super) const MAX_OF_PEER: usize = 32;
/// Maximum pages that are sent updates at the same time.
pub(super) const MAX_STREAMS: usize = 32;
/// Maximum large answers (JSON, traces, metrics) that are being sent at the same time: each is held in memory.
pub(super) const MAX_LARGE: usize = 8;
/// Maximum length of a request's line and headers together, and their maximum number.
pub(super) const MAX_HEAD: usize = 16 << 10;
pub(super) const MAX_HEADERS: usize = 64;
/// Time in which the whole head of a request must arrive, also of the next one on the same connection.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time in which a client must take [`MIN_TAKEN`] bytes, or all that there is.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that a client must take in [`WRITE_LIMIT`].
pub(super) const MIN_TAKEN: usize = 16 << 10;
/// Bytes that the system buffers for a client which does not read.
pub(super) const SEND_BUFFER: u32 = 128 << 10;
/// Connections that are accepted in [`ACCEPT_TIME`]. More of them wait.
pub(super) const MAX_ACCEPTED: u32 = 50;
pub(super) const ACCEPT_TIME: Duration = Duration::from_millis(100);
/// Requests a second that are answered with data, and how many may come at once.
pub(super) const ANSWERS_PER_SECOND: f64 = 100.0;
pub(super) const ANSWERS_AT_ONCE: f64 = 200.0;
/// Time between two updates of a page.
pub(super) const UPDATE_EVERY: Duration = Duration::from_millis(100);
/// Time between two readings of the hardware's counters.
pub(super) const HARDWARE_EVERY: Duration = Duration::from_secs(1);
/// Time after which a page is sent a comment, if nothing else: a proxy may close a connection that is silent.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long an answer waits for the first reading of the hardware's counters.
pub(super) const WAIT_FOR_HARDWARE: Duration = Duration::from_secs(2);

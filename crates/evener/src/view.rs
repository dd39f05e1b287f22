//! What every device does now: for views in this process, for `evener top`, and as a web page.
//!
//! With the feature `serve`, a program serves the page and the metrics of its own runs:
//!
#![cfg_attr(feature = "serve", doc = "```")]
#![cfg_attr(not(feature = "serve"), doc = "```ignore")]
//! use evener::prelude::*;
//!
//! let pool = Pool::new([Device::cpu()])?;
//! let server = pool.serve("127.0.0.1:0".parse()?)?; // "127.0.0.1:9200" for a fixed port
//! println!("open {}", server.url());
//! let run = pool.map(&Closure::new("square", |&number: &u64| number * number), &[1, 2, 3])?;
//! assert_eq!(run.results(), [1, 4, 9]);
//! drop(server); // ends it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use evener_view::*;

#[cfg(feature = "serve")]
use self::web::{Options, ServeError, Server, Source};

/// Serves the live view of a program over HTTP: `pool.serve(address)`.
///
/// The page shows all runs of the process, of whatever pool, from the moment at which the server begins. The server answers
/// until it is dropped. On an address that other machines reach, a random token is required, which is in
/// [`Server::url`](web::Server::url). [`web::Server::open`] has more options.
#[cfg(feature = "serve")]
pub trait Serve {
    /// Serves the live view on an address; port 0 is any that is free.
    fn serve(&self, address: std::net::SocketAddr) -> Result<Server, ServeError>;
}

#[cfg(feature = "serve")]
impl Serve for crate::Pool {
    fn serve(&self, address: std::net::SocketAddr) -> Result<Server, ServeError> {
        let live = Live::of_process().map_err(|error| ServeError::Io { address, error })?;
        Server::open(&Options::new(address), Source::Process(live))
    }
}

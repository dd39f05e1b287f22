//! `evener serve`, and `--serve` of the commands that run something: the live view in a browser, and metrics.

use std::{
    fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};
use clap::Args;
use evener_view::{
    Live,
    web::{Options, Server, Source, Token},
};

use crate::{
    UsageError,
    output::{display_path, write_out, write_stderr},
    verbosity::Verbosity,
};

/// The port that is used if none is named.
const PORT: u16 = 9200;

/// Serve a web page and metrics of all running Evener programs of this user
///
/// The page shows the runs of each program as they go on: every device's lane with its chunks, throughput, shares,
/// efficiency, failures, and the decisions in words. Programs are found if they run with EVENER_VIEW=1. To see one command
/// only, use its option --serve.
///
/// Runs until Ctrl-C. With -q, prints only the address.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Listen on this address: IP:PORT, PORT on this machine alone, or 0.0.0.0:PORT for other machines too
    ///
    /// Port 0 is any that is free. Every user of this machine can open an address that begins with 127; any other address
    /// requires a token, which is in the printed address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9200", value_parser = parse_address)]
    listen: SocketAddr,

    /// Answer requests to this host name too, such as that of a proxy; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Require the token in this file, also on this machine
    ///
    /// At least 22 letters, digits, '-', '_' or '.', as `openssl rand -hex 32` makes them. The default is a random token for
    /// addresses that other machines reach, and none for others.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  EVENER_VIEW=1 evener merkle FILE
      run something that can be found
  evener serve
      show it, and all others, at http://127.0.0.1:9200
  evener serve --listen 0.0.0.0:9200
      the same for other machines, with a token
  ssh -L 9200:127.0.0.1:9200 HOST
      open the page of another machine at http://127.0.0.1:9200 safely

Paths:
  /               the page
  /metrics        metrics for Prometheus
  /api/runs       runs, their devices and reports as JSON
  /api/devices    utilization, memory, temperature and power as JSON
  /api/trace      ?pid=PROCESS&run=NUMBER: the last chunks of a run, for Perfetto
  /api/report     ?pid=PROCESS&run=NUMBER: the report of a run that has ended
  /events         what the page is sent: server-sent events
  /healthz        \"ok\"";

/// The options of every command that runs something.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServeOptions {
    /// Serve a web page and metrics of this command, while it runs: IP:PORT, or PORT on this machine alone
    ///
    /// The server ends with the command, unless --keep-serving is given. See `evener help serve` for what it serves, and for
    /// a server of all running commands.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    serve: Option<SocketAddr>,

    /// After the run, go on serving until Ctrl-C
    #[arg(long, requires = "serve", hide_short_help = true)]
    keep_serving: bool,

    /// Answer requests to this host name too; may be repeated
    #[arg(long, value_name = "NAME", requires = "serve", hide_short_help = true)]
    allow_host: Vec<String>,

    /// Require the token in this file
    #[arg(long, value_name = "FILE", requires = "serve", hide_short_help = true)]
    token_file: Option<PathBuf>,
}

/// Servers that go on after their run.
static KEPT: Mutex<Vec<Server>> = Mutex::new(Vec::new());

/// A server of this command's runs, until it is dropped or kept.
#[derive(Debug)]
pub(crate) struct Serving {
    server: Server,
    is_kept: bool,
}

impl ServeOptions {
    /// Begins to serve, if it was asked for, and prints the address to standard error.
    pub(crate) fn begin(&self, verbosity: Verbosity) -> Result<Option<Serving>> {
        let Some(address) = self.serve else { return Ok(None) };
        let source = Source::Process(Live::of_process()?);
        let server = open(address, &self.allow_host, self.token_file.as_deref(), source)?;
        // Without the address, a token could not be known.
        if !verbosity.is_quiet() || (server.token().is_some() && self.token_file.is_none()) {
            write_stderr(&format!("serving at {}\n", shown_url(&server, self.token_file.is_some())));
        }
        Ok(Some(Serving { server, is_kept: self.keep_serving }))
    }
}

impl Serving {
    /// Ends the server, or keeps it for [`wait_for_kept`].
    pub(crate) fn finish(self) {
        if self.is_kept {
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(self.server);
        }
    }
}

/// Waits for Ctrl-C, if there are servers that go on after their run.
pub(crate) fn wait_for_kept(verbosity: Verbosity) -> Result<()> {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(server) = kept.last() {
        if !verbosity.is_quiet() {
            write_stderr(&format!("still serving on {}: press Ctrl-C to end\n", server.address()));
        }
        wait_for_end()?;
    }
    Ok(())
}

/// Runs the command.
#[cfg(unix)]
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let programs = evener_view::socket::Programs::of_user()?;
    let source = Source::user(programs).context("no thread to look for programs")?;
    let Arguments { listen, allow_host, token_file } = arguments;
    let server = open(listen, &allow_host, token_file.as_deref(), source)?;
    let url = shown_url(&server, token_file.is_some());
    if verbosity.is_quiet() {
        write_out(&format!("{url}\n"))?;
    } else {
        let token = match (server.token().is_some(), token_file) {
            (true, None) => "The token in the address is shown only now. It is not encrypted on its way.\n",
            (true, Some(_)) => "Add ?token=TOKEN to the address once, with the token of the file.\n",
            (false, _) => "",
        };
        write_out(&format!(
            "Serving at {url}\n{token}Shows programs that run with EVENER_VIEW=1. Press Ctrl-C to end.\n"
        ))?;
    }
    wait_for_end()
}

/// Programs are found through Unix sockets.
#[cfg(not(unix))]
pub(crate) fn run(_arguments: Arguments, _verbosity: Verbosity) -> Result<()> {
    anyhow::bail!(
        "programs can be found on Unix only: use the option --serve of the command that runs something"
    )
}

/// Maximum bytes of a token's file that are read.
const MAX_TOKEN: u64 = 4096;

fn open(address: SocketAddr, names: &[String], token_file: Option<&Path>, source: Source) -> Result<Server> {
    let mut options = Options::new(address);
    for name in names {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            let message =
                format!("--allow-host: {name:?} is not a host name: give it without http:// and port");
            return Err(UsageError(message).into());
        }
        options = options.allow_host(name);
    }
    if let Some(file) = token_file {
        let shown = display_path(file);
        // A token is short, and a special file may have no end.
        let mut text = String::new();
        let read = fs::File::open(file).and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text));
        read.with_context(|| format!("{shown}: cannot read the token"))?;
        let token = Token::new(text.trim()).map_err(|why| UsageError(format!("{shown}: {why}")))?;
        options = options.token(token);
    }
    Ok(Server::open(&options, source)?)
}

/// The address to open. A token from a file is known, and need not be in a terminal.
fn shown_url(server: &Server, is_token_known: bool) -> String {
    let url = server.url();
    match url.split_once('?') {
        Some((before, _)) if is_token_known => before.to_owned(),
        _ => url,
    }
}

/// An address: IP:PORT, HOST:PORT, or a port on this machine.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = port.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, PORT).into());
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        "expected IP:PORT such as 127.0.0.1:9200, or a port (0 to 65535), or the name of this machine and a port".into()
    })
}

/// Waits until somebody ends the command by Ctrl-C or SIGTERM.
fn wait_for_end() -> Result<()> {
    #[cfg(unix)]
    {
        use std::sync::{
            Arc,
            atomic::{AtomicBool, Ordering::SeqCst},
        };

        use signal_hook::consts::{SIGINT, SIGTERM};

        let is_ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, is_ended.clone())?;
        }
        while !is_ended.load(SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(())
    }
    // The system ends the process.
    #[cfg(not(unix))]
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_address_may_be_a_port_alone() {
        for (text, expected) in [
            ("9300", "127.0.0.1:9300"),
            (":0", "127.0.0.1:0"),
            ("0.0.0.0:9200", "0.0.0.0:9200"),
            ("127.0.0.1", "127.0.0.1:9200"),
            ("[::1]:9201", "[::1]:9201"),
            ("::1", "[::1]:9200"),
        ] {
            assert_eq!(parse_address(text).map(|it| it.to_string()), Ok(expected.into()), "{text}");
        }
        for text in ["", "99999", "127.0.0.1:x", "127.0.0.1:99999", "http://127.0.0.1:9200"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}

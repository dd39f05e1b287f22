//! The paths that there are.

use hyper::Uri;

/// What is asked for. The path must be exactly one of those that there are: nothing is decoded, and no file is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The page.
    Page,
    /// Its updates.
    Events,
    /// The metrics.
    Metrics,
    /// All runs.
    Runs,
    /// The hardware's counters.
    Devices,
    /// Whether the server lives.
    Health,
    /// The trace of a run.
    Trace(RunOf),
    /// The report of a run that has ended.
    Report(RunOf),
}

/// A run of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunOf {
    /// The program's process id.
    pub(super) pid: u32,
    /// The run's number.
    pub(super) run: u64,
}

impl Route {
    /// The route of an address, if there is one.
    pub(super) fn of(uri: &Uri) -> Option<Route> {
        match uri.path() {
            "/" => Some(Route::Page),
            "/events" => Some(Route::Events),
            "/metrics" => Some(Route::Metrics),
            "/api/runs" => Some(Route::Runs),
            "/api/devices" => Some(Route::Devices),
            "/healthz" => Some(Route::Health),
            "/api/trace" => run_of(uri).map(Route::Trace),
            "/api/report" => run_of(uri).map(Route::Report),
            _ => None,
        }
    }

    /// Whether there is something at a path, with the right query.
    pub(super) fn is_known_path(path: &str) -> bool {
        matches!(path, "/api/trace" | "/api/report")
    }
}

/// The run of `?pid=P&run=R`, in either order.
fn run_of(uri: &Uri) -> Option<RunOf> {
    let (mut pid, mut run) = (None, None);
    for part in uri.query()?.split('&') {
        match part.split_once('=')? {
            ("pid", number) if pid.is_none() => pid = Some(number.parse().ok()?),
            ("run", number) if run.is_none() => run = Some(number.parse().ok()?),
            _ => return None,
        }
    }
    Some(RunOf { pid: pid?, run: run? })
}

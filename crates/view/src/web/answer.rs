//! Answers requests that may be answered.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{
        ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
        HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, VARY, WWW_AUTHENTICATE,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    access::{Access, Verdict},
    body::Body,
    connection::{Connections, Place},
    counters::Counters,
    events::Events,
    limits::{ANSWERS_AT_ONCE, ANSWERS_PER_SECOND, MAX_LARGE, MAX_STREAMS},
    metrics::{self, Format},
    page::{NO_CONTENT, Page},
    route::{Route, RunOf},
    source::{Source, host_name},
    trace::trace_of,
};
use crate::state::{Program, RunView};

/// What answers are made of.
#[derive(Debug)]
pub(super) struct Answers {
    access: Access,
    source: Source,
    counters: Counters,
    connections: Arc<Connections>,
    closing: watch::Receiver<bool>,
    page: Page,
    /// Places for pages, and for large answers.
    streams: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Answers that may be given at once, and when that was reckoned.
    budget: Mutex<(f64, Instant)>,
}

/// Text, JSON, and what the page is.
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

impl Answers {
    pub(super) fn new(
        access: Access,
        source: Source,
        counters: Counters,
        connections: Arc<Connections>,
        closing: watch::Receiver<bool>,
    ) -> Answers {
        Answers {
            access,
            source,
            counters,
            connections,
            closing,
            page: Page::new(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            large: Arc::new(Semaphore::new(MAX_LARGE)),
            budget: Mutex::new((ANSWERS_AT_ONCE, Instant::now())),
        }
    }

    /// Answers a request of a connection.
    pub(super) async fn answer(&self, request: &Request<Incoming>, place: &Place) -> Response<Body> {
        let mut response = match self.access.decide(request.method(), request.uri(), request.headers()) {
            Verdict::Refuse { status, why } => refusal(status, why),
            Verdict::SetCookie => self.with_cookie(),
            Verdict::Answer(Route::Health) => closing(text(StatusCode::OK, TEXT, "ok\n")),
            Verdict::Answer(_) if !self.may_answer() => {
                busy(StatusCode::TOO_MANY_REQUESTS, "too many requests: try again in a second")
            }
            Verdict::Answer(route) => {
                let (busy, is_head) = (place.busy(), request.method() == Method::HEAD);
                self.route(route, request.headers(), is_head).await.map(|body| body.keeping(busy))
            }
        };
        for (name, value) in HEADERS {
            // A page brings its own policy.
            response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
        }
        response
    }

    /// Whether there is time for one more answer: whoever asks without end must not take it from the run.
    fn may_answer(&self) -> bool {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = *budget;
        let left = (left + since.elapsed().as_secs_f64() * ANSWERS_PER_SECOND).min(ANSWERS_AT_ONCE);
        *budget = (if left >= 1.0 { left - 1.0 } else { left }, Instant::now());
        left >= 1.0
    }

    async fn route(&self, route: Route, headers: &HeaderMap, is_head: bool) -> Response<Body> {
        let places = match route {
            Route::Page | Route::Health => None,
            Route::Events if is_head => None,
            Route::Events => Some(&self.streams),
            Route::Metrics | Route::Runs | Route::Devices | Route::Trace(_) | Route::Report(_) => {
                Some(&self.large)
            }
        };
        let place = match places.map(|places| places.clone().try_acquire_owned()) {
            None => None,
            Some(Ok(place)) => Some(place),
            Some(Err(_)) => {
                return busy(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many clients: close a page, or try again later",
                );
            }
        };
        let response = match route {
            Route::Page => self.page(),
            Route::Health => text(StatusCode::OK, TEXT, "ok\n"),
            Route::Events if is_head => text(StatusCode::OK, "text/event-stream", ""),
            Route::Events => self.events(),
            Route::Metrics => self.metrics(headers).await,
            Route::Runs => self.runs(),
            Route::Devices => {
                let devices = self.counters.recent().await.devices;
                json_of(&json!({ "host": host_name(), "devices": *devices }))
            }
            Route::Trace(of) => self.trace(of),
            Route::Report(of) => self.report(of),
        };
        match place {
            Some(place) => response.map(|body| body.holding(place)),
            None => response,
        }
    }

    fn page(&self) -> Response<Body> {
        let mut response = text(StatusCode::OK, HTML, "").map(|_| Body::text(self.page.html.clone()));
        if let Ok(policy) = HeaderValue::from_str(&self.page.policy) {
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }

    /// Gives the browser the cookie, and sends it to the page.
    ///
    /// It is not a redirection: a browser that came here by a link from another site would follow it without a cookie that
    /// is for the same site only.
    fn with_cookie(&self) -> Response<Body> {
        const HERE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Evener</title>\
            <meta http-equiv=\"refresh\" content=\"0;url=/\"><a href=\"/\">To the page</a></html>\n";
        let mut response = text(StatusCode::OK, HTML, HERE);
        let secret = self.access.session().map_or("", |session| session.secret());
        let cookie = format!("{}={secret}; HttpOnly; SameSite=Strict; Path=/", self.access.cookie_name());
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response
    }

    fn events(&self) -> Response<Body> {
        let events = Events::new(self.source.clone(), self.counters.clone(), self.closing.clone());
        text(StatusCode::OK, "text/event-stream", "").map(|_| Body::events(events))
    }

    async fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        let accepts =
            |it: &HeaderValue| it.to_str().is_ok_and(|it| it.contains("application/openmetrics-text"));
        let is_open = headers.get_all(ACCEPT).iter().any(accepts);
        let format = if is_open { Format::OpenMetrics } else { Format::Prometheus };
        let hardware = self.counters.recent().await.devices;
        let mut all = metrics::Metrics::default();
        for pid in self.source.pids() {
            self.source.with_program(pid, |program| all.add_program(program));
        }
        all.add_hardware(&hardware);
        all.add_server(self.connections.count(), self.connections.refused());
        let mut response = text(StatusCode::OK, format.content_type(), all.to_text(format));
        response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
        response
    }

    /// All runs, without the chunks of their lanes.
    fn runs(&self) -> Response<Body> {
        let pids = self.source.pids();
        let programs: Vec<Value> =
            pids.into_iter().filter_map(|pid| self.source.with_program(pid, program_json)).collect();
        json_of(&json!({ "programs": programs }))
    }

    fn trace(&self, RunOf { pid, run }: RunOf) -> Response<Body> {
        let trace = self.source.with_program(pid, |program| program.run(run).map(trace_of));
        match trace.flatten() {
            Some(trace) => download(&trace, &format!("evener-{pid}-{run}.trace.json")),
            None => refusal(
                StatusCode::NOT_FOUND,
                "there is no such run, or it ended before the last few, whose chunks are kept",
            ),
        }
    }

    fn report(&self, RunOf { pid, run }: RunOf) -> Response<Body> {
        let report = self.source.with_program(pid, |program| {
            let past = program.past.iter().find(|past| past.summary.id == run)?;
            Some(json!({ "summary": past.summary, "report": past.report }))
        });
        match report.flatten() {
            Some(report) => download(&report, &format!("evener-{pid}-{run}.report.json")),
            None => refusal(
                StatusCode::NOT_FOUND,
                "there is no such run, or it has not ended, or it ended before the last few that are kept",
            ),
        }
    }
}

/// What every answer says.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, NO_CONTENT),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

fn text(status: StatusCode, kind: &'static str, text: impl Into<hyper::body::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::text(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Closes the connection after the answer: what needs no token is bounded by the number of new connections.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn refusal(status: StatusCode, why: &'static str) -> Response<Body> {
    let mut response = text(status, TEXT, format!("{why}\n"));
    let headers = response.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        _ => {}
    }
    // A client whose request is not answered may send what it likes after it, and would cost time without end.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn busy(status: StatusCode, why: &'static str) -> Response<Body> {
    let mut response = refusal(status, why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn json_of(value: &Value) -> Response<Body> {
    text(StatusCode::OK, JSON, format!("{value}\n"))
}

fn download(value: &Value, name: &str) -> Response<Body> {
    let mut response = json_of(value);
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        response.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    response
}

fn program_json(program: &Program) -> Value {
    let run = |run: &RunView| {
        let shares = run.shares();
        let devices = run.devices.iter().zip(shares);
        let devices: Vec<Value> = devices
            .map(|(device, share)| json!({ "id": device.id, "share": share, "totals": device.totals }))
            .collect();
        json!({ "summary": run.summary, "devices": devices, "left_out": run.left_out })
    };
    json!({
        "pid": program.pid,
        "name": program.name,
        "unix_s": program.unix_s,
        "lost_events": program.lost_events,
        "runs": program.runs.iter().map(run).collect::<Vec<_>>(),
        "past": program.past,
        "totals": program.totals,
    })
}

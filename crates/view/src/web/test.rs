//! What no request may bring about, tried with random requests and over real connections.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::LazyLock,
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_schedule::{Closure, Pool};
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::{
    access::{Access, Verdict},
    limits::{HEAD_LIMIT, MAX_CONNECTIONS, WRITE_LIMIT},
    route::{Route, RunOf},
    *,
};
use crate::Live;

/// SplitMix64, a random number generator.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const SECRET: &str = "a-secret-that-nobody-guesses";
/// The name of the task in whose run nobody without the token may look.
const TASK: &str = "confidential";

fn token() -> Token {
    Token::new(SECRET).unwrap()
}

/// A server with a token, on a program that has run something.
fn server(token: Option<Token>) -> Server {
    // One run for all tests, so that it is among the last few whose chunks are kept.
    static LIVE: LazyLock<Live> = LazyLock::new(|| {
        let live = Live::of_process().unwrap();
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        pool.map(&Closure::new(TASK, |&number: &u64| number * number), &[1, 2, 3]).unwrap();
        live.catch_up();
        live
    });
    let mut options = Options::new("127.0.0.1:0".parse().unwrap()).allow_host("evener.example");
    if let Some(token) = token {
        options = options.token(token);
    }
    Server::open_with(&options, Source::Process(LIVE.clone()), || Box::new(Vec::new)).unwrap()
}

/// Sends bytes, and reads what is answered until the server closes or nothing comes for a while.
fn send(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    // The server may close before it has read everything.
    drop(stream.write_all(bytes));
    read(&mut stream)
}

fn read(stream: &mut TcpStream) -> String {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while answer.len() < 1 << 20 {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answer to a request with these headers besides the host, which closes the connection.
fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    send(address, request.as_bytes())
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn access(token: Option<Token>) -> Access {
    Access::new("127.0.0.1:9200".parse().unwrap(), &["Evener.Example".into()], token).unwrap()
}

fn decide(access: &Access, method: &str, uri: &str, headers: &[(&str, &str)]) -> Verdict {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = hyper::header::HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, value.parse().unwrap());
    }
    decide_map(access, method, uri, &map)
}

fn decide_map(access: &Access, method: &str, uri: &str, headers: &HeaderMap) -> Verdict {
    let method: Method = method.parse().unwrap();
    access.decide(&method, &uri.parse::<Uri>().unwrap(), headers)
}

fn refused(verdict: &Verdict) -> Option<u16> {
    match verdict {
        Verdict::Refuse { status, .. } => Some(status.as_u16()),
        _ => None,
    }
}

#[test]
fn only_a_host_that_the_server_is_known_by_is_answered() {
    let access = access(None);
    let known = [
        "127.0.0.1:9200",
        "127.0.0.1",
        "127.9.9.9:1",
        "localhost:8080",
        "LOCALHOST",
        "[::1]:9200",
        "a.localhost",
        "evener.example:443",
    ];
    for host in known {
        assert_eq!(decide(&access, "GET", "/", &[("host", host)]), Verdict::Answer(Route::Page), "{host}");
    }
    let foreign = [
        "evil.example",
        "evil.example:9200",
        "127.0.0.1.evil.example",
        "10.0.0.1:9200",
        "localhost.evil",
        "",
        ":9200",
        "[::1",
        "127.0.0.1:x",
        "localhost:99999",
        "user@localhost",
        "2130706433",
        "0x7f.1",
    ];
    for host in foreign {
        assert_eq!(refused(&decide(&access, "GET", "/", &[("host", host)])), Some(421), "{host}");
    }
    assert_eq!(refused(&decide(&access, "GET", "/", &[])), Some(400));
    let two = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(refused(&decide(&access, "GET", "/", &two)), Some(400));
    let absolute = decide(&access, "GET", "http://evil.example/", &[("host", "localhost")]);
    assert_eq!(refused(&absolute), Some(421));
}

#[test]
fn a_server_that_others_reach_accepts_any_address_but_no_foreign_name() {
    let access = Access::new("0.0.0.0:9200".parse().unwrap(), &[], Some(token())).unwrap();
    let bearer = format!("Bearer {SECRET}");
    let ask = |host| decide(&access, "GET", "/", &[("host", host), ("authorization", &bearer)]);
    assert_eq!(ask("192.0.2.7:9200"), Verdict::Answer(Route::Page));
    assert_eq!(ask("[2001:db8::1]:9200"), Verdict::Answer(Route::Page));
    assert_eq!(refused(&ask("evil.example")), Some(421));
}

#[test]
fn methods_bodies_and_pages_of_other_sites_are_refused() {
    let access = access(None);
    let host = ("host", "localhost");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PATCH"] {
        assert_eq!(refused(&decide(&access, method, "/", &[host])), Some(405), "{method}");
    }
    assert_eq!(refused(&decide(&access, "GET", "/", &[host, ("content-length", "1000000000")])), Some(413));
    assert_eq!(refused(&decide(&access, "GET", "/", &[host, ("transfer-encoding", "chunked")])), Some(413));
    let foreign = ("sec-fetch-site", "cross-site");
    assert_eq!(refused(&decide(&access, "GET", "/events", &[host, foreign])), Some(403));
    assert_eq!(decide(&access, "GET", "/", &[host, foreign]), Verdict::Answer(Route::Page));
}

#[test]
fn a_path_is_exactly_one_of_those_that_there_are() {
    let access = access(None);
    let ask = |path: &str| decide(&access, "GET", path, &[("host", "localhost")]);
    let run = RunOf { pid: 1, run: 2 };
    assert_eq!(ask("/api/trace?run=2&pid=1"), Verdict::Answer(Route::Trace(run)));
    assert_eq!(ask("/api/report?pid=1&run=2"), Verdict::Answer(Route::Report(run)));
    for path in [
        "//",
        "/..",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/index.html",
        "/metrics/",
        "/./metrics",
        "/api",
        "/api/",
        "/%6detrics",
        "/METRICS",
        "/events/..",
        "/page/script.js",
        "*",
    ] {
        assert_eq!(refused(&ask(path)), Some(404), "{path}");
    }
    for query in [
        "",
        "?",
        "?pid=1",
        "?pid=1&run=-1",
        "?pid=1&run=2&run=3",
        "?pid=1&run=2&x=1",
        "?pid=1&run=../..",
        "?pid=99999999999&run=1",
    ] {
        assert_eq!(refused(&ask(&format!("/api/trace{query}"))), Some(400), "{query}");
    }
}

#[test]
fn a_token_is_required_where_it_is_set_and_only_the_right_one_counts() {
    let access = access(Some(token()));
    let ask =
        |path: &str, header: (&str, &str)| decide(&access, "GET", path, &[("host", "localhost"), header]);
    let bearer = format!("Bearer {SECRET}");
    assert_eq!(ask("/metrics", ("authorization", &bearer)), Verdict::Answer(Route::Metrics));
    let session = access.session().unwrap().secret();
    let cookie = format!("other=1; evener_9200={session}");
    assert_eq!(ask("/events", ("cookie", &cookie)), Verdict::Answer(Route::Events));
    assert_eq!(ask(&format!("/?token={SECRET}"), ("x", "y")), Verdict::SetCookie);
    assert_eq!(ask("/healthz", ("x", "y")), Verdict::Answer(Route::Health));
    let wrong = [
        ("authorization", "Bearer ".to_owned()),
        ("authorization", format!("Bearer {SECRET}x")),
        ("authorization", format!("Bearer {}", &SECRET[1..])),
        ("authorization", format!("Basic {SECRET}")),
        ("authorization", SECRET.to_owned()),
        ("cookie", format!("evener_9201={session}")),
        ("cookie", format!("evener_9200={session} x")),
        // Other servers of the machine see cookies, so the token is in none.
        ("cookie", format!("evener_9200={SECRET}")),
        ("cookie", "evener_9200=".to_owned()),
        ("x", SECRET.to_owned()),
    ];
    for (name, value) in &wrong {
        for path in ["/", "/events", "/metrics", "/api/runs", "/api/trace?pid=1&run=1", "/nothing"] {
            assert_eq!(refused(&ask(path, (name, value))), Some(401), "{path} {name}: {value}");
        }
    }
    // Only the page takes it from the address, so that it is not in the logs of a proxy again and again.
    assert_eq!(refused(&ask(&format!("/metrics?token={SECRET}"), ("x", "y"))), Some(401));
    assert_eq!(refused(&ask("/?token=wrong", ("x", "y"))), Some(401));
    assert!(!format!("{access:?}").contains(SECRET), "a secret does not belong into a log");
    assert!(Token::new("short").is_err() && Token::new("with a blank in it, and long").is_err());
    assert_ne!(Token::random().unwrap().secret(), Token::random().unwrap().secret());
}

/// Random requests, made of pieces that matter: whatever they are, data is answered only to who knows the token, under a name
/// that the server is known by, to a plain `GET` or `HEAD`.
#[test]
fn no_random_request_gets_data_without_the_token_or_with_a_foreign_host() {
    let access = access(Some(token()));
    let session = access.session().unwrap().secret();
    let (mut rng, mut answered) = (Rng(19), 0);
    for _ in 0..200_000 {
        let method = rng.one_of(&["GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "CONNECT"]);
        let secret = rng.one_of(&[SECRET, SECRET, "wrong", "", "a-secret-that-nobody-guesseS"]);
        let path = rng.one_of(&[
            "/",
            "/events",
            "/metrics",
            "/api/runs",
            "/api/devices",
            "/api/trace?pid=1&run=1",
            "/api/report?pid=1",
            "/healthz",
            "/x",
            "//",
            "/?token=",
        ]);
        let path = if path.ends_with("token=") { format!("{path}{secret}") } else { path.to_owned() };
        let mut headers = HeaderMap::new();
        let host = rng.one_of(&[
            "localhost",
            "127.0.0.1:9200",
            "evener.example",
            "evil.example",
            "localhost.evil.example",
            "[::1]",
            "[",
            "10.1.1.1",
        ]);
        let (mut knows, mut hosts, mut has_body, mut is_cross) = (false, 0, false, false);
        for _ in 0..rng.below(6) {
            let (name, value) = match rng.below(7) {
                0..3 => ("host", host.to_owned()),
                3 => {
                    ("authorization", format!("{} {secret}", rng.one_of(&["Bearer", "bearer", "Basic", ""])))
                }
                4 => (
                    "cookie",
                    format!(
                        "{}={}",
                        rng.one_of(&["evener_9200", "evener_1", "a=b; evener_9200"]),
                        if secret == SECRET { session } else { secret }
                    ),
                ),
                5 => ("content-length", rng.one_of(&["0", "1", "99999999999999999999"]).to_owned()),
                _ => ("sec-fetch-site", rng.one_of(&["cross-site", "same-origin", "none"]).to_owned()),
            };
            hosts += u32::from(name == "host");
            has_body |= name == "content-length" && value != "0";
            is_cross |= value == "cross-site";
            let lower = value.to_lowercase();
            knows |= name == "authorization" && lower.starts_with("bearer ") && secret == SECRET;
            knows |= name == "cookie" && value.ends_with(&format!("evener_9200={session}"));
            headers.append(name, value.parse().unwrap());
        }
        let verdict = decide_map(&access, method, &path, &headers);
        let is_ours = !["evil.example", "localhost.evil.example", "[", "10.1.1.1"].contains(&host);
        let may = hosts == 1 && is_ours && !has_body && ["GET", "HEAD"].contains(&method);
        match verdict {
            Verdict::Answer(Route::Health) => assert!(may),
            Verdict::Answer(route) => {
                assert!(may && knows && !(is_cross && route != Route::Page), "{method} {path} {headers:?}");
                answered += 1;
            }
            Verdict::SetCookie => assert!(may && path == format!("/?token={SECRET}")),
            Verdict::Refuse { .. } => {}
        }
    }
    assert!(answered > 500, "{answered}: the test asks for nothing that is allowed");
}

/// Random bytes, and requests with random changes, over real connections: the server goes on, and tells nothing.
#[test]
fn random_bytes_neither_stop_the_server_nor_get_data() {
    let server = server(Some(token()));
    let mut rng = Rng(7);
    for round in 0..300 {
        let path = rng.one_of(&["/", "/events", "/metrics", "/api/runs", "/api/devices"]);
        let mut bytes = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nCookie: evener_1=x\r\nConnection: close\r\n\r\n",
            rng.one_of(&["localhost", "evil.example"])
        )
        .into_bytes();
        for _ in 0..rng.below(12) {
            let at = rng.below(bytes.len());
            match rng.below(4) {
                0 => bytes[at] = rng.next() as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, rng.next() as u8),
                _ => {
                    let from = rng.below(bytes.len());
                    let part = bytes[from..(from + rng.below(20)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        if round % 5 == 0 {
            bytes = (0..rng.below(400)).map(|_| rng.next() as u8).collect();
        }
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(40))).unwrap();
        drop(stream.write_all(&bytes));
        let answer = read(&mut stream);
        assert!(!answer.contains(TASK) && !answer.contains("evener_run"), "{answer}\n{bytes:?}");
        assert!(!answer.starts_with("HTTP/1.1 200") || answer.ends_with("ok\n"), "{answer}");
    }
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    assert!(get(server.address(), "/api/runs", &bearer).contains(TASK), "the server still answers");
}

#[test]
fn the_page_the_api_and_the_metrics_are_answered_with_safe_headers() {
    let server = server(None);
    let address = server.address();
    let page = get(address, "/", "");
    assert_eq!(status(&page), 200, "{page}");
    let head = page.split("\r\n\r\n").next().unwrap().to_lowercase();
    for header in [
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "frame-ancestors 'none'",
    ] {
        assert!(head.contains(header), "{header} is not in {head}");
    }
    assert!(!head.contains("access-control"), "{head}");
    let runs = get(address, "/api/runs", "");
    assert!(runs.contains("application/json") && runs.contains(TASK), "{runs}");
    let body = runs.split("\r\n\r\n").nth(1).unwrap();
    let runs: serde_json::Value = serde_json::from_str(body).unwrap();
    let past = runs["programs"][0]["past"].as_array().unwrap();
    let run = past.iter().find(|run| run["summary"]["task"] == TASK).unwrap()["summary"]["id"].clone();
    let (pid, of) =
        (std::process::id(), |what: &str| format!("/api/{what}?pid={}&run={run}", std::process::id()));
    let report = get(address, &of("report"), "");
    assert!(report.contains("attachment; filename=\"evener-") && report.contains("\"wall_s\""), "{report}");
    let trace = get(address, &of("trace"), "");
    assert!(trace.contains("traceEvents") && trace.contains("\"missing\""), "{trace}");
    assert_eq!(status(&get(address, &format!("/api/trace?pid={pid}&run=999999"), "")), 404);
    assert_eq!(status(&get(address, "/api/trace?pid=1&run=1", "")), 404);
    assert!(get(address, "/healthz", "").ends_with("ok\n"));
    assert!(get(address, "/api/devices", "").contains("\"devices\""));
    let metrics =
        get(address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    assert!(metrics.contains("application/openmetrics-text; version=1.0.0") && metrics.ends_with("# EOF\n"));
    assert!(metrics.contains(&format!("task=\"{TASK}\"")), "{metrics}");
    let plain = get(address, "/metrics", "");
    assert!(plain.contains("text/plain; version=0.0.4") && !plain.contains("EOF"), "{plain}");
    let head = format!("HEAD /api/runs HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let head = send(address, head.as_bytes());
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn the_address_with_the_token_gives_a_cookie_that_opens_the_page() {
    let server = server(Some(token()));
    let address = server.address();
    assert_eq!(status(&get(address, "/", "")), 401);
    let url = server.url();
    let path = url.strip_prefix(&format!("http://{address}")).unwrap();
    let answer = get(address, path, "");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(status(&get(address, "/", &format!("Cookie: {cookie}\r\n"))), 200);
}

#[test]
fn events_begin_with_a_snapshot_and_go_on_with_what_has_changed() {
    let server = server(None);
    let events = get(server.address(), "/events", "");
    assert!(events.contains("content-type: text/event-stream"), "{events}");
    let order = ["event: hello\ndata: {\"version\":\"", "event: snapshot\ndata: {\"pid\":"];
    let places = order.map(|it| events.find(it).unwrap_or_else(|| panic!("{it} is not in {events}")));
    assert!(places[0] < places[1] && events.contains("event: hardware\ndata: []"), "{events}");
    // What happens while a page looks is a delta.
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let slow = Closure::new("slow-enough", |_: &u64| std::thread::sleep(Duration::from_millis(100)));
    std::thread::sleep(Duration::from_millis(300));
    pool.map(&slow, &[0; 6]).unwrap();
    let seen = read(&mut stream);
    assert!(seen.contains(&format!("event: delta\ndata: {{\"pid\":{}", std::process::id())), "{seen}");
    assert!(seen.contains("slow-enough"), "{seen}");
}

#[test]
fn an_address_that_cannot_be_used_is_said_in_words() {
    let server = server(None);
    let live = Live::of_process().unwrap();
    let open =
        |address: &str| Server::open(&Options::new(address.parse().unwrap()), Source::Process(live.clone()));
    let again = open(&server.address().to_string()).unwrap_err().to_string();
    assert!(again.contains("is in use by another program"), "{again}");
    let foreign = open("192.0.2.1:9200").unwrap_err().to_string();
    assert!(foreign.contains("not an address of this machine"), "{foreign}");
    drop(server);
}

#[test]
fn a_server_on_all_addresses_requires_a_random_token() {
    let live = Live::of_process().unwrap();
    let options = Options::new("0.0.0.0:0".parse().unwrap());
    let server = Server::open_with(&options, Source::Process(live), || Box::new(Vec::new)).unwrap();
    let secret = server.token().unwrap().secret().to_owned();
    assert!(secret.len() >= 43 && server.url().contains(&secret));
    let address = SocketAddr::from(([127, 0, 0, 1], server.address().port()));
    assert_eq!(status(&get(address, "/metrics", "")), 401);
    assert_eq!(status(&get(address, "/metrics", &format!("Authorization: Bearer {secret}\r\n"))), 200);
}

#[test]
fn a_thousand_connections_that_say_nothing_do_not_keep_others_out() {
    let server = server(None);
    let mut silent = Vec::new();
    for number in 0..1_000 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        if number % 2 == 0 {
            // The beginning of a request that never ends.
            drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: local"));
        }
        silent.push(stream);
        if number % 250 == 249 {
            let start = Instant::now();
            assert!(get(server.address(), "/healthz", "").ends_with("ok\n"), "after {number}");
            assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
            assert!(server.connections() <= MAX_CONNECTIONS);
        }
    }
}

#[test]
fn a_request_whose_headers_do_not_end_is_closed_in_time() {
    let server = server(None);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (start, mut buffer) = (Instant::now(), [0; 64]);
    let closed = loop {
        // One header a second half would keep a server that counts the time since the last byte.
        let is_sent = write!(stream, "X-{}: y\r\n", start.elapsed().as_millis()).is_ok();
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break true,
            Ok(_) if !is_sent => break true,
            Ok(_) => {}
        }
        if start.elapsed() > HEAD_LIMIT + Duration::from_secs(15) {
            break false;
        }
    };
    assert!(closed, "it was not closed");
}

#[test]
fn large_heads_and_bodies_are_refused_at_once() {
    let server = server(None);
    let address = server.address();
    let long = format!("X-Long: {}\r\n", "x".repeat(100_000));
    assert_eq!(status(&get(address, "/", &long)), 431);
    let many: String = (0..200).map(|number| format!("X-{number}: y\r\n")).collect();
    assert_eq!(status(&get(address, "/", &many)), 431);
    let uri = format!("/{}", "a".repeat(200_000));
    assert!([414, 431].contains(&status(&get(address, &uri, ""))));
    assert_eq!(status(&get(address, "/", "Content-Length: 1073741824\r\n")), 413);
    assert_eq!(status(&send(address, b"GET / HTTP/1.0\r\n\r\n")), 400);
    assert_eq!(StatusCode::PAYLOAD_TOO_LARGE.as_u16(), 413);
}

/// The memory of this process in bytes, where the system tells.
#[cfg(target_os = "linux")]
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Clients ask for more than they read: a byte a second each. Nothing is queued for them, and they are dropped.
#[cfg(target_os = "linux")]
#[test]
fn clients_that_read_a_byte_a_second_are_dropped_and_take_little_memory() {
    let server = server(None);
    let before = memory();
    // Many pages at once, so that the system's buffers are full soon.
    let requests = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(150);
    let mut slow: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(requests.as_bytes()).unwrap();
            stream
        })
        .collect();
    let (start, mut most) = (Instant::now(), 0);
    while server.connections() < slow.len() {
        assert!(start.elapsed() < Duration::from_secs(20), "{} are there", server.connections());
        std::thread::sleep(Duration::from_millis(1));
    }
    while server.connections() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} are still there", server.connections());
        for stream in &mut slow {
            drop(stream.read(&mut [0; 1]));
        }
        most = most.max(memory().saturating_sub(before));
        std::thread::sleep(Duration::from_secs(1));
    }
    // A client may have been blocked a moment before the clock began.
    assert!(
        start.elapsed() + Duration::from_secs(1) >= WRITE_LIMIT,
        "they were dropped before their time: {:?}",
        start.elapsed()
    );
    // 150 pages for each of 20 clients would be some hundred megabytes.
    assert!(most < 64 << 20, "{} MiB", most >> 20);
    assert!(get(server.address(), "/healthz", "").ends_with("ok\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_request_of_a_gigabyte_is_refused_after_its_first_bytes() {
    let server = server(None);
    let before = memory();
    for head in ["Content-Length: 1073741824\r\n", "Transfer-Encoding: chunked\r\n", "X-Long: "] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "POST / HTTP/1.1\r\nHost: localhost\r\n{head}").unwrap();
        if !head.starts_with("X-Long") {
            write!(stream, "\r\n").unwrap();
        }
        let (block, mut sent) = (vec![b'a'; 1 << 16], 0usize);
        while sent < 1 << 30 && stream.write_all(&block).is_ok() {
            sent += block.len();
        }
        assert!(sent < 64 << 20, "{head}: the server took {sent} bytes");
    }
    let more = memory().saturating_sub(before);
    assert!(more < 64 << 20, "{} MiB", more >> 20);
    assert!(get(server.address(), "/healthz", "").ends_with("ok\n"));
}

/// All attacks at once, on a server in whose process a run goes on: the run ends with every result, and pages are answered.
#[test]
fn a_run_goes_on_while_its_server_is_attacked() {
    let server = server(Some(token()));
    let address = server.address();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(3);
            let mut open = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let Ok(mut stream) = TcpStream::connect(address) else { continue };
                let attack = match rng.below(6) {
                    0 => "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    1 => "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                    2 => "GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: evener_1=wrong\r\n\r\n",
                    3 => "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\nxxxx",
                    4 => "GET / HTTP/1.1\r\nHost: loc",
                    _ => "",
                };
                drop(stream.write_all(attack.as_bytes()));
                if open.len() < 300 {
                    open.push(stream);
                }
            }
        });
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        let items: Vec<u64> = (0..20_000).collect();
        let work = Closure::new("attacked", |&item: &u64| {
            (0..2_000).fold(item, |hash, step| hash.rotate_left(7) ^ step)
        });
        let results = pool.map(&work, &items).unwrap();
        assert_eq!(results.results().len(), items.len());
        let bearer = format!("Authorization: Bearer {SECRET}\r\n");
        let answer = get(address, "/metrics", &bearer);
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(status(&answer), 200, "{answer}");
    });
}

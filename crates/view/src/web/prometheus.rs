//! A real Prometheus scrapes a real run, and its own tools check what they are given.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Description, Device, DeviceKind,
    backend::{Backend, Source as DeviceSource},
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Closure, KernelParams, KernelTask, Pool};
use serde_json::Value;

use super::*;
use crate::{Live, hardware::DeviceHardware};

/// The processor under another name, scheduled like a card.
#[derive(Debug)]
struct Renamed {
    description: Description,
    under: Arc<dyn DeviceSource>,
}

impl DeviceSource for Renamed {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> evener_device::Result<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> evener_device::Result<Vec<Arc<dyn DeviceSource>>> {
        self.under.split(sizes)
    }
}

fn card(id: &str) -> Device {
    let under = Device::cpu().source().clone();
    let mut description = Description { id: id.into(), ..under.describe().clone() };
    (description.kind, description.compute_units) = (DeviceKind::Discrete, Some(16));
    Device::from_source(Arc::new(Renamed { description, under }))
}

fn hash() -> KernelTask<u32, u32> {
    KernelTask::new(
        &evener_device::Kernel::new("hash").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(
            |launch| {
                let count = launch.params::<KernelParams>()?.count as usize;
                let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
                for (result, &item) in results[..count].iter_mut().zip(items) {
                    *result = (0..2_000)
                        .fold(item, |hash, step| hash.rotate_left(5).wrapping_mul(2_654_435_761) ^ step);
                }
                Ok(())
            },
        ),
    )
}

/// Ends a program when the test ends, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What a machine with a card would tell.
fn hardware() -> Vec<DeviceHardware> {
    vec![DeviceHardware {
        id: "cuda:0".into(),
        name: "card of a \"test\"".into(),
        kind: DeviceKind::Discrete,
        utilization: Some(0.75),
        memory_bytes: Some(1 << 34),
        memory_free_bytes: Some(1 << 33),
        temperature_celsius: Some(61.0),
        power_watts: Some(212.5),
    }]
}

/// The body of the answer to a request.
fn get(address: SocketAddr, path: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// The series that a query returns.
fn query(prometheus: SocketAddr, query: &str) -> Option<Vec<Value>> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer: Value =
        serde_json::from_str(&get(prometheus, &format!("/api/v1/query?query={escaped}"), "")?).ok()?;
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    answer["data"]["result"].as_array().cloned()
}

fn dashboards() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dashboards")
}

/// All queries of the dashboard, with the values that Grafana would put in.
fn queries_of_dashboard() -> Vec<String> {
    let text = fs::read_to_string(dashboards().join("evener.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "30s"))
        .map(|query| query.replace("$instance", ".*").replace("$program", ".*").replace("$task", ".*"))
        .collect();
    assert!(queries.len() > 25 && queries.iter().all(|query| !query.contains('$')), "{queries:#?}");
    queries
}

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}\n{input}");
    assert!(arguments != ["check", "metrics"] || said.is_empty(), "promtool: {said}");
}

/// Runs something until it is told to stop: a map with a device that fails and comes back, and a queue that is too slow.
fn work(stop: &AtomicBool) {
    let items: Vec<u32> = (0..300_000).collect();
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let queue = pool
        .queue(&Closure::new("service", |_: &u32| thread::sleep(Duration::from_millis(20))))
        .open()
        .unwrap();
    let handles: Vec<_> = (0..20_000).map(|piece| queue.submit(piece).unwrap()).collect();
    while !stop.load(SeqCst) {
        let (failing, faults) = Faults::wrap(&card("a:0"));
        faults.at(10, Fault::Fail(InjectedError::Lost));
        let pool = Pool::builder().devices([failing, card("b:0")]).keep_history_at(None).build().unwrap();
        pool.job(&hash()).all_devices().map(&items).unwrap();
    }
    drop(handles);
    std::process::exit(0);
}

/// The role of this test program that is started again.
const ADDRESS_FILE: &str = "EVENER_TEST_PROMETHEUS_ADDRESS";
const SECRET: &str = "a-token-that-prometheus-has";

#[test]
#[ignore = "a program that the other test starts"]
fn program_that_is_scraped() {
    let Some(file) = std::env::var_os(ADDRESS_FILE) else { return };
    let options = Options::new("127.0.0.1:0".parse().unwrap()).token(Token::new(SECRET).unwrap());
    let source = Source::Process(Live::of_process().unwrap());
    let server = Server::open_with(&options, source, || Box::new(hardware)).unwrap();
    fs::write(&file, server.address().to_string()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let ends = stop.clone();
    // The other test ends it; without that, it ends itself.
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(120));
        ends.store(true, SeqCst);
    });
    work(&stop);
}

#[test]
#[ignore = "needs Prometheus"]
fn with_prometheus_every_query_of_the_dashboard_returns_series_of_a_real_run() {
    promtool(&["check", "rules", dashboards().join("alerts.yml").to_str().unwrap()], "");
    promtool(&["test", "rules", dashboards().join("alerts.test.yml").to_str().unwrap()], "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address");
    let _program = Ended(
        Command::new(std::env::current_exe().unwrap())
            .args(["web::prometheus::program_that_is_scraped", "--exact", "--ignored"])
            .env(ADDRESS_FILE, &file)
            .spawn()
            .unwrap(),
    );
    let start = Instant::now();
    let address: SocketAddr = loop {
        if let Some(address) = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()) {
            break address;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the program does not start");
        thread::sleep(Duration::from_millis(20));
    };
    let scraped = TcpListener::bind("127.0.0.1:0").unwrap();
    let prometheus = scraped.local_addr().unwrap();
    drop(scraped);
    let configuration = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\nscrape_configs:\n  - job_name: evener\n    \
         authorization: {{ credentials: {SECRET} }}\n    static_configs: [{{ targets: ['{address}'] }}]\n",
        dashboards().join("alerts.yml").canonicalize().unwrap().display()
    );
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, configuration).unwrap();
    promtool(&["check", "config", file.to_str().unwrap()], "");
    let _prometheus = Ended(
        Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={prometheus}"))
            .arg("--log.level=error")
            .spawn()
            .unwrap(),
    );
    let mut missing = queries_of_dashboard();
    missing.push("up{job=\"evener\"} == 1".into());
    let start = Instant::now();
    while !missing.is_empty() {
        missing.retain(|it| query(prometheus, it).is_none_or(|series| series.is_empty()));
        if start.elapsed() > Duration::from_secs(90) {
            let target = get(prometheus, "/api/v1/targets", "");
            panic!("these queries return nothing: {missing:#?}\n{target:?}");
        }
        thread::sleep(Duration::from_millis(500));
    }
    // Prometheus refuses a scrape that is not OpenMetrics to the last line.
    let samples = query(prometheus, "scrape_samples_scraped").unwrap();
    let count: f64 = samples[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(count > 50.0, "{samples:?}");
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let text = get(address, "/metrics", &bearer).unwrap();
    assert!(
        text.contains("evener_device_quarantines_total{") && text.contains("card of a \\\"test\\\""),
        "{text}"
    );
    promtool(&["check", "metrics"], &text);
    println!("{count} samples a scrape; all queries had series after {:?}", start.elapsed());
}

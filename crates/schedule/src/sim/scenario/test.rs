use super::*;
use crate::sim::cost::Rng;

/// A scenario with every key that there is.
const WHOLE: &str = "\
about = 'every key'
items = 1000
bytes_per_item = 64
seed = 7
cost = { kind = 'heavy-tail', exponent = 2.5 }
[[device]]
id = 'gpu'
count = 3
rate = 1000.0
rate_up_to = 2000.0
utilization = 0.5
launch_s = 1e-5
copy_bytes_per_s = 1e9
link = { delay_s = 0.01, bytes_per_s = 2e9 }
jitter = 0.05
memory_items = 100
depth = 3
[[device]]
id = 'cpu'
rate = 10.0
[[event]]
at_s = 0.5
device = 'gpu-1'
what = 'slow'
factor = 2.0
[[event]]
at_s = 0.6
device = 'gpu-2'
what = 'lose-memory'
items = 10
[[event]]
at_s = 0.7
device = 'cpu'
what = 'die'
";

/// The scenario with one of its lines replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(WHOLE.contains(line), "{line}");
    WHOLE.replacen(line, replacement, 1)
}

/// Reads it, which must fail with an error that names the key and what is allowed.
fn assert_refused(text: &str, key: &str, allowed: &str) {
    match Scenario::from_toml(text) {
        Ok(scenario) => panic!("accepted: {scenario:?}"),
        Err(why) => assert!(why.contains(key) && why.contains(allowed), "no {key} and {allowed} in: {why}"),
    }
}

#[test]
fn every_key_can_be_used() {
    let scenario = Scenario::from_toml(WHOLE).unwrap();
    assert_eq!((scenario.items, scenario.devices.len(), scenario.events.len()), (1000, 2, 3));
    assert_eq!(scenario.names().collect::<Vec<_>>(), ["gpu-0", "gpu-1", "gpu-2", "cpu"]);
}

#[test]
fn a_number_outside_its_range_is_refused_with_the_range() {
    let above_zero = ["0.0", "-1.0", "nan", "-inf", "inf", "1e-300", "1e300"];
    let from_zero = ["-1e-9", "-1.0", "nan", "-inf", "inf", "1e300"];
    for (line, allowed, values) in [
        ("rate = 1000.0", "1e-6 to 1e15", &above_zero[..]),
        ("rate_up_to = 2000.0", "1000 to 1e15", &above_zero),
        ("rate_up_to = 2000.0", "1000 to 1e15", &["999.0"]),
        ("copy_bytes_per_s = 1e9", "1000 to 1e15", &above_zero),
        ("bytes_per_s = 2e9", "1000 to 1e15", &above_zero),
        ("delay_s = 0.01", "0 to 1000", &from_zero),
        ("delay_s = 0.01", "0 to 1000", &["1001.0"]),
        ("factor = 2.0", "1e-6 to 1e6", &above_zero),
        ("exponent = 2.5", "1.01 to 1000", &above_zero),
        ("exponent = 2.5", "1.01 to 1000", &["1.0"]),
        ("launch_s = 1e-5", "0 to 1e6", &from_zero),
        ("launch_s = 1e-5", "0 to 1e6", &["1e7"]),
        ("at_s = 0.5", "0 to 1e9", &from_zero),
        ("at_s = 0.5", "0 to 1e9", &["2e19", "1.1e9"]),
        ("jitter = 0.05", "0 to 0.99", &from_zero),
        ("jitter = 0.05", "0 to 0.99", &["1.0"]),
        ("utilization = 0.5", "0 to 1", &from_zero),
        ("utilization = 0.5", "0 to 1", &["1.1"]),
    ] {
        let key = line.split(' ').next().unwrap();
        for value in values {
            assert_refused(&with(line, &format!("{key} = {value}")), &format!("`{key}`"), allowed);
        }
    }
}

#[test]
fn a_whole_number_outside_its_range_is_refused_with_the_range() {
    let largest = u64::MAX.to_string();
    for (line, allowed, values) in [
        ("items = 1000", "1 to 100000000", ["0", "100_000_001", &largest]),
        ("bytes_per_item = 64", "0 to 1000000000", ["1_000_000_001", &largest, &largest]),
        ("count = 3", "1 to 100000", ["0", "100_001", &largest]),
        ("depth = 3", "1 to 1000", ["0", "1001", &largest]),
        ("memory_items = 100", "1 or more", ["0", "0", "0"]),
        ("items = 10\n", "1 or more", ["0", "0", "0"]),
    ] {
        let key = line.split(' ').next().unwrap();
        for value in values {
            assert_refused(&with(line, &format!("{key} = {value}\n")), &format!("`{key}`"), allowed);
        }
        // The TOML parser refuses a value that is no `u64`, and shows the line.
        for value in ["-1", "18446744073709551616", "1e20", "nan", "'many'"] {
            assert_refused(&with(line, &format!("{key} = {value}\n")), key, value);
        }
    }
    let constant = with("cost = { kind = 'heavy-tail', exponent = 2.5 }", "");
    let items = |number: &str| constant.replacen("items = 1000", &format!("items = {number}"), 1);
    assert!(Scenario::from_toml(&items("1_000_000_000")).is_ok());
    assert_refused(&items("1_000_000_001"), "`items`", "1 to 1000000000");
}

#[test]
fn devices_have_names_of_their_own_and_are_not_too_many() {
    assert_refused(&with("id = 'cpu'", "id = 'gpu-1'"), "`id`", "called `gpu-1`");
    assert_refused(&with("count = 3", "count = 1").replace("'cpu'", "'gpu'"), "`id`", "called `gpu`");
    assert_refused(&with("id = 'cpu'", "id = 'cpu'\ncount = 99_998"), "`device`", "1 to 100000");
    assert_refused("items = 1\ndevice = []", "`device`", "1 to 100000");
    assert_refused("items = 1", "`device`", "missing");
    let long = format!("id = '{}'", "a".repeat(101));
    for id in ["id = ''", "id = \"a\\nb\"", &long] {
        assert_refused(&with("id = 'cpu'", id), "`id`", "1 to 100 bytes");
    }
    assert_refused(&with("device = 'gpu-1'", "device = 'gpu'"), "`device`", "no such device");
}

#[test]
fn unknown_keys_and_kinds_are_refused() {
    assert_refused(&with("seed = 7", "seeds = 7"), "`seeds`", "`seed`");
    assert_refused(&with("depth = 3", "depths = 3"), "`depths`", "`depth`");
    assert_refused(&with("factor = 2.0", "factors = 2.0"), "`factors`", "`factor`");
    assert_refused(&with("'slow'", "'explode'"), "`explode`", "`hang`");
    assert_refused(&with("factor = 2.0", ""), "`slow`", "a `factor`");
    assert_refused(&with("'die'", "'die'\nitems = 4"), "`die`", "neither");
    let cost = "cost = { kind = 'heavy-tail', exponent = 2.5 }";
    assert_refused(&with(cost, "cost = { kind = 'steep' }"), "`steep`", "`ascending`");
    assert_refused(&with(cost, "cost = { kind = 'heavy-tail' }"), "`heavy-tail`", "an `exponent`");
    assert_refused(&with(cost, "cost = { kind = 'uniform', exponent = 2.0 }"), "`uniform`", "without");
    assert_refused(&with(cost, "cost = { kind = 'uniform', mean = 2.0 }"), "`mean`", "`exponent`");
}

#[test]
fn a_document_that_is_nested_too_deep_is_refused() {
    assert_refused(&format!("items = {}", "[".repeat(100_000)), "items", "recursion");
}

/// Asserts the ranges that the documentation states.
fn assert_within_ranges(scenario: &Scenario, text: &str) {
    let time =
        |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_else(|why| panic!("{why}: {text}"));
    let most = if scenario.cost == Cost::Constant { 1_000_000_000 } else { 100_000_000 };
    assert!((1..=most).contains(&scenario.items), "{text}");
    let bytes = scenario.items.checked_mul(scenario.bytes_per_item).unwrap();
    if let Cost::HeavyTail { exponent } = scenario.cost {
        assert!((1.01..=1000.0).contains(&exponent), "{text}");
    }
    let mut names: Vec<String> = scenario.names().collect();
    assert!((1..=100_000).contains(&names.len()), "{text}");
    names.sort();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{text}");
    for device in &scenario.devices {
        let rates = [Some(device.rate), device.rate_up_to];
        assert!(rates.into_iter().flatten().all(|rate| (1e-6..=1e15).contains(&rate)), "{text}");
        assert!(device.rate_up_to.is_none_or(|most| most >= device.rate), "{text}");
        assert!((0.0..=1.0).contains(&device.utilization) && (0.0..=0.99).contains(&device.jitter), "{text}");
        assert!((0.0..=1e6).contains(&device.launch_s), "{text}");
        assert!(device.memory_items != Some(0) && (1..=1000).contains(&device.depth), "{text}");
        assert!((1..=100).contains(&device.id.len()), "{text}");
        // All items on one device, one per chunk, a thousand times over.
        let work = scenario.items as f64 * (1.0 / device.rate + device.launch_s);
        let copies = device.copy_bytes_per_s.map_or(0.0, |rate| bytes as f64 / rate);
        assert!(device.copy_bytes_per_s.is_none_or(|rate| (1e3..=1e15).contains(&rate)), "{text}");
        time(1000.0 * work + 1000.0 * copies);
    }
    for event in &scenario.events {
        assert!(names.binary_search(&event.device).is_ok(), "{text}");
        assert!(time(event.at_s) <= Duration::from_secs(1_000_000_000), "{text}");
        match event.kind {
            EventKind::Slow { factor } => assert!((1e-6..=1e6).contains(&factor), "{text}"),
            EventKind::LoseMemory { items } => assert!(items > 0, "{text}"),
            EventKind::Hang | EventKind::Die | EventKind::Return => {}
        }
    }
}

impl Rng {
    fn under(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit.max(1)
    }

    fn pick<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.under(values.len())]
    }
}

const VALUES: [&str; 43] = [
    "0",
    "1",
    "2",
    "3",
    "10",
    "1000",
    "100000",
    "100001",
    "1_000_000_000",
    "1_000_000_001",
    "-1",
    "1.5",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "0.0",
    "-0.0",
    "0.5",
    "0.99",
    "1.0",
    "1.01",
    "1e-300",
    "1e-9",
    "1e-6",
    "1e3",
    "1e6",
    "1e9",
    "1e15",
    "2e19",
    "1e300",
    "nan",
    "inf",
    "-inf",
    "true",
    "[]",
    "{}",
    "'gpu'",
    "'gpu-1'",
    "''",
    "1979-05-27",
    "{ kind = 'ascending' }",
    "{ kind = 'clustered', part = 0.01, factor = 100.0, at = 0.5 }",
    "[[1]]",
];

/// Changes a scenario's text somewhere.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(Into::into).collect();
    let at = rng.under(lines.len());
    match rng.under(10) {
        // Half of the time, a key gets another value.
        0..=4 => {
            if let Some((key, _)) = lines[at].split_once('=') {
                lines[at] = format!("{key}= {}", rng.pick(&VALUES));
            }
        }
        5 => drop(lines.remove(at)),
        6 => lines.insert(at, WHOLE.lines().nth(rng.under(WHOLE.lines().count())).unwrap().into()),
        7 => {
            let other = rng.under(lines.len());
            lines.swap(at, other);
        }
        8 => {
            let kinds =
                ["'uniform'", "'ascending'", "'constant'", "'return'", "'hang'", "'slow'", "'lose-memory'"];
            let kind = rng.pick(&kinds);
            lines[at] = lines[at].replace("'heavy-tail', exponent = 2.5", kind).replace("'die'", kind);
        }
        _ => {
            let mut bytes = std::mem::take(&mut lines[at]).into_bytes();
            let index = rng.under(bytes.len() + 1);
            bytes.insert(index, b" =[]{}'\"\\#,.-+_0123456789aeinx\0\x7f"[rng.under(32)]);
            lines[at] = String::from_utf8_lossy(&bytes).into_owned();
        }
    }
    lines.join("\n")
}

#[test]
fn every_accepted_scenario_is_within_the_ranges() {
    let mut rng = Rng(0x5EED);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut text = WHOLE.to_owned();
        for _ in 0..=rng.under(3) {
            text = mutate(&text, &mut rng);
        }
        match Scenario::from_toml(&text) {
            Ok(scenario) => {
                assert_within_ranges(&scenario, &text);
                accepted += 1;
            }
            Err(why) => {
                assert!(!why.is_empty(), "{text}");
                refused += 1;
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

//! The rate of a run whose server is left alone, and of the same run while the server is attacked, turn by turn.
//!
//!     cargo bench -p evener-view --bench attacked --features web
//!
//! The attack, from another process: a thousand connections that say nothing or never end their headers and are opened again
//! when they are closed, pages that are read at a byte a second, requests of a gigabyte, wrong tokens, wrong hosts and
//! strange paths. What the attackers themselves compute is part of what the run loses: they use the same cores.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_schedule::{Closure, Pool};
use evener_view::{
    Live,
    web::{Options, Server, Source, Token},
};

const TURNS: usize = 15;
/// Tells this program that it is the attacker.
const ATTACK: &str = "EVENER_BENCH_ATTACK";
const SECRET: &str = "the-token-of-the-benchmark";

fn main() {
    if let Ok(address) = std::env::var(ATTACK) {
        return attack(address.parse().unwrap());
    }
    let options = Options::new("127.0.0.1:0".parse().unwrap()).token(Token::new(SECRET).unwrap());
    let server = Server::open(&options, Source::Process(Live::of_process().unwrap())).unwrap();
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let items: Vec<u64> = (0..400_000).collect();
    let work = Closure::new("work", |&item: &u64| {
        (0..4_000u64).fold(item, |hash, step| hash.rotate_left(7).wrapping_mul(0x9E37_79B9) ^ step)
    });
    let rate = || {
        let start = Instant::now();
        pool.map(&work, &items).unwrap();
        items.len() as f64 / start.elapsed().as_secs_f64()
    };
    println!("{} cores; {TURNS} turns of {} items", thread::available_parallelism().unwrap(), items.len());
    rate();
    let [mut alone, mut attacked] = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        alone.push(rate());
        let attacker = Ended(
            Command::new(std::env::current_exe().unwrap())
                .env(ATTACK, server.address().to_string())
                .spawn()
                .unwrap(),
        );
        thread::sleep(Duration::from_secs(3));
        let connections = server.connections();
        attacked.push(rate());
        drop(attacker);
        thread::sleep(Duration::from_millis(500));
        println!(
            "turn {turn}: {:.0} and {:.0} items/s, {connections} connections, ratio {:.4}",
            alone[turn],
            attacked[turn],
            attacked[turn] / alone[turn]
        );
    }
    let (alone, attacked) = (median(&mut alone), median(&mut attacked));
    println!("median: {alone:.0} items/s alone, {attacked:.0} attacked, ratio {:.4}", attacked / alone);
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn attack(address: SocketAddr) {
    thread::spawn(move || gigabyte(address));
    thread::spawn(move || refused(address));
    for _ in 0..8 {
        thread::spawn(move || slow(address));
    }
    // A thousand connections, of which some are opened again each second.
    let mut open: Vec<TcpStream> = Vec::new();
    loop {
        for _ in 0..50 {
            if let Ok(mut stream) = TcpStream::connect(address) {
                if open.len().is_multiple_of(2) {
                    drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: local"));
                }
                open.push(stream);
            }
        }
        let surplus = open.len().saturating_sub(1_000);
        drop(open.drain(..surplus));
        thread::sleep(Duration::from_millis(if open.len() < 1_000 { 100 } else { 1_000 }));
    }
}

/// Sends a gigabyte, again and again.
fn gigabyte(address: SocketAddr) {
    let block = vec![b'x'; 1 << 16];
    loop {
        if let Ok(mut stream) = TcpStream::connect(address) {
            drop(write!(stream, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n"));
            for _ in 0..(1 << 30) / block.len() {
                if stream.write_all(&block).is_err() {
                    break;
                }
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Sends requests that are refused.
fn refused(address: SocketAddr) {
    let requests = [
        "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ];
    for request in requests.iter().cycle() {
        if let Ok(mut stream) = TcpStream::connect(address) {
            drop(stream.write_all(request.as_bytes()));
            drop(stream.read(&mut [0; 1024]));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Opens the updates with the right token, and reads a byte a second.
fn slow(address: SocketAddr) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let head =
                format!("GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n\r\n");
            drop(stream.write_all(head.as_bytes()));
            while stream.read(&mut [0; 1]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_secs(1));
            }
        }
        thread::sleep(Duration::from_secs(1));
    }
}

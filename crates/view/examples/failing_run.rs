//! Serves a run in which a device fails and comes back: what the page shows of it is tested with this program.
//!
//! ```sh
//! cargo run -p evener-view --features web --example failing_run -- 127.0.0.1:9200
//! ```
//!
//! It waits until a page is open, runs for some seconds, prints the run's report as JSON, and ends with its standard input.
#![expect(clippy::print_stdout, reason = "the test of the page reads it")]

use std::{
    error::Error,
    io::Read,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Description, Device, DeviceKind, Kernel,
    backend::{Backend, Source as DeviceSource},
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{KernelParams, KernelTask, Pool};
use evener_view::{
    Live,
    web::{Options, Server, Source},
};

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

/// A kernel that sleeps for each item, so that the run lasts as long on a busy machine.
fn paced() -> KernelTask<u32, u32> {
    const PER_ITEM: Duration = Duration::from_micros(20);
    let kernel = Kernel::new("paced").reads::<u32>().writes::<u32>().params::<KernelParams>();
    KernelTask::new(&kernel.rust(|launch| {
        let count = launch.params::<KernelParams>()?.count;
        let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
        for (result, &item) in results.iter_mut().zip(items).take(count as usize) {
            *result = item.rotate_left(1);
        }
        thread::sleep(PER_ITEM * count);
        Ok(())
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:9200").parse()?;
    let server = Server::open(&Options::new(address), Source::Process(Live::of_process()?))?;
    println!("URL {}", server.url());
    while server.connections() == 0 {
        thread::sleep(Duration::from_millis(20));
    }
    // The page has its first events.
    thread::sleep(Duration::from_millis(500));

    let (failing, faults) = Faults::wrap(&card("card:0"));
    let (slow, slowness) = Faults::wrap(&card("card:2"));
    slowness.slow_down(2.5);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1_500));
        // The first canaries fail as well: each quarantine is twice as long as the one before, and the last one can be seen.
        let end = Instant::now() + Duration::from_millis(1_200);
        while Instant::now() < end {
            faults.at_next(Fault::Fail(InjectedError::Lost));
            thread::sleep(Duration::from_millis(5));
        }
    });
    let pool = Pool::builder().devices([failing, card("card:1"), slow]).keep_history_at(None).build()?;
    let items: Vec<u32> = (0..1_600_000).collect();
    let run = pool.job(&paced()).all_devices().map(&items)?;
    println!("REPORT {}", serde_json::to_string(run.report())?);

    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

//! Tables are on each device once, as long as they are needed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use evener_device::{Device, Kernel, testing::Faults};
use evener_schedule::{KernelParams, KernelTask, Pool};

use crate::common::{SHORT, card, cores, wait_until_idle, within, without_history};

/// A table that counts how often it is copied to a device.
#[derive(Clone)]
struct Counted(Arc<[u32]>, Arc<AtomicUsize>);

impl Counted {
    fn new(factor: u32) -> Counted {
        Counted((0..LEN as u32).map(|index| factor * index).collect(), Arc::default())
    }

    fn uploads(&self) -> usize {
        self.1.load(SeqCst)
    }
}

impl AsRef<[u32]> for Counted {
    fn as_ref(&self) -> &[u32] {
        self.1.fetch_add(1, SeqCst);
        &self.0
    }
}

const LEN: usize = 1 << 18;

fn look_up(table: &Counted) -> KernelTask<u32, u32> {
    let kernel =
        Kernel::new("look_up").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results, table) =
                (launch.read::<u32>(0)?, launch.write::<u32>(1)?, launch.read::<u32>(2)?);
            for (result, &item) in results[..count].iter_mut().zip(items) {
                *result = table[item as usize];
            }
            Ok(())
        });
    KernelTask::new(&kernel).table("factors", table.clone())
}

fn is_right(results: &[u32], factor: u32) -> bool {
    results.iter().enumerate().all(|(item, &result)| result == factor * (item % LEN) as u32)
}

fn used(pool: &Pool) -> u64 {
    pool.devices().iter().map(|device| device.memory().in_use_bytes).sum()
}

#[test]
fn a_table_is_copied_once_a_device_however_many_workers_and_runs_there_are() {
    let items: Vec<u32> = (0..50_000).collect();
    for device in [cores("cpu", 4), card("card:0")] {
        let (first, second) = (Counted::new(3), Counted::new(5));
        let pool = without_history([device]);
        let task = look_up(&first);
        let job = pool.job(&task).settings(SHORT);
        for _ in 0..5 {
            assert!(is_right(job.map(&items).unwrap().results(), 3));
        }
        assert_eq!(first.uploads(), 1);
        // A worker that still runs a speculative copy would bring the first table back.
        wait_until_idle(&pool);
        // Another table replaces it in the same job, and then the first comes back.
        let other = job.with_task(&task.table("factors", second.clone()));
        for _ in 0..3 {
            assert!(is_right(other.map(&items).unwrap().results(), 5));
        }
        assert_eq!((first.uploads(), second.uploads()), (1, 1));
        wait_until_idle(&pool);
        assert!(is_right(job.map(&items).unwrap().results(), 3));
        assert_eq!((first.uploads(), second.uploads()), (2, 1));
    }
}

#[test]
fn a_table_that_replaces_another_is_copied_once_and_the_old_one_is_freed() {
    let items: Vec<u32> = (0..50_000).collect();
    let (first, second) = (Counted::new(3), Counted::new(5));
    let pool = without_history([cores("cpu", 1)]);
    let task = look_up(&first);
    let changed = task.clone().table("factors", second.clone());
    let before = used(&pool);
    for _ in 0..3 {
        assert!(is_right(pool.map(&task, &items).unwrap().results(), 3));
    }
    let with_table = used(&pool);
    assert!(with_table - before >= 4 * LEN as u64, "{before}, then {with_table}");
    for _ in 0..3 {
        assert!(is_right(pool.map(&changed, &items).unwrap().results(), 5));
    }
    assert_eq!((first.uploads(), second.uploads()), (1, 1));
    wait_until_idle(&pool);
    assert!(used(&pool) < with_table + 4 * LEN as u64, "{with_table}, then {}", used(&pool));
    pool.release();
    // A worker may return its state a moment after the run.
    within(Duration::from_secs(10), "letting go", move || {
        while used(&pool) > before {
            pool.release();
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_device_that_was_lost_gets_its_tables_again() {
    let items: Vec<u32> = (0..50_000).collect();
    let (device, faults) = Faults::wrap(&card("card:0"));
    let (table, pool) = (Counted::new(7), without_history([device]));
    let job = pool.job(&look_up(&table)).settings(SHORT);
    assert!(is_right(job.map(&items).unwrap().results(), 7));
    assert_eq!(table.uploads(), 1);
    faults.kill();
    assert!(is_right(job.map(&items).unwrap().results(), 7));
    assert_eq!(table.uploads(), 2);
}

#[test]
fn the_workers_of_a_queue_share_a_table() {
    let (table, pool) = (Counted::new(2), without_history([Device::cpu()]));
    let queue = pool.queue(&look_up(&table)).open().unwrap();
    let handles: Vec<_> = (0..64).map(|item| queue.submit(item).unwrap()).collect();
    for (item, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.wait().unwrap(), 2 * item as u32);
    }
    assert_eq!(table.uploads(), 1);
}

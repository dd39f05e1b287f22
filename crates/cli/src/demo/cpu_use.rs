//! How much of the CPU other programs use.

use std::time::Duration;

/// The share of the cores above which other programs disturb measurements.
const BUSY_SHARE: f64 = 0.15;

/// The time below which the system's counters are too coarse.
const MIN_INTERVAL: Duration = Duration::from_millis(150);

/// Counters of CPU time, in the clock ticks of the system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuTimes {
    /// The number of cores that this process may use.
    cores: usize,
    /// The busy time of these cores, including time that a hypervisor took from them.
    busy: u64,
    /// The busy and idle time of these cores.
    total: u64,
    /// The time of this process.
    own: u64,
}

/// The cores that other programs use, on average over an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OtherPrograms {
    pub(super) used_cores: f64,
    pub(super) cores: usize,
}

impl OtherPrograms {
    /// Returns whether other programs use enough of the CPU to disturb measurements.
    pub(super) fn disturb(self) -> bool {
        self.used_cores > BUSY_SHARE * self.cores as f64
    }
}

impl CpuTimes {
    /// Reads the counters. Returns `None` if the system has none that are known here.
    pub(super) fn now() -> Option<CpuTimes> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        CpuTimes::parse(&read("/proc/stat")?, &read("/proc/self/stat")?, &read("/proc/self/status")?)
    }

    fn parse(machine: &str, process: &str, status: &str) -> Option<CpuTimes> {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let is_allowed = |core: usize| {
            allowed.trim().split(',').any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&core))
            })
        };
        let mut times = CpuTimes { cores: 0, busy: 0, total: 0, own: 0 };
        for line in machine.lines() {
            let mut fields = line.split_whitespace();
            let core = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            if !core.is_some_and(is_allowed) {
                continue;
            }
            // user, nice, system, idle, iowait, irq, softirq, steal; guest times are part of user and nice.
            let ticks: Vec<u64> = fields.take(8).map_while(|field| field.parse().ok()).collect();
            let idle: u64 = ticks.iter().skip(3).take(2).sum();
            times.cores += 1;
            times.total += ticks.iter().sum::<u64>();
            times.busy += ticks.iter().sum::<u64>() - idle;
        }
        // The command name is in parentheses and may contain spaces; utime and stime are fields 14 and 15.
        let (_, after_name) = process.rsplit_once(')')?;
        let own: Vec<u64> =
            after_name.split_whitespace().skip(11).take(2).map_while(|it| it.parse().ok()).collect();
        times.own = own.iter().sum();
        (times.cores > 0 && own.len() == 2).then_some(times)
    }

    /// Returns the use of other programs since earlier counters. Returns `None` if the interval is too short.
    fn others_since(self, earlier: CpuTimes) -> Option<OtherPrograms> {
        let total = self.total.checked_sub(earlier.total).filter(|&total| total > 0)?;
        let own = self.own.saturating_sub(earlier.own);
        let others = self.busy.saturating_sub(earlier.busy).saturating_sub(own);
        let cores = self.cores;
        Some(OtherPrograms { used_cores: others as f64 / total as f64 * cores as f64, cores })
    }
}

/// An interval over which the use of other programs is measured.
#[derive(Debug)]
pub(super) struct Interval {
    start: Option<CpuTimes>,
    began: std::time::Instant,
}

impl Interval {
    pub(super) fn start() -> Interval {
        Interval { start: CpuTimes::now(), began: std::time::Instant::now() }
    }

    /// Returns the use of other programs since the start, or `None` if it is unknown.
    pub(super) fn other_programs(&self) -> Option<OtherPrograms> {
        if self.began.elapsed() < MIN_INTERVAL {
            return None;
        }
        CpuTimes::now()?.others_since(self.start?)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const STATUS: &str = "Name:\tevener\nCpus_allowed_list:\t1-2,7\n";

    fn times(busy: u64, idle: u64, own: u64) -> CpuTimes {
        let machine = format!(
            "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 900 0 0 0 0 0 0 0 0 0\ncpu1 {busy} 0 0 {idle} 0 0 0 0 0 0\n\
             cpu2 0 0 0 100 0 0 0 0 0 0\ncpu7 0 0 0 90 10 0 0 0 0 0\nintr 5\n"
        );
        let process = format!("7 (a (b) c) R 1 1 1 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0 5\n");
        CpuTimes::parse(&machine, &process, STATUS).unwrap()
    }

    #[test]
    fn other_programs_are_what_this_process_is_not_on_its_own_cores() {
        let (before, after) = (times(0, 0, 0), times(60, 40, 20));
        assert_eq!((after.cores, after.busy, after.total, after.own), (3, 60, 300, 20));
        let others = after.others_since(before).unwrap();
        assert!((others.used_cores - 3.0 * 40.0 / 100.0).abs() < 1e-9, "{others:?}");
        assert!(others.disturb());
        assert!(!times(23, 77, 20).others_since(before).unwrap().disturb());
        assert_eq!(before.others_since(before), None);
    }

    #[test]
    fn unknown_counters_are_no_measurement() {
        assert_eq!(CpuTimes::parse("cpu 1", "7 (a) R", STATUS), None);
        assert_eq!(CpuTimes::parse("", "", ""), None);
    }
}

//! What runs have lost for want of devices that were not ready.
//!
//! Making a device ready may take far longer than a run, and nobody knows how many runs will follow. So it is made ready
//! once the runs without it have lost as much time as that takes: then no more than twice the least possible is lost,
//! however many follow.

use std::collections::BTreeMap;

use super::Candidate;

/// The seconds that a task's runs have lost, by the device that was not ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Missed(BTreeMap<String, f64>);

impl Missed {
    /// So many seconds more were lost for want of these devices, each of which is ready after so many seconds. Says
    /// whether they are to be made ready now: there are some, and all have been missed for long enough.
    pub(super) fn worth_starting<'c>(
        &mut self,
        cold: impl Iterator<Item = (&'c Candidate, f64)>,
        lost: f64,
    ) -> bool {
        let mut missed_long = Vec::new();
        for (candidate, ready) in cold {
            let key = candidate.device.clone();
            let missed = self.0.entry(key.clone()).or_default();
            *missed += lost;
            missed_long.push((key, *missed >= ready));
        }
        let worth = !missed_long.is_empty() && missed_long.iter().all(|(_, long)| *long);
        if worth {
            // Should it come to nothing, they are missed for as long again first.
            for (key, _) in &missed_long {
                self.0.remove(key);
            }
        }
        worth
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_device_is_made_ready_once_it_was_missed_for_as_long_as_that_takes() {
        let device = Candidate { device: "a".into(), score: 1.0, cold: true };
        let mut missed = Missed::default();
        let mut runs = 0;
        while !missed.worth_starting([(&device, 1.0)].into_iter(), 0.125) {
            runs += 1;
        }
        assert_eq!(runs, 7);
        assert!(!missed.worth_starting([].into_iter(), 100.0), "nobody is to be made ready");
    }
}

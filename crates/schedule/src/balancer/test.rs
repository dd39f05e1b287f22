use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Rounding, as a factor.
const SAME: f64 = 1.0 + 1e-9;

fn load(queued: usize) -> Load {
    Load { queued, movable: queued, piece_time: Some(SECOND), ..Load::default() }
}

fn fresh() -> Balancer {
    Balancer::new(BalancerSettings::default())
}

/// The largest and the smallest load.
fn spread(loads: &[Load]) -> (f64, f64) {
    let times: Vec<f64> = estimate(loads).iter().filter(|it| it.working).map(LoadEstimate::load).collect();
    (times.iter().copied().fold(0.0, f64::max), times.iter().copied().fold(f64::INFINITY, f64::min))
}

#[test]
fn exactly_the_trigger_does_not_move_anything() {
    for milliseconds in [1, 3, 100, 700, 1000, 86_400_000] {
        let time = Some(Duration::from_millis(milliseconds));
        let loads = |most, least| [most, least].map(|queued| Load { piece_time: time, ..load(queued) });
        let mut balancer = fresh();
        assert_eq!(balancer.rebalance(Duration::ZERO, &loads(10, 7)), []);
        assert_eq!(balancer.statistics().under_trigger, 1);
        let step = Move { from: 0, to: 1, pieces: 2 };
        assert_eq!(balancer.rebalance(Duration::ZERO, &loads(10, 6)), [step]);
    }
}

#[test]
fn the_most_loaded_gives_to_the_least_loaded() {
    let moves = fresh().rebalance(SECOND, &[load(8), load(40), load(2), load(39)]);
    assert_eq!(moves, [Move { from: 1, to: 2, pieces: 10 }]);
}

#[test]
fn load_is_time_and_not_pieces() {
    let fast = Load { piece_time: Some(SECOND / 100), ..load(50) };
    let moves = fresh().rebalance(SECOND, &[fast, load(5)]);
    assert_eq!(moves, [Move { from: 1, to: 0, pieces: 4 }], "a half second against five");
}

#[test]
fn a_slow_target_is_not_made_the_more_loaded_one() {
    let slow = Load { piece_time: Some(SECOND * 20), ..load(0) };
    let mut balancer = fresh();
    assert_eq!(balancer.rebalance(SECOND, &[load(20), slow]), []);
    assert_eq!(balancer.statistics().nothing_movable, 1);
    assert_eq!(balancer.rebalance(SECOND, &[load(21), slow]), [Move { from: 0, to: 1, pieces: 1 }]);
}

#[test]
fn rebalances_are_a_second_apart() {
    let mut balancer = fresh();
    let loads = [load(100), load(0)];
    assert_eq!(balancer.rebalance(SECOND, &loads).len(), 1);
    assert_eq!(balancer.rebalance(SECOND * 2 - Duration::from_nanos(1), &loads), []);
    assert_eq!(balancer.rebalance(Duration::ZERO, &loads), [], "a clock that runs backwards is too early");
    assert_eq!(balancer.rebalance(SECOND * 2, &loads).len(), 1);
    let expected = BalancerStatistics { pieces: 20, rebalances: 2, too_early: 2, ..Default::default() };
    assert_eq!(balancer.statistics(), expected);
}

#[test]
fn pieces_that_were_moved_before_let_the_next_most_loaded_give() {
    let stuck = Load { movable: 0, ..load(50) };
    let mut balancer = fresh();
    assert_eq!(balancer.rebalance(SECOND, &[stuck, load(0)]), []);
    assert_eq!(balancer.statistics().nothing_movable, 1);
    let moves = balancer.rebalance(SECOND, &[stuck, load(0), load(8)]);
    assert_eq!(moves, [Move { from: 2, to: 1, pieces: 4 }]);
}

#[test]
fn a_device_in_quarantine_gives_and_does_not_receive() {
    let gone = Load { working: false, ..load(6) };
    let mut balancer = fresh();
    let moves = balancer.rebalance(SECOND, &[gone, load(4), load(1)]);
    assert_eq!(moves, [Move { from: 0, to: 2, pieces: 4 }, Move { from: 0, to: 1, pieces: 2 }]);
    let empty = Load { working: false, ..load(0) };
    assert_eq!(balancer.rebalance(SECOND * 9, &[empty, load(4)]), [], "an empty queue that does not work");
    assert_eq!(balancer.rebalance(SECOND * 9, &[gone, empty]), []);
    assert_eq!(balancer.rebalance(SECOND * 9, &[]), []);
    assert_eq!(balancer.statistics().no_target, 3);
}

#[test]
fn a_reversal_waits_and_a_third_device_does_not() {
    let mut balancer = fresh();
    assert_eq!(balancer.rebalance(SECOND, &[load(20), load(0)]).len(), 1);
    assert_eq!(balancer.rebalance(SECOND * 5, &[load(0), load(20)]), []);
    assert_eq!(balancer.statistics().under_trigger, 1);
    let moves = balancer.rebalance(SECOND * 6, &[load(0), load(20), load(40)]);
    assert_eq!(moves, [Move { from: 2, to: 1, pieces: 10 }], "the idle device gave a while ago");
    let moves = balancer.rebalance(SECOND * 16, &[load(0), load(20)]);
    assert_eq!(moves, [Move { from: 1, to: 0, pieces: 10 }]);
}

#[test]
fn a_lower_reverse_trigger_lets_a_large_spread_through() {
    let settings = BalancerSettings { reverse_trigger: 0.6, ..Default::default() };
    let mut balancer = Balancer::new(settings);
    assert_eq!(balancer.rebalance(SECOND, &[load(20), load(0)]).len(), 1);
    assert_eq!(balancer.rebalance(SECOND * 2, &[load(8), load(20)]), []);
    assert_eq!(balancer.rebalance(SECOND * 2, &[load(7), load(20)]).len(), 1);
}

#[test]
fn unknown_speeds_count_as_equal() {
    let unknown = |queued| Load { piece_time: None, ..load(queued) };
    assert_eq!(fresh().rebalance(SECOND, &[unknown(10), unknown(7)]), []);
    let zero = Load { piece_time: Some(Duration::ZERO), ..load(0) };
    assert_eq!(fresh().rebalance(SECOND, &[load(4), zero])[0].pieces, 2);
}

#[test]
fn settings_left_out_are_the_defaults_and_nonsense_moves_nothing() {
    let settings: BalancerSettings = toml::from_str("pieces = 3\ninterval_seconds = 0.5").unwrap();
    assert_eq!(settings, BalancerSettings { pieces: 3, interval: SECOND / 2, ..Default::default() });
    assert_eq!(toml::from_str::<BalancerSettings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    assert!(toml::from_str::<BalancerSettings>("interval_seconds = -1.0").is_err());
    let mut balancer = Balancer::new(BalancerSettings { trigger: f64::NAN, ..settings });
    assert_eq!(balancer.rebalance(SECOND, &[load(9), load(0)]), []);
}

#[test]
fn the_time_to_move_data_counts_as_load_of_the_target() {
    let costly = |seconds| Load { move_time: SECOND * seconds, ..load(10) };
    let moved = |seconds| fresh().rebalance(SECOND, &[costly(seconds), load(0)]);
    // Of ten pieces of a second each, as many move as make both end together.
    assert_eq!(moved(0), [Move { from: 0, to: 1, pieces: 5 }]);
    assert_eq!(moved(2), [Move { from: 0, to: 1, pieces: 2 }]);
    assert_eq!(
        moved(7),
        [],
        "the first would come three seconds before its home is done, which is not enough"
    );
}

fn any_load() -> impl Strategy<Value = Load> {
    let time = prop_oneof![
        Just(None),
        Just(Some(Duration::ZERO)),
        (1u64..1_000_000_000_000).prop_map(|nanos| Some(Duration::from_nanos(nanos)))
    ];
    let moves = prop_oneof![Just(Duration::ZERO), (1u64..1_000_000_000_000).prop_map(Duration::from_nanos)];
    (0usize..200, 0usize..250, time, moves, prop::bool::weighted(0.85)).prop_map(
        |(queued, movable, piece_time, move_time, working)| Load {
            queued,
            movable,
            piece_time,
            move_time,
            working,
        },
    )
}

/// Queues whose pieces count their moves, independently of the balancer's own mark.
struct Service {
    balancer: Balancer,
    queues: Vec<VecDeque<Piece<usize>>>,
    arrived: usize,
    moved: Vec<usize>,
    moves: Vec<(Duration, usize, usize)>,
}

impl Service {
    fn new(settings: BalancerSettings, devices: usize) -> Service {
        let queues = (0..devices).map(|_| VecDeque::new()).collect();
        Service {
            balancer: Balancer::new(settings),
            queues,
            arrived: 0,
            moved: Vec::new(),
            moves: Vec::new(),
        }
    }

    fn arrive(&mut self, device: usize, pieces: usize) {
        for _ in 0..pieces {
            self.queues[device].push_back(Piece::new(self.arrived));
            self.moved.push(0);
            self.arrived += 1;
        }
    }

    fn rebalance(&mut self, now: Duration) {
        let loads: Vec<Load> = self.queues.iter().map(Load::of).collect();
        for step in self.balancer.rebalance(now, &loads) {
            let before: Vec<usize> = self.queues[step.to].iter().map(|piece| *piece.work()).collect();
            let mut source = std::mem::take(&mut self.queues[step.from]);
            assert_eq!(step.apply(&mut source, &mut self.queues[step.to]), step.pieces);
            self.queues[step.from] = source;
            for piece in self.queues[step.to].iter().skip(before.len()) {
                self.moved[*piece.work()] += 1;
            }
            self.moves.push((now, step.from, step.to));
        }
    }
}

proptest! {
    #[test]
    fn no_sequence_of_loads_breaks_the_limits(
        steps in prop::collection::vec((0u64..3000, prop::collection::vec(any_load(), 0..6)), 1..60),
        trigger in -0.5f64..1.5,
        pieces in 0usize..20,
        interval in (0u64..3000).prop_map(Duration::from_millis),
    ) {
        let settings = BalancerSettings { trigger, pieces, interval, ..Default::default() };
        let mut balancer = Balancer::new(settings);
        let (mut now, mut last) = (Duration::ZERO, None);
        for (wait, mut loads) in steps {
            now += Duration::from_millis(wait);
            let (most, least) = spread(&loads);
            let moves = balancer.rebalance(now, &loads);
            prop_assert!(moves.iter().map(|step| step.pieces).sum::<usize>() <= pieces);
            if moves.is_empty() {
                continue;
            }
            prop_assert!(last.is_none_or(|last| now - last >= interval));
            last = Some(now);
            for step in &moves {
                prop_assert!(step.pieces > 0 && step.from != step.to && loads[step.to].working);
                prop_assert!(step.pieces <= loads[step.from].movable);
                loads[step.from].queued -= step.pieces;
                loads[step.to].queued += step.pieces;
            }
            if moves.iter().all(|step| loads[step.from].working) {
                let after = spread(&loads);
                prop_assert!(after.0 <= most * SAME && after.1 * SAME >= least);
                let [step] = moves[..] else { panic!("one pair at a time") };
                let estimates = estimate(&loads);
                prop_assert!(estimates[step.to].load() <= estimates[step.from].load() * SAME);
            }
        }
        let done = balancer.statistics();
        prop_assert!(done.pieces <= done.rebalances * pieces as u64);
    }

    #[test]
    fn no_piece_moves_twice_whatever_arrives_and_is_done(
        steps in prop::collection::vec(
            (0u64..3000, prop::collection::vec((0usize..30, 0usize..30), 4)), 1..80),
        reverse_trigger in 0.0f64..1.0,
    ) {
        // The hysteresis is off or low: the mark on the piece must be enough.
        let settings = BalancerSettings { reverse_trigger, ..Default::default() };
        let mut service = Service::new(settings, 4);
        let mut now = Duration::ZERO;
        for (wait, changes) in steps {
            now += Duration::from_millis(wait);
            for (device, (arriving, done)) in changes.into_iter().enumerate() {
                service.arrive(device, arriving);
                let done = done.min(service.queues[device].len());
                service.queues[device].drain(..done);
            }
            service.rebalance(now);
        }
        prop_assert!(service.moved.iter().all(|&times| times <= 1));
    }

    #[test]
    fn a_square_wave_of_arrivals_moves_no_piece_twice_and_turns_no_sooner_than_the_hysteresis_allows(
        period in 0.1f64..10.0,
        height in 1usize..80,
        rate in 1usize..40,
    ) {
        // Arrivals change sides twice a period. The backlog may need one late move back, but no swing.
        let mut service = Service::new(BalancerSettings::default(), 2);
        let step = Duration::from_millis(50);
        for tick in 0..1200u32 {
            let now = step * tick;
            let side = usize::from((now.as_secs_f64() / period).fract() >= 0.5);
            service.arrive(side, height);
            for queue in &mut service.queues {
                let done = rate.min(queue.len());
                queue.drain(..done);
            }
            service.rebalance(now);
        }
        prop_assert!(service.moved.iter().all(|&times| times <= 1));
        for (index, &(now, from, to)) in service.moves.iter().enumerate() {
            let against = service.moves[..index].iter().rev().find(|step| (step.1, step.2) == (to, from));
            prop_assert!(against.is_none_or(|step| now - step.0 >= SECOND * 10), "{:?}", service.moves);
        }
    }

    #[test]
    fn a_square_wave_of_loads_never_swings_back(
        period in 0.1f64..10.0,
        high in 2usize..1000,
        low in 0usize..1000,
        asked in 0.02f64..0.45,
    ) {
        // Rebalanced at least twice a period: less often, the balancer would see another wave.
        let mut balancer = fresh();
        let mut directions = Vec::new();
        for tick in 0..(60.0 / (period * asked)) as u32 {
            let now = Duration::from_secs_f64(period * asked) * tick;
            let swapped = (now.as_secs_f64() / period).fract() >= 0.5;
            let loads = if swapped { [load(low), load(high)] } else { [load(high), load(low)] };
            directions.extend(balancer.rebalance(now, &loads).iter().map(|step| (step.from, step.to)));
        }
        directions.dedup();
        prop_assert!(directions.len() <= 1, "{:?}", directions);
    }
}

//! Screens as text, and random keys.

use std::collections::VecDeque;

use evener_device::{DeviceId, DeviceKind};
use evener_schedule::{LeftOut, events::RunKind};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, layout::Rect};

use super::{
    draw::draw,
    look::Look,
    model::{Action, Key, Model, Overlay, Target},
    scene::Scene,
    snapshot::{text, text_of},
};
use crate::{
    hardware::DeviceHardware,
    state::{
        BarKind, ChunkInHand, DeviceState, DeviceTotals, DeviceView, LaneView, LogLine, Program, RunEnding,
        RunSummary, RunView,
    },
};

const PLAIN: Look = Look { unicode: true, colors: false };

fn hardware(id: &str, utilization: Option<f64>) -> DeviceHardware {
    DeviceHardware {
        id: DeviceId::from(id),
        name: "A card".into(),
        kind: DeviceKind::Discrete,
        utilization,
        memory_bytes: Some(24 << 30),
        memory_free_bytes: utilization.map(|_| 18 << 30),
        temperature_celsius: utilization.map(|_| 61.0),
        power_watts: None,
    }
}

fn device(id: &str, items: u64) -> DeviceView {
    let chunk = ChunkInHand { chunk: 7, first: 1_000, items: 250, kind: BarKind::Work, since_s: 3.75 };
    DeviceView {
        id: id.into(),
        totals: DeviceTotals {
            items,
            chunks: items / 100,
            in_hand: 250,
            items_per_second: Some(items as f64 / 4.0),
            busy_s: 3.9,
            ..DeviceTotals::default()
        },
        throughput: VecDeque::from([0.0, 1.0, 2.0, 4.0, 8.0]),
        lanes: vec![LaneView { state: DeviceState::Healthy, in_hand: vec![chunk], bars: VecDeque::new() }],
    }
}

fn run(id: u64, task: &str) -> RunView {
    let summary = RunSummary {
        id,
        task: task.into(),
        kind: RunKind::Map,
        strategy: "adaptive".into(),
        began_unix_s: 1_000.0 + id as f64,
        elapsed_s: 4.0,
        items: Some(10_000),
        done: 4_000,
        items_per_second: 1_000.0,
        remaining_s: Some(6.0),
        predicted_s: Some(9.5),
        efficiency: Some(0.934),
        bound: None,
        waiting_for: None,
        queue: None,
        ended: None,
    };
    RunView { summary, devices: Vec::new(), left_out: Vec::new(), max_bars: 0 }
}

/// A program with a run in which one device is quarantined and another left out, a failed run and a queue.
fn scene() -> Scene {
    let mut active = run(3, "prices");
    active.devices = vec![device("cuda:0", 3_000), device("cuda:1", 1_000)];
    active.devices[0].totals.speculative = 2;
    active.devices[1].totals.state = DeviceState::Quarantined { until_s: 5.5 };
    (active.devices[1].totals.retries, active.devices[1].totals.quarantines) = (4, 1);
    active.left_out = vec![LeftOut { id: "cpu".into(), reason: "would finish 80 ms later".into() }];
    let mut failed = run(2, "hashes");
    failed.summary.ended = Some(RunEnding { unix_s: 1_003.0, error: Some("the task failed".into()) });
    let mut queue = run(1, "requests");
    (queue.summary.kind, queue.summary.items, queue.summary.remaining_s) = (RunKind::Queue, None, None);
    let line =
        |unix_s: f64, text: &str, is_failure| LogLine { unix_s, run: 3, text: text.into(), is_failure };
    let log = [
        line(1_003.0, "prices over 10000 items, on cuda:0, cuda:1", false),
        line(1_006.5, "cuda:1 quarantined for 1.5 s", true),
    ];
    let program = Program {
        pid: 4711,
        name: "pricer".into(),
        version: 9,
        unix_s: 1_007.0,
        lost_events: 0,
        runs: vec![queue, failed, active],
        past: VecDeque::new(),
        log: log.into(),
        totals: Vec::new(),
    };
    Scene {
        devices: vec![hardware("cuda:0", Some(0.75)), hardware("cuda:1", None)],
        absent: vec![LeftOut { id: "gpu-box".into(), reason: "no route to host".into() }],
        programs: vec![program],
        problems: Vec::new(),
    }
}

fn shown(width: u16, height: u16) -> Model {
    let mut model = Model::new((width, height));
    model.show(scene());
    model
}

/// Presses keys that ask for nothing.
fn press(model: &mut Model, keys: impl IntoIterator<Item = Key>) {
    for key in keys {
        assert_eq!(model.press(key), Action::None);
    }
}

fn screen(model: &Model, width: u16, height: u16, look: Look) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, look, frame.buffer_mut())).unwrap();
    lines(terminal.backend().buffer())
}

fn lines(buffer: &Buffer) -> String {
    (0..buffer.area.height).map(|y| text_of(buffer, y)).collect::<Vec<_>>().join("\n")
}

/// Compares a screen with the file that has it. `EVENER_WRITE_SCREENS=1` writes the files anew, to be looked at.
fn assert_screen(width: u16, height: u16) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/test");
    let path = format!("{folder}/{width}x{height}.txt");
    let found = screen(&shown(width, height), width, height, PLAIN);
    let found = found.trim_end().to_owned() + "\n";
    if std::env::var_os("EVENER_WRITE_SCREENS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "\n{found}");
}

#[test]
fn a_screen_of_80_columns_has_devices_runs_and_log() {
    assert_screen(80, 24);
}

#[test]
fn a_wider_screen_has_more_columns() {
    assert_screen(120, 40);
    assert_screen(200, 60);
}

#[test]
fn no_line_is_wider_than_the_screen_and_every_size_can_be_drawn() {
    for (width, height) in [(0, 0), (1, 1), (20, 5), (5, 20), (79, 23), (300, 3), (3, 300)] {
        for overlay in
            [None, Some(Key::F(1)), Some(Key::F(6)), Some(Key::Enter), Some(Key::F(9)), Some(Key::F(4))]
        {
            let mut model = shown(width, height);
            overlay.map(|key| model.press(key));
            let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height });
            draw(&model, PLAIN, &mut buffer);
            let widest = lines(&buffer).lines().map(super::format::width).max().unwrap_or(0);
            assert!(widest <= usize::from(width), "{width}x{height}");
        }
    }
}

#[test]
fn a_terminal_without_unicode_gets_ascii_alone_and_one_without_colors_gets_none() {
    let mut model = shown(120, 40);
    model.scene.programs[0].runs[2].summary.task = "größe 漢字".into();
    for key in [None, Some(Key::F(6)), Some(Key::Enter)] {
        key.map(|key| model.press(key));
        let found = screen(&model, 120, 40, Look { unicode: false, colors: false });
        assert!(found.is_ascii(), "{found}");
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: 120, height: 40 });
        draw(&model, PLAIN, &mut buffer);
        let is_colored = |cell: &ratatui::buffer::Cell| {
            use ratatui::style::Color::Reset;
            (cell.fg, cell.bg) != (Reset, Reset)
        };
        assert!(!buffer.content.iter().any(is_colored));
        model.press(Key::Escape);
    }
}

#[test]
fn names_with_control_characters_are_escaped_everywhere() {
    let evil = "a\u{1b}[2Jb\u{202e}c\nd";
    let mut model = shown(200, 60);
    let mut scene = scene();
    scene.programs[0].name = evil.into();
    scene.programs[0].log[1].text = evil.into();
    scene.devices[0].name = evil.into();
    let run = &mut scene.programs[0].runs[2];
    run.summary.task = evil.into();
    run.summary.strategy = evil.into();
    run.summary.waiting_for = Some(evil.into());
    run.devices[0].id = evil.into();
    run.devices[0].totals.last_error = Some(evil.into());
    run.left_out[0].reason = evil.into();
    model.show(scene.clone());
    for keys in [&[][..], &[Key::Enter], &[Key::Escape, Key::Down, Key::Enter], &[Key::Escape, Key::F(9)]] {
        press(&mut model, keys.iter().copied());
        let found = screen(&model, 200, 60, PLAIN);
        assert!(found.contains(r"a\u{1b}[2Jb\u{202e}c\nd"), "{found}");
        assert!(!found.contains(|char: char| char != '\n' && crate::text::is_control(char)), "{found:?}");
    }
    let plain = text(scene, true, 200);
    assert!(!plain.contains(|char: char| char != '\n' && crate::text::is_control(char)), "{plain:?}");
}

#[test]
fn a_run_is_cancelled_only_after_yes() {
    let mut model = shown(80, 24);
    assert_eq!(model.press(Key::Char('k')), Action::None);
    assert!(screen(&model, 80, 24, PLAIN).contains("Cancel run 3 (prices) of pricer, process 4711?"));
    assert_eq!(model.press(Key::Enter), Action::None, "Enter is not yes");
    assert_eq!(model.press(Key::Char('y')), Action::None, "nothing was asked");
    model.press(Key::F(9));
    assert_eq!(model.press(Key::Char('y')), Action::Cancel(Target { pid: 4711, run: 3 }));
    // What has ended meanwhile, and a queue, cannot be cancelled.
    model.press(Key::F(9));
    let mut ended = scene();
    ended.programs[0].runs[2].summary.ended = Some(RunEnding { unix_s: 1_007.0, error: None });
    model.show(ended);
    assert_eq!((model.overlay, model.press(Key::Char('y'))), (Overlay::None, Action::None));
    model.show(scene());
    press(&mut model, [Key::Home, Key::F(4)]);
    press(&mut model, "requests".chars().map(Key::Char));
    press(&mut model, [Key::Enter, Key::F(9)]);
    assert!(screen(&model, 80, 24, PLAIN).contains("a queue cannot be cancelled"));
}

#[test]
fn the_filter_keeps_what_matches_and_the_sort_orders_it() {
    let mut model = shown(80, 24);
    model.press(Key::Char('/'));
    press(&mut model, "CUDA:1".chars().map(Key::Char));
    let found = screen(&model, 80, 24, PLAIN);
    assert!(found.contains("Filter: CUDA:1_") && found.contains("prices"), "{found}");
    assert!(!found.contains("requests") && !found.contains("left out"), "{found}");
    model.press(Key::Escape);
    press(&mut model, [Key::F(6), Key::Down, Key::Down, Key::Down, Key::Down, Key::Down, Key::Enter]);
    let found = screen(&model, 80, 24, PLAIN);
    let row = |id: &str| found.lines().position(|line| line.contains(&format!("▸ {id}"))).unwrap();
    assert!(row("cuda:1") < row("cuda:0"), "by retries: {found}");
    model.press(Key::Char('I'));
    assert!(screen(&model, 80, 24, PLAIN).contains("by retries and rescues, inverted"));
}

#[test]
fn a_paused_view_stays_as_it_is_and_then_shows_the_newest() {
    let mut model = shown(80, 24);
    model.press(Key::Char(' '));
    let before = screen(&model, 80, 24, PLAIN);
    let mut newer = scene();
    newer.programs[0].runs[2].summary.done = 9_000;
    model.show(newer);
    assert_eq!(screen(&model, 80, 24, PLAIN), before);
    model.press(Key::Char('p'));
    assert!(screen(&model, 80, 24, PLAIN).contains(" 90 %"));
}

#[test]
fn runs_of_one_task_that_have_ended_well_are_shown_once() {
    let mut scene = scene();
    let ended = |id| {
        let mut run = run(id, "prices");
        run.summary.ended = Some(RunEnding { unix_s: 1_001.0, error: None });
        run
    };
    scene.programs[0].runs.splice(0..0, (10..15).map(ended));
    let plain = text(scene, true, 120);
    assert_eq!(
        plain.matches("prices ").count(),
        2,
        "the row of the active run, and a line of the log: {plain}"
    );
    assert!(plain.contains("the task failed"), "what failed is shown: {plain}");
}

#[test]
fn an_empty_screen_tells_how_to_be_seen() {
    let model = Model::new((80, 24));
    assert!(screen(&model, 80, 24, PLAIN).contains("EVENER_VIEW=1 evener merkle"));
    assert!(text(Scene::default(), true, 80).contains("EVENER_VIEW=1"));
}

/// Numbers that repeat themselves for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn key(&mut self) -> Key {
        const KEYS: [Key; 20] = [
            Key::Enter,
            Key::Escape,
            Key::Backspace,
            Key::Tab,
            Key::Up,
            Key::Down,
            Key::Down,
            Key::Left,
            Key::Right,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::F(1),
            Key::F(4),
            Key::F(6),
            Key::F(9),
            Key::F(9),
            Key::Ctrl('u'),
            Key::Ctrl('z'),
        ];
        match self.below(3) {
            0 => {
                Key::Char(['y', 'Y', 'n', 'k', 's', 'I', ' ', '/', '?', 'q', 'p', 'c', '漢'][self.below(13)])
            }
            _ => KEYS[self.below(KEYS.len())],
        }
    }

    fn scene(&mut self) -> Scene {
        let mut scene = scene();
        scene.devices.truncate(self.below(3));
        scene.programs = (0..self.below(4)).map(|number| self.program(number as u32)).collect();
        scene
    }

    fn program(&mut self, pid: u32) -> Program {
        let mut program = scene().programs.remove(0);
        program.pid = pid;
        program.runs = (0..self.below(5))
            .map(|_| {
                let mut run = run(self.below(6) as u64, ["prices", "hashes", ""][self.below(3)]);
                run.devices =
                    (0..self.below(40)).map(|id| device(&format!("card:{id}"), id as u64)).collect();
                run.left_out = scene().programs[0].runs[2].left_out[..self.below(2)].to_vec();
                if self.below(2) == 0 {
                    let error = (self.below(2) == 0).then(|| "failed".to_owned());
                    run.summary.ended = Some(RunEnding { unix_s: 1_001.0, error });
                }
                let odd = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300][self.below(5)];
                (run.summary.remaining_s, run.summary.items_per_second) = (Some(odd), odd);
                (run.summary.items, run.summary.kind) = match self.below(4) {
                    0 => (None, RunKind::Stream),
                    1 => (None, RunKind::Queue),
                    2 => (Some(0), RunKind::Map),
                    _ => (Some(u64::MAX), RunKind::Map),
                };
                run
            })
            .collect();
        // Programs number their runs, so that no two have the same number.
        program.runs.sort_by_key(|run| run.summary.id);
        program.runs.dedup_by_key(|run| run.summary.id);
        program
    }
}

/// Whatever is pressed and whatever comes: no panic, no run is cancelled that the user was not asked about with the key
/// before, the selected row is in sight, and every frame can be drawn.
#[test]
fn random_keys_sizes_and_scenes_never_panic_or_cancel_unasked() {
    let mut cancelled = 0;
    for seed in 1..=40 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let (mut width, mut height) = (80, 24);
        let mut model = Model::new((width, height));
        for _ in 0..400 {
            match random.below(8) {
                0 => model.show(random.scene()),
                1 => {
                    (width, height) = (random.below(220) as u16, random.below(70) as u16);
                    model.resize((width, height));
                }
                _ => {
                    let (asked, key) = (model.overlay, random.key());
                    match model.press(key) {
                        Action::Cancel(target) => {
                            assert_eq!(asked, Overlay::Confirm(target), "seed {seed}");
                            assert!(matches!(key, Key::Char('y' | 'Y')), "seed {seed}: {key:?}");
                            cancelled += 1;
                        }
                        Action::Quit => assert_eq!(key, Key::Char('q'), "seed {seed}"),
                        Action::Suspend => assert_eq!(key, Key::Ctrl('z'), "seed {seed}"),
                        Action::None => {}
                    }
                }
            }
            if let Some(at) = model.position() {
                assert!(at >= model.first_row, "seed {seed}");
            }
            if random.below(4) == 0 {
                let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height });
                draw(&model, Look { unicode: seed % 2 == 0, colors: seed % 3 == 0 }, &mut buffer);
            }
        }
    }
    assert!(cancelled > 0, "no run was ever cancelled: the test shows nothing");
}

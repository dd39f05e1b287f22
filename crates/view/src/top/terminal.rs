//! The terminal: taken over, restored however the process ends, and read for keys.

#[cfg(unix)]
use std::sync::{Arc, atomic::AtomicUsize};
use std::{
    io::{self, BufWriter, Stdout, Write, stdout},
    panic,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        style::force_color_output,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

use super::{
    Ended, Options,
    draw::draw,
    gather::Gathering,
    look::Look,
    model::{Action, Key, Model},
};

/// The least time between two frames, and the longest time without a look at signals and programs.
const FRAME: Duration = Duration::from_millis(80);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the thread that reads keys has to end the process after a signal.
#[cfg(unix)]
const TIME_TO_END: Duration = Duration::from_millis(500);

/// Whether the terminal is taken over now.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// Whether a thread has panicked while it was.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Takes the terminal over.
fn take() -> io::Result<()> {
    IS_TAKEN.store(true, SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal, if it is taken over. Errors count for nothing: the terminal may be gone.
fn restore() {
    if IS_TAKEN.swap(false, SeqCst) {
        drop(execute!(stdout(), Show, LeaveAlternateScreen));
        drop(disable_raw_mode());
        drop(stdout().flush());
    }
}

/// Restores the terminal when it is dropped.
struct Taken;

impl Drop for Taken {
    fn drop(&mut self) {
        restore();
    }
}

/// Has a panic restore the terminal before its message is printed.
fn restore_at_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if IS_TAKEN.load(SeqCst) {
            HAS_PANICKED.store(true, SeqCst);
            restore();
        }
        before(info);
    }));
}

/// The signals that came since the last look.
#[cfg_attr(not(unix), derive(Default))]
struct Signals {
    #[cfg(unix)]
    end: Arc<AtomicUsize>,
    #[cfg(unix)]
    stop: Arc<AtomicBool>,
    #[cfg(unix)]
    go_on: Arc<AtomicBool>,
}

#[cfg(unix)]
impl Signals {
    fn watch() -> io::Result<Signals> {
        use signal_hook::{
            consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP},
            flag,
        };
        let signals = Signals { end: Arc::default(), stop: Arc::default(), go_on: Arc::default() };
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(signal, signals.end.clone(), signal as usize)?;
        }
        flag::register(SIGTSTP, signals.stop.clone())?;
        flag::register(SIGCONT, signals.go_on.clone())?;
        Ok(signals)
    }

    /// The signal that ends the process.
    fn end(&self) -> Option<i32> {
        match self.end.load(SeqCst) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }

    /// Ends the process if the terminal hangs up, or an ending signal has come, and the thread that reads keys does not end
    /// it: crossterm reads a terminal that is gone again and again, and never returns.
    fn end_if_stuck(&self) -> io::Result<()> {
        let end = self.end.clone();
        let watch = move || loop {
            std::thread::sleep(LOOK_EVERY);
            if has_hung_up() {
                // Counts as the signal that the system sends then, which the process may have been started without.
                let _ = end.compare_exchange(0, signal_hook::consts::SIGHUP as usize, SeqCst, SeqCst);
            }
            if let Some(signal) = i32::try_from(end.load(SeqCst)).ok().filter(|signal| *signal != 0) {
                std::thread::sleep(TIME_TO_END);
                drop(disable_raw_mode());
                // The other thread may hold the lock of standard output, if the terminal takes nothing.
                drop(std::thread::Builder::new().spawn(restore));
                std::thread::sleep(LOOK_EVERY);
                drop(signal_hook::low_level::emulate_default_handler(signal));
            }
        };
        std::thread::Builder::new().name("evener-top-watch".into()).spawn(watch).map(drop)
    }

    fn asks_to_stop(&self) -> bool {
        self.stop.swap(false, SeqCst)
    }

    /// Whether the process was continued, by a shell that may have changed the terminal.
    fn was_continued(&self) -> bool {
        self.go_on.swap(false, SeqCst)
    }

    /// Stops this process until a shell continues it.
    fn stop(&self) -> io::Result<()> {
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        self.go_on.store(false, SeqCst);
        Ok(())
    }
}

/// Whether the terminal is gone.
#[cfg(unix)]
fn has_hung_up() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let screen = rustix::stdio::stdout();
    let mut terminal = [PollFd::new(&screen, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut terminal, Some(&at_once)).is_ok()
        && terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(not(unix))]
impl Signals {
    fn watch() -> io::Result<Signals> {
        Ok(Signals::default())
    }

    fn end_if_stuck(&self) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) -> Option<i32> {
        None
    }

    fn asks_to_stop(&self) -> bool {
        false
    }

    fn was_continued(&self) -> bool {
        false
    }

    fn stop(&self) -> io::Result<()> {
        Ok(())
    }
}

type Screen = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Shows the view until a key or a signal ends it.
pub(super) fn run(options: Options) -> io::Result<Ended> {
    let Options { look, interval, hardware, absent } = options;
    let gathering = Gathering::begin(hardware, absent, interval)?;
    let signals = Signals::watch()?;
    signals.end_if_stuck()?;
    restore_at_panic();
    if look.colors {
        // Whether there are colors was decided by the caller.
        force_color_output(true);
    }
    let _taken = Taken;
    take()?;
    let mut screen = Terminal::new(CrosstermBackend::new(BufWriter::new(stdout())))?;
    screen.clear()?;
    let size = screen.size()?;
    let mut model = Model::new((size.width, size.height));
    follow(&mut screen, &mut model, look, &gathering, &signals)
}

fn follow(
    screen: &mut Screen,
    model: &mut Model,
    look: Look,
    gathering: &Gathering,
    signals: &Signals,
) -> io::Result<Ended> {
    let mut frames = 0;
    let (mut is_dirty, mut drawn) = (true, None::<Instant>);
    loop {
        if let Some(signal) = signals.end() {
            return Ok(Ended::BySignal(signal));
        }
        if HAS_PANICKED.load(SeqCst) {
            return Err(io::Error::other("a thread of the view has panicked"));
        }
        if signals.asks_to_stop() {
            stop(screen, signals)?;
            is_dirty = true;
        } else if signals.was_continued() {
            // crossterm does nothing if it believes that the mode is raw already.
            drop(disable_raw_mode());
            take()?;
            screen.clear()?;
            is_dirty = true;
        }
        let (scene, messages) = gathering.take();
        is_dirty |= scene.is_some() || !messages.is_empty();
        if let Some(scene) = scene {
            model.show(scene);
        }
        messages.into_iter().for_each(|message| model.say(message));
        let until_frame = drawn.map_or(Duration::ZERO, |drawn| FRAME.saturating_sub(drawn.elapsed()));
        if is_dirty && until_frame.is_zero() {
            screen.draw(|frame| draw(model, look, frame.buffer_mut()))?;
            (is_dirty, drawn) = (false, Some(Instant::now()));
            frames += 1;
            panic_if_asked(frames);
        }
        let wait = if is_dirty { until_frame } else { LOOK_EVERY };
        // All that has been typed, and then a frame.
        let mut wait = wait.max(Duration::from_millis(1));
        while event::poll(std::mem::take(&mut wait))? {
            let action = match event::read()? {
                Event::Key(event) => key(event).map(|key| model.press(key)),
                Event::Resize(width, height) => {
                    model.resize((width, height));
                    Some(Action::None)
                }
                _ => None,
            };
            is_dirty |= action.is_some();
            match action {
                Some(Action::Quit) => return Ok(Ended::ByUser),
                Some(Action::Suspend) => {
                    stop(screen, signals)?;
                    let size = screen.size()?;
                    model.resize((size.width, size.height));
                }
                Some(Action::Cancel(target)) => gathering.cancel(target),
                Some(Action::None) | None => {}
            }
        }
    }
}

/// Stops the process with the terminal as it was, and takes the terminal again when a shell continues the process.
fn stop(screen: &mut Screen, signals: &Signals) -> io::Result<()> {
    restore();
    signals.stop()?;
    take()?;
    screen.clear()
}

/// Lets a test see that a panic restores the terminal.
#[cfg(debug_assertions)]
fn panic_if_asked(frames: u64) {
    let asked = std::env::var("EVENER_TEST_TOP_PANIC").ok().and_then(|frame| frame.parse::<u64>().ok());
    assert!(asked != Some(frames), "asked for by EVENER_TEST_TOP_PANIC");
}

#[cfg(not(debug_assertions))]
fn panic_if_asked(_: u64) {}

/// A key that the model knows.
fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    Some(match event.code {
        KeyCode::Char(char) if event.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Ctrl(char.to_ascii_lowercase())
        }
        KeyCode::Char(char) => Key::Char(char),
        KeyCode::F(number) => Key::F(number),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

//! Colors and characters that a terminal can show.

use std::ffi::OsString;

use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier, Style},
};

/// What a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Characters other than ASCII.
    pub unicode: bool,
    /// Colors. Bold and reversed text are used without them, too.
    pub colors: bool,
}

impl Look {
    /// Whether a terminal shows other characters than ASCII, by the environment's locale and terminal. `variable` returns an
    /// environment variable.
    pub fn has_unicode(variable: impl Fn(&str) -> Option<OsString>) -> bool {
        let variable = |name: &str| variable(name).map(|value| value.to_string_lossy().to_lowercase());
        // The fonts of these lack the characters of bars.
        if matches!(variable("TERM").as_deref(), Some("linux" | "dumb" | "vt100" | "vt102" | "vt220")) {
            return false;
        }
        // The first that is set counts, as in setlocale(3).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| {
            let value = variable(name)?;
            (!value.is_empty()).then_some(value)
        });
        match locale {
            Some(locale) => locale.contains("utf-8") || locale.contains("utf8"),
            // Windows and macOS need no locale for it.
            None => cfg!(any(windows, target_os = "macos")),
        }
    }

    pub(super) fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "~" }
    }

    pub(super) fn dash(self) -> &'static str {
        if self.unicode { "–" } else { "-" }
    }

    /// The sign of a row that has others below it, which are shown or not.
    pub(super) fn fold(self, is_open: bool) -> &'static str {
        match (self.unicode, is_open) {
            (true, true) => "▾",
            (true, false) => "▸",
            (false, true) => "-",
            (false, false) => "+",
        }
    }

    /// The levels of a sparkline, from nothing to the most.
    pub(super) fn levels(self) -> &'static [&'static str] {
        match self.unicode {
            true => &[" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            false => &[" ", "_", ".", ":", "-", "=", "+", "*", "#"],
        }
    }

    /// A bar of this many columns.
    pub(super) fn bar(self, part: f64, columns: usize) -> String {
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        let eighths = (part * columns as f64 * 8.0).round() as usize;
        let (full, rest) = (eighths / 8, eighths % 8);
        match self.unicode {
            true => {
                let partial = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][rest];
                let blank = columns - full - usize::from(rest > 0);
                format!("{}{partial}{}", "█".repeat(full), "░".repeat(blank))
            }
            false => format!("{}{}", "#".repeat(full), ".".repeat(columns - full)),
        }
    }

    /// The last samples as a sparkline of this many columns, the newest at its end.
    pub(super) fn sparkline<'a>(
        self,
        samples: impl DoubleEndedIterator<Item = &'a f64> + Clone,
        columns: usize,
    ) -> String {
        let last = samples.rev().take(columns).map(|&it| if it.is_finite() { it.max(0.0) } else { 0.0 });
        let last: Vec<f64> = last.collect();
        let most = last.iter().copied().fold(0.0, f64::max);
        let levels = self.levels();
        let level = |&sample: &f64| match sample {
            0.0 => levels[0],
            _ => {
                levels
                    [((sample / most * (levels.len() - 1) as f64).ceil() as usize).clamp(1, levels.len() - 1)]
            }
        };
        let blank = " ".repeat(columns - last.len());
        last.iter().rev().map(level).fold(blank, |line, level| line + level)
    }

    fn color(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn good(self) -> Style {
        self.color(Color::Green)
    }

    pub(super) fn busy(self) -> Style {
        self.color(Color::Cyan)
    }

    pub(super) fn warning(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For what matters less.
    pub(super) fn quiet(self) -> Style {
        self.color(Color::DarkGray)
    }

    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn heading(self) -> Style {
        match self.colors {
            true => Style::new().fg(Color::Black).bg(Color::Green),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    pub(super) fn selected(self) -> Style {
        match self.colors {
            true => Style::new().fg(Color::Black).bg(Color::Cyan),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    /// Replaces what is not ASCII, in a terminal that cannot show it.
    pub(super) fn make_ascii(self, buffer: &mut Buffer) {
        if self.unicode {
            return;
        }
        for cell in buffer.content.iter_mut().filter(|cell| !cell.symbol().is_ascii()) {
            let mut symbol = cell.symbol().chars();
            let replacement = match (symbol.next(), symbol.next()) {
                (Some(character), None) => ascii(character),
                _ => '?',
            };
            cell.set_char(replacement);
        }
    }

    /// The same for a text.
    pub(super) fn ascii_text(self, text: String) -> String {
        if self.unicode { text } else { text.chars().map(ascii).collect() }
    }
}

/// What stands for a character in a terminal that shows ASCII only.
fn ascii(character: char) -> char {
    match character {
        character if character.is_ascii() => character,
        '…' => '~',
        '–' | '—' | '−' | '·' => '-',
        '≥' => '>',
        '≤' => '<',
        'µ' => 'u',
        _ => '?',
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_locale_and_the_terminal_tell_whether_there_is_unicode() {
        let has = |set: &[(&str, &str)]| {
            Look::has_unicode(|name| {
                set.iter().find(|(it, _)| *it == name).map(|(_, value)| OsString::from(value))
            })
        };
        assert!(has(&[("LANG", "en_US.UTF-8")]) && has(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(!has(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]), "LC_ALL wins");
        assert!(has(&[("LC_ALL", ""), ("LANG", "en_US.UTF-8")]), "an empty variable is not set");
        assert!(!has(&[("LANG", "C.UTF-8"), ("TERM", "linux")]));
    }

    #[test]
    fn bars_and_sparklines_take_their_columns_whatever_the_numbers_are() {
        for unicode in [true, false] {
            let look = Look { unicode, colors: false };
            for part in [-1.0, 0.0, 0.03, 0.5, 0.999, 1.0, 2.0, f64::NAN, f64::INFINITY] {
                for columns in [0, 1, 7, 40] {
                    assert_eq!(look.bar(part, columns).chars().count(), columns, "{part}");
                    let line = look.sparkline([part, 1.0, part, 3.0].iter(), columns);
                    assert_eq!(line.chars().count(), columns, "{part}");
                }
            }
            assert_eq!(look.sparkline([0.0, 0.0].iter(), 3), "   ", "nothing is blank");
        }
        let look = Look { unicode: true, colors: false };
        assert_eq!((look.bar(0.5, 4), look.sparkline([1.0, 8.0].iter(), 3)), ("██░░".into(), " ▁█".into()));
    }
}

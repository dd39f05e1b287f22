//! `--color`: whether to use colors and bold text.

use std::{
    ffi::{OsStr, OsString},
    io::IsTerminal,
    sync::OnceLock,
};

use clap::ValueEnum;

/// When to use colors and bold text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set; everywhere if CLICOLOR_FORCE is
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

static CHOICE: OnceLock<ColorChoice> = OnceLock::new();

impl ColorChoice {
    /// Finds the option before clap parses the command line, because clap's own messages are colored as well. clap reports
    /// an invalid value.
    pub(crate) fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> ColorChoice {
        let mut arguments = arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned());
        while let Some(argument) = arguments.next() {
            let value = match argument.as_str() {
                "--" => break,
                "--color" => arguments.next(),
                _ => argument.strip_prefix("--color=").map(str::to_owned),
            };
            if let Some(choice) = value.and_then(|value| ColorChoice::from_str(&value, false).ok()) {
                return choice;
            }
        }
        ColorChoice::Auto
    }

    /// Sets the choice for the whole process. The first call counts.
    pub(crate) fn set(self) {
        let _ = CHOICE.set(self);
    }

    fn decide(self, no_color: Option<&OsStr>, force: Option<&OsStr>, is_terminal: bool) -> bool {
        match self {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto if no_color.is_some_and(|value| !value.is_empty()) => false,
            ColorChoice::Auto => {
                is_terminal || force.is_some_and(|value| !value.is_empty() && value != OsStr::new("0"))
            }
        }
    }
}

impl From<ColorChoice> for clap::ColorChoice {
    fn from(choice: ColorChoice) -> Self {
        match choice {
            ColorChoice::Auto => clap::ColorChoice::Auto,
            ColorChoice::Always => clap::ColorChoice::Always,
            ColorChoice::Never => clap::ColorChoice::Never,
        }
    }
}

/// Returns whether to use colors and bold text on a stream.
pub(crate) fn is_enabled(stream: &impl IsTerminal) -> bool {
    let variable = |name| std::env::var_os(name);
    let choice = CHOICE.get().copied().unwrap_or(ColorChoice::Auto);
    choice.decide(
        variable("NO_COLOR").as_deref(),
        variable("CLICOLOR_FORCE").as_deref(),
        stream.is_terminal(),
    )
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_option_wins_over_variables_and_these_over_the_terminal() {
        let some = |value: &'static str| Some(OsStr::new(value));
        let auto = ColorChoice::Auto;
        assert!(auto.decide(None, None, true));
        assert!(!auto.decide(None, None, false));
        assert!(auto.decide(some(""), None, true), "an empty variable is not set");
        assert!(!auto.decide(some("1"), None, true));
        assert!(auto.decide(None, some("1"), false));
        assert!(!auto.decide(None, some("0"), false) && !auto.decide(None, some(""), false));
        assert!(!auto.decide(some("1"), some("1"), true), "NO_COLOR wins");
        assert!(ColorChoice::Always.decide(some("1"), None, false));
        assert!(!ColorChoice::Never.decide(None, some("1"), true));
    }

    #[test]
    fn the_option_is_found_before_clap_parses_it() {
        let find = |arguments: &[&str]| ColorChoice::from_arguments(arguments.iter().map(OsString::from));
        assert_eq!(find(&["evener", "--color", "always", "demo"]), ColorChoice::Always);
        assert_eq!(find(&["evener", "demo", "--color=never"]), ColorChoice::Never);
        assert_eq!(find(&["evener", "merkle", "--", "--color=never"]), ColorChoice::Auto);
        assert_eq!(find(&["evener", "--color"]), ColorChoice::Auto);
    }
}

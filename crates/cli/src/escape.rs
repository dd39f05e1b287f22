//! Escapes control characters in text from files, drivers and file names, so that a terminal does not obey them.

use std::borrow::Cow;

use evener_view::text::is_control;
pub(crate) use evener_view::text::single_line;

/// The escape sequences around a bold heading of a [`table`](crate::table).
const BOLD: [&str; 2] = ["\u{1b}[1m", "\u{1b}[0m"];

/// Escapes the output of a command: keeps line ends, tabs and, if `keep_bold`, bold headings.
pub(crate) fn multi_line(text: &str, keep_bold: bool) -> Cow<'_, str> {
    escape(text, |rest| match rest.as_bytes() {
        [b'\n' | b'\t', ..] => 1,
        _ if keep_bold => BOLD.iter().find(|bold| rest.starts_with(**bold)).map_or(0, |bold| bold.len()),
        _ => 0,
    })
}

/// Escapes a log line: keeps the escape character, which only the subscriber's own colors contain.
pub(crate) fn log_line(text: &str) -> Cow<'_, str> {
    escape(text, |rest| usize::from(matches!(rest.as_bytes(), [b'\n' | b'\t' | 0x1b, ..])))
}

/// Escapes JSON: control characters occur only within strings, where they become `\u` escapes.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped_in_json) {
        return text.into();
    }
    let mut escaped = String::new();
    for char in text.chars() {
        match is_escaped_in_json(char) {
            true => {
                char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}"))
            }
            false => escaped.push(char),
        }
    }
    escaped.into()
}

fn is_escaped_in_json(char: char) -> bool {
    is_control(char) && char != '\n'
}

/// Escapes control characters. `kept` returns the number of bytes to keep at the start of a text, or 0 to escape.
fn escape(text: &str, kept: impl Fn(&str) -> usize) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return text.into();
    }
    let (mut escaped, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(is_control) {
        let (before, from) = rest.split_at(at);
        escaped += before;
        let kept = kept(from);
        let width = from.chars().next().map_or(0, char::len_utf8).max(kept);
        match kept {
            0 => escaped.extend(from[..width].chars().flat_map(char::escape_default)),
            _ => escaped += &from[..width],
        }
        rest = &from[width..];
    }
    (escaped + rest).into()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        assert_eq!(single_line("plain, ünïcode, 漢字"), "plain, ünïcode, 漢字");
        assert_eq!(
            single_line("a\u{1b}[31mb\nc\u{9b}d\u{202e}e\u{7f}"),
            r"a\u{1b}[31mb\nc\u{9b}d\u{202e}e\u{7f}"
        );
        assert_eq!(single_line(&single_line("\u{7}")), r"\u{7}", "twice is once");
    }

    #[test]
    fn lines_and_bold_headings_are_the_commands_own() {
        let heading = "\u{1b}[1mID\u{1b}[0m\n\tcpu\r\u{1b}[31m";
        assert_eq!(multi_line(heading, true), "\u{1b}[1mID\u{1b}[0m\n\tcpu\\r\\u{1b}[31m");
        assert_eq!(multi_line(heading, false), "\\u{1b}[1mID\\u{1b}[0m\n\tcpu\\r\\u{1b}[31m");
    }

    #[test]
    fn json_stays_the_same_for_its_readers() {
        for value in ["plain", "a\u{9b}b\u{202e}c\u{7f}\u{1b}\n"] {
            let written = serde_json::to_string_pretty(&[value]).unwrap();
            let escaped = json(&written);
            assert!(!escaped.contains(is_escaped_in_json), "{escaped:?}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&escaped).unwrap(), [value]);
        }
    }
}

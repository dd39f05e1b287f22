//! Text from files, drivers and other programs, made safe for a terminal.

use std::borrow::Cow;

/// Returns whether a character controls the terminal or changes the direction of text.
pub fn is_control(char: char) -> bool {
    let is_bidirectional = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    char::is_control(char) || is_bidirectional || matches!(char, '\u{2028}' | '\u{2029}')
}

/// Escapes a name or another text of one line: control characters become Rust escapes, line ends included.
///
/// ```
/// assert_eq!(evener_view::text::single_line("a\u{1b}[31mb\n"), r"a\u{1b}[31mb\n");
/// ```
pub fn single_line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match is_control(char) {
            true => escaped.extend(char.escape_default()),
            false => escaped.push(char),
        }
    }
    escaped.into()
}

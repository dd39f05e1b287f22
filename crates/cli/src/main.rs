//! The `evener` command.
fn main() {}

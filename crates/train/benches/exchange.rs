//! The cost of an exchange.
fn main() {}

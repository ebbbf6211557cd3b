//! The `udm` program.
fn main() {}

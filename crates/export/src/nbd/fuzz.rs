//! Entries for fuzzers: any bytes, no panic, no unbounded work.

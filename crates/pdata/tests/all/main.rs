//! The persistent-data structures from outside, in one program: what they share is compiled once.

mod array;
mod crash;
mod damage;
mod model;
mod room;
mod speed;
mod support;

//! The NBD server over real sockets: against a client made of the wire codec, against programs that nobody here wrote,
//! and against udm's own client.

mod bad_input;
mod client;
mod device;
mod fairness;
mod handover;
mod liars;
mod lifecycle;
mod programs;
mod raw;
mod requests;
mod served;
mod tcp;

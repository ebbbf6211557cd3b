//! The same over TCP.

use crate::served::Devices;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use udm_export::Listen;
use udm_export::nbd::Server;
use udm_io::Domain;

#[test]
fn tcp_takes_any_free_port_of_the_loopback() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let builder = Server::builder().listen(Listen::Tcp(any));
    let server = builder.start(&Domain::default(), Arc::new(Devices::none())).expect("a server");
    let [Listen::Tcp(bound)] = server.bound() else { panic!("{:?}", server.bound()) };
    assert!(bound.ip().is_loopback() && bound.port() != 0);
    let mut stream = TcpStream::connect(bound).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
}

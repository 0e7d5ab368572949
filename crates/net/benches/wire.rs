//! `cargo bench -p regatta-net`: requests of a parameter server over real sockets, beside the plain
//! sockets themselves in the same run.
//!
//! *pull* sends 8 bytes a key and receives 36, *push* sends 44 and receives an empty reply. Server
//! and client are threads of this process; *tls* is TCP as between machines. Each cell: best window of 80 ms (a quiet moment of a
//! shared machine) and the mean of all windows. `-- pull` runs the cells whose name contains that.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use regatta_net::{
    Buf, Client, ClientOptions, Encryption, Identity, JobToken, Pending, Pool, Request, Responder,
    Server, ServerOptions, Serving,
};

const WINDOW: Duration = Duration::from_millis(80);
const WINDOWS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(10);
const KEY: usize = 8;
const ROW: usize = 36;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let run = |name: &str, body: &mut dyn FnMut(&str)| {
        if wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())) {
            body(name);
        }
    };

    println!("{:<44} {:>10} {:>10}", "", "best", "mean");
    for (transport, dial) in [("tcp", tcp_pair as fn() -> (Sock, Sock)), ("unix", unix_pair)] {
        run(&format!("raw stream {transport}, GB/s"), &mut |name| {
            report(name, stream_rate(dial()), 1e-9);
        });
        run(&format!("raw ping 64 B {transport}, k/s"), &mut |name| {
            report(name, ping_rate(dial(), 64, 64), 1e-3);
        });
        for keys in [10_000, 50_000] {
            let k = keys / 1000;
            run(&format!("raw pull {k}k {transport}, M keys/s"), &mut |name| {
                report(name, ping_rate(dial(), keys * KEY, keys * ROW), keys as f64 * 1e-6);
            });
            run(&format!("raw push {k}k {transport}, M keys/s"), &mut |name| {
                report(name, ping_rate(dial(), keys * (KEY + ROW), 64), keys as f64 * 1e-6);
            });
        }
    }
    for transport in ["tcp", "tls", "unix"] {
        for in_flight in [1, 4, 16] {
            let name = format!("small frames {transport}, {in_flight} in flight, k/s");
            run(&name, &mut |name| report(name, request_rate(transport, in_flight, 0, PULL), 1e-3));
        }
        for keys in [1_000, 10_000, 50_000] {
            for (what, kind) in [("pull", PULL), ("push", PUSH)] {
                for in_flight in [1, 4] {
                    let k = keys / 1000;
                    let name = format!("{what} {k}k {transport}, {in_flight} in flight, M keys/s");
                    run(&name, &mut |name| {
                        let rate = request_rate(transport, in_flight, keys, kind);
                        report(name, rate, keys as f64 * 1e-6);
                    });
                }
            }
        }
    }
}

/// Best and mean of something per second.
type Rate = (f64, f64);

fn report(name: &str, (best, mean): Rate, unit: f64) {
    println!("{name:<44} {:>10.2} {:>10.2}", best * unit, mean * unit);
}

/// Calls `step` for all windows; it returns how much it did.
fn measure(mut step: impl FnMut() -> usize) -> Rate {
    let warm_up = Instant::now();
    while warm_up.elapsed() < WINDOW {
        step();
    }
    let rates: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let start = Instant::now();
            let mut done = 0;
            while start.elapsed() < WINDOW {
                done += step();
            }
            done as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    (rates.iter().copied().fold(0.0, f64::max), rates.iter().sum::<f64>() / WINDOWS as f64)
}

// The library.

const PULL: u16 = 1;
const PUSH: u16 = 2;

fn request_rate(transport: &str, in_flight: usize, keys: usize, kind: u16) -> Rate {
    let (server, client) = connect(transport);
    let mut under_way: VecDeque<Pending> = VecDeque::new();
    let payload = if kind == PULL { keys * KEY } else { keys * (KEY + ROW) };
    let rate = measure(|| {
        while under_way.len() < in_flight {
            let mut buf = client.buffer(payload);
            buf.grow(payload);
            under_way.push_back(client.send_owned(kind, 0, vec![buf]).unwrap());
        }
        let reply = under_way.pop_front().unwrap().wait(PATIENCE).unwrap();
        assert_eq!(reply.payload.len(), if kind == PULL { keys * ROW } else { 0 });
        1
    });
    drop(under_way);
    client.close();
    assert!(server.shutdown(PATIENCE));
    rate
}

fn connect(transport: &str) -> (Serving, Client) {
    let encryption = if transport == "tls" { Encryption::Always } else { Encryption::default() };
    let token = JobToken::new("bench").encrypted(encryption);
    let options = ServerOptions::new(Identity::server(0), token.clone());
    let rows = vec![1u8; 50_000 * ROW];
    let handler = move |request: Request, responder: Responder| {
        let n_rows = if request.kind == PULL { request.payload.len() / KEY } else { 0 };
        responder.reply(0, &[&rows[..n_rows * ROW]]).unwrap();
    };
    let server = Server::bind("127.0.0.1:0", options).unwrap().serve(handler).unwrap();
    let mut options = ClientOptions::new(Identity::worker(0), Identity::server(0), token);
    options.shortcut = transport == "unix";
    let client = Client::connect(server.endpoint(), options).unwrap();
    assert_eq!(client.stats().transport, transport);
    (server, client)
}

// Plain sockets.

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}
type Sock = Box<dyn ReadWrite>;

fn tcp_pair() -> (Sock, Sock) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (Box::new(near), Box::new(far))
}

fn unix_pair() -> (Sock, Sock) {
    let (near, far) = UnixStream::pair().unwrap();
    (Box::new(near), Box::new(far))
}

/// A buffer that starts on a page, as those of the library do: a plain `Vec` can cost TCP half its
/// rate.
fn filled(len: usize) -> Buf {
    let mut buf = Pool::default().take(len);
    buf.grow(len).fill(1);
    buf
}

/// Bytes per second in one direction.
fn stream_rate((mut near, mut far): (Sock, Sock)) -> Rate {
    let sink = thread::spawn(move || {
        let mut buf = filled(1 << 18);
        while far.read(&mut buf).unwrap() > 0 {}
    });
    let chunk = filled(1 << 18);
    let rate = measure(|| {
        near.write_all(&chunk).unwrap();
        chunk.len()
    });
    drop(near);
    sink.join().unwrap();
    rate
}

/// Exchanges per second of `there` bytes against `back` bytes, one at a time, in reused buffers.
fn ping_rate((mut near, mut far): (Sock, Sock), there: usize, back: usize) -> Rate {
    let echo = thread::spawn(move || {
        let (mut request, reply) = (filled(there), filled(back));
        while far.read_exact(&mut request).is_ok() {
            far.write_all(&reply).unwrap();
        }
    });
    let (request, mut reply) = (filled(there), filled(back));
    let rate = measure(|| {
        near.write_all(&request).unwrap();
        near.read_exact(&mut reply).unwrap();
        1
    });
    drop(near);
    echo.join().unwrap();
    rate
}

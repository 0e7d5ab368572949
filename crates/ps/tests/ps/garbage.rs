//! Bytes that mean nothing: errors, never panics, never more memory than the bytes are worth.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use regatta_net::{Client as Wire, ClientOptions, Identity, JobToken, ServerOptions};
use regatta_ps::message::{
    Control, Gather, GatherReply, Geo, GeoReply, Hello, Kind, Pull, Push, PushPull, SetDense,
};
use regatta_ps::{AsyncConfig, Error, Mode, Wire as Format};

use crate::common::*;

/// Bytes in memory that starts at a multiple of 8, as buffers of the network do.
fn aligned(bytes: &[u8], f: impl FnOnce(&[u8])) {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    all[..bytes.len()].copy_from_slice(bytes);
    f(&all[..bytes.len()]);
}

fn decode_as_everything(bytes: &[u8]) {
    aligned(bytes, |bytes| {
        let _ = Pull::decode(bytes);
        let _ = Push::decode(bytes);
        let _ = PushPull::decode(bytes);
        let _ = Geo::decode(bytes);
        let _ = GeoReply::decode(bytes);
        let _ = SetDense::decode(bytes);
        let _ = Gather::decode(bytes);
        let _ = GatherReply::decode(bytes);
        let _ = Control::decode(bytes);
    });
}

fn words(numbers: &[u64]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// A valid push of one table with two keys and a mark, and a valid pull with counts behind it.
fn push_and_pull(sequence: u64) -> Vec<u8> {
    let mut bytes = words(&[sequence, 0, 8, 0, 1, 10, 0, 2, 6, 0, 0, 1, 8, 8, 0, 3, 8, 8, 0, 1, 2]);
    bytes.extend_from_slice(bytemuck::cast_slice(&[1.0f32; 6]));
    bytes.extend(words(&[1, 0, 1, 0, 2, 2, 1, 2]));
    bytes.extend_from_slice(bytemuck::cast_slice(&[1u32; 2]));
    bytes
}

proptest! {
    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_as_everything(&bytes);
    }

    #[test]
    fn decoders_take_any_small_numbers(numbers in prop::collection::vec(0u64..6, 0..40)) {
        decode_as_everything(&words(&numbers));
    }

    #[test]
    fn decoders_take_damaged_messages(at in 0usize..200, byte: u8, cut in 0usize..200) {
        let mut bytes = push_and_pull(1);
        let n = bytes.len();
        bytes[at % n] = byte;
        decode_as_everything(&bytes);
        decode_as_everything(&bytes[..cut % n]);
        bytes.extend_from_slice(&[byte; 9]);
        decode_as_everything(&bytes);
    }
}

#[test]
fn heads_that_promise_much_are_refused_at_once() {
    aligned(&push_and_pull(1), |bytes| assert!(PushPull::decode(bytes).is_ok()));
    for huge in [u64::MAX, 1 << 61, 1 << 40, 1 << 33] {
        // Sequence, step, examples, dense floats.
        aligned(&words(&[1, 0, 8, huge, 0, 0]), |b| assert!(Push::decode(b).is_err()));
        aligned(&words(&[1, 0, 8, 0, huge, 0]), |b| assert!(Push::decode(b).is_err()));
        aligned(&words(&[1, 0, 8, 0, 0, huge]), |b| assert!(Push::decode(b).is_err()));
        aligned(&words(&[1, 0, 8, 0, 1, 0, 0, huge, huge]), |b| assert!(Push::decode(b).is_err()));
        aligned(&words(&[0, 0, 1, 0, huge, 0]), |b| assert!(Pull::decode(b).is_err()));
        aligned(&words(&[0, 0, 1, 0, 0, huge]), |b| assert!(Pull::decode(b).is_err()));
        aligned(&words(&[huge, 1, huge, huge]), |b| assert!(GeoReply::decode(b).is_err()));
        aligned(&words(&[huge]), |b| assert!(SetDense::decode(b).is_err()));
    }
}

/// A connection that says hello as worker 0 and then whatever it likes.
fn wire(job: &Job, endpoint: &str) -> Wire {
    let me = Identity::worker(0);
    let options = ClientOptions::new(me, Identity::server(0), JobToken::new(&job.token));
    let wire = Wire::connect(endpoint, options).unwrap();
    let hello = Hello { job: job.name.clone(), workers: job.workers, servers: job.servers };
    assert_eq!(ask(&wire, Kind::Control as u16, &Control::Hello(hello).encode()).0, 0);
    wire
}

fn ask(wire: &Wire, kind: u16, payload: &[u8]) -> (u32, String) {
    let pending = wire.send(kind, 0, &[payload]).unwrap();
    let reply = pending.wait(Duration::from_secs(10)).unwrap();
    (reply.status, String::from_utf8_lossy(&reply.payload).into_owned())
}

#[test]
fn a_server_answers_nonsense_and_goes_on() {
    for mode in [Mode::Async(AsyncConfig::default()), Mode::Bounded { staleness: 1 }] {
        let job = Job::new(1, 1, mode);
        let (mut servers, endpoints) = job.start();
        let server = servers.remove(0);
        let wire = wire(&job, &endpoints[0]);
        let valid = push_and_pull(1);
        let packed =
            [Format::F16, Format::Bf16].map(|w| [Kind::Push, Kind::PushPull].map(|k| w.kind(k)));
        for kind in (0..9).chain([77, 0x7fff, 0x301]).chain(packed.into_iter().flatten()) {
            for cut in (0..valid.len()).step_by(5) {
                // Nothing here is complete, so nothing is applied; a few pulls make sense. In the
                // shorter form less is enough to be complete, but there is no push 0.
                let bytes = if kind < 0x100 { valid.clone() } else { push_and_pull(0) };
                ask(&wire, kind, &bytes[..cut]);
                ask(&wire, kind, &vec![0xff; cut]);
                ask(&wire, kind, &vec![0; cut]);
            }
        }
        let refused = |payload: Vec<u8>, kind: Kind, reason: &str| {
            let (status, text) = ask(&wire, kind as u16, &payload);
            assert!(status != 0 && text.contains(reason), "{kind:?}: {text}, not {reason}");
        };
        refused(words(&[1, 0, 8, 0, 1, 0, 5, 0, 0]), Kind::Push, "there is no table 5");
        refused(words(&[1, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0]), Kind::Push, "comes after");
        refused(words(&[1, 0, 8, 0, 1, 0, 0, 1, 0, 9]), Kind::Push, "0 floats for 1 keys");
        refused(
            words(&[1, 0, 8, 2, 0, 0, 0]),
            Kind::Push,
            "2 dense floats, but this server holds 7",
        );
        refused(words(&[3, 0, 8, 0, 0, 0]), Kind::Push, "one between is lost");
        refused(words(&[1, 0, 8, 0, 0, 4, 0, 0, 0, 0]), Kind::Push, "a mark of 4 words");
        refused(words(&[0, 0, 1, 0, 2, 1, 5, 6, 1]), Kind::Pull, "1 counts for 2 keys");
        refused(b"{\"shrnk\":1}".to_vec(), Kind::Control, "malformed");
        refused(b"\"rest\"".repeat(3), Kind::Control, "malformed");
        // Everything is as if nothing had happened.
        let (status, text) = ask(&wire, Kind::PushPull as u16, &valid);
        assert_eq!(status, 0, "{text}");
        let stats = server.stats();
        assert_eq!((stats.steps, stats.repeated), (1, 0));
        assert!(!job.heard("panicked"), "{:?}", job.events.lock().unwrap());
        ask(&wire, Kind::Control as u16, &Control::Leave.encode());
        drop(wire);
        server.run().unwrap();
    }
}

#[test]
fn an_answer_that_would_be_too_large_is_refused() {
    let job = Job::new(1, 1, Mode::HalfAsync);
    let mut config = job.server_config(0);
    let plain = regatta_table::PlainConfig::new(1 << 18, job.rule);
    config.tables[0].config.accessor = regatta_table::Accessor::Plain(plain);
    let server = regatta_ps::Server::start(config).unwrap();
    let wire = wire(&job, &server.endpoint());
    let mut request = words(&[0, 0, 1, 0, 2000, 0]);
    request.extend(words(&(0..2000).collect::<Vec<u64>>()));
    let (status, text) = ask(&wire, Kind::Pull as u16, &request);
    assert!(status != 0 && text.contains("2097152008 bytes"), "{text}");
    assert_eq!(server.stats().tables["t"].rows, 0);
}

#[test]
fn strangers_and_oversized_frames_do_not_disturb() {
    let mut job = Job::new(1, 1, Mode::Async(AsyncConfig::default()));
    job.tune_server = Some(Arc::new(|o: &mut ServerOptions| o.max_payload = 1 << 16));
    job.run(|_, client| {
        begin(client);
        let endpoint = client.endpoints()[0].clone();
        for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 200], &[0xff; 64], b"RGTA"] {
            let mut stranger = TcpStream::connect(&endpoint).unwrap();
            // The server may have closed it already.
            let _ = stranger.write_all(bytes);
        }
        eventually("strangers are refused", || job.heard("refused a connection from"));
        let keys: Vec<u64> = (0..10_000).collect();
        let v = Values { rows: vec![1.0; keys.len() * DIM], keys, dense: vec![1.0; DENSE] };
        let error = with_gradients(&v, 0, |g| client.push(g).err().unwrap());
        assert!(matches!(error, Error::Net(regatta_net::Error::PayloadTooLarge { .. })), "{error}");
        pull(client, 0, &[1, 2], false);
    });
}

//! Processes that do not belong together: everyone is told what is wrong, and the job goes on.

use std::sync::Arc;
use std::time::Duration;

use regatta_net::fault::Faults;
use regatta_net::{Client as Wire, ClientOptions, Identity, JobToken};
use regatta_ps::message::{Control, Kind, ReduceOp};
use regatta_ps::{AsyncConfig, Client, Mode, Server};

use crate::common::*;

fn asynchronous(servers: usize, workers: usize) -> Job {
    Job::new(servers, workers, Mode::Async(AsyncConfig::default()))
}

/// Runs a job with one worker, in the middle of which somebody else tries to connect.
fn while_running(job: &Job, other: impl Fn(&[String]) -> String + Sync) -> String {
    let (results, _) = job.run(|_, client| {
        begin(client);
        pull(client, 0, &[1], false);
        let refusal = other(client.endpoints());
        // All is well here.
        let v = gradients(0, 0);
        let ticket = with_gradients(&v, 0, |g| client.push(g).unwrap());
        client.finish_push(ticket).unwrap();
        assert_eq!(
            pull(client, 1, &[1], true).0,
            v.rows[..DIM].iter().map(|g| -g).collect::<Vec<_>>()
        );
        client.barrier("still here").unwrap();
        refusal
    });
    results.into_iter().next().unwrap()
}

fn refusal(job: &Job, endpoints: &[String], worker: usize) -> String {
    match job.connect(endpoints, worker) {
        Ok(_) => panic!("was not refused"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_wrong_token_or_job_is_refused() {
    let job = asynchronous(2, 1);
    let text =
        while_running(&job, |ends| refusal(&Job { token: "other".into(), ..job.clone() }, ends, 0));
    assert!(text.contains("server 0 at 127.0.0.1:") && text.contains("token"), "{text}");
    let text =
        while_running(&job, |ends| refusal(&Job { name: "other".into(), ..job.clone() }, ends, 0));
    assert!(text.contains("serves another model or configuration"), "{text}");
    assert!(text.contains("server: job, worker: other"), "{text}");
    let text = while_running(&job, |ends| refusal(&Job { workers: 5, ..job.clone() }, ends, 0));
    assert!(text.contains("counts 5 workers and 2 servers, this server 1 and 2"), "{text}");
}

#[test]
fn a_worker_number_that_does_not_exist_is_refused() {
    let job = asynchronous(1, 1);
    let text = while_running(&job, |ends| refusal(&job, ends, 3));
    assert!(text.contains("there is no worker 3, this job has 1"), "{text}");
}

#[test]
fn a_second_process_with_the_same_number_is_refused() {
    for mode in [Mode::Async(AsyncConfig::default()), Mode::Sync] {
        let job = Job::new(2, 1, mode);
        let text = while_running(&job, |ends| refusal(&job, ends, 0));
        assert!(text.contains("there is a worker 0 already"), "{text}");
    }
}

#[test]
fn servers_in_the_wrong_order_are_named() {
    let job = asynchronous(2, 1);
    let text = while_running(&job, |ends| refusal(&job, &[ends[1].clone(), ends[0].clone()], 0));
    assert!(text.contains("expected server 0") && text.contains("but server 1 answers"), "{text}");
}

#[test]
fn another_version_is_named() {
    let mut job = asynchronous(1, 1);
    let text = {
        let plain = job.clone();
        job.tune_client = Some(Arc::new(|o: &mut ClientOptions| {
            // The version is the fifth byte of every frame.
            let fault = Faults { flip_written_at: Some(4), ..Faults::default() };
            o.wrap = Some(Arc::new(move |stream| fault.clone().on(stream)));
            o.connect_timeout = Duration::from_secs(2);
        }));
        while_running(&plain, |ends| refusal(&job, ends, 0))
    };
    assert!(text.contains("version"), "{text}");
}

#[test]
fn a_port_in_use_is_named() {
    let job = asynchronous(1, 1);
    while_running(&job, |ends| {
        let mut config = job.server_config(0);
        config.endpoint = ends[0].clone();
        let text = Server::start(config).err().unwrap().to_string();
        assert!(text.contains(&ends[0]) && text.contains("another process has it"), "{text}");
        text
    });
}

/// Whatever is asked without saying first what job one belongs to.
#[test]
fn nothing_is_done_before_hello() {
    let job = asynchronous(1, 2);
    let (mut servers, endpoints) = job.start();
    let server = servers.remove(0);
    let options = |me| ClientOptions::new(me, Identity::server(0), JobToken::new(&job.token));
    let ask = |wire: &Wire, kind: Kind, payload: &[u8]| {
        let pending = wire.send(kind as u16, 0, &[payload]).unwrap();
        let reply = pending.wait(Duration::from_secs(10)).unwrap();
        (reply.status, String::from_utf8_lossy(&reply.payload).into_owned())
    };
    let reduce =
        Control::Reduce { round: 1, what: "x".into(), op: ReduceOp::Sum, values: vec![] }.encode();
    let requests = [
        (Kind::Pull, vec![0; 24]),
        (Kind::Push, vec![0; 40]),
        (Kind::PushPull, vec![0; 64]),
        (Kind::Geo, vec![0; 40]),
        (Kind::SetDense, vec![0; 8]),
        (Kind::Control, Control::Leave.encode()),
        (Kind::Control, Control::Rest.encode()),
        (Kind::Control, Control::Resume { step: 7, data: None }.encode()),
        (
            Kind::Control,
            Control::Load { dir: "/nowhere".into(), names: vec![], over: false }.encode(),
        ),
        (Kind::Control, reduce),
        (Kind::Control, Control::Stats.encode()),
        (Kind::Control, Control::Shrink { max_unseen_days: Some(0) }.encode()),
    ];
    let worker = Wire::connect(endpoints[0].as_str(), options(Identity::worker(1))).unwrap();
    for (kind, payload) in &requests {
        let (status, text) = ask(&worker, *kind, payload);
        assert!(status != 0 && text.contains("has not said what job"), "{kind:?}: {text}");
    }
    // Tools may look, but not take part.
    let tool = Wire::connect(endpoints[0].as_str(), options(Identity::tool(0))).unwrap();
    for (kind, payload) in &requests[..10] {
        let (status, text) = ask(&tool, *kind, payload);
        assert!(status != 0 && text.contains("only worker"), "{kind:?}: {text}");
    }
    let (status, text) = ask(&tool, Kind::Control, &Control::Stats.encode());
    assert!(status == 0 && text.contains("\"steps\":0"), "{text}");
    // The connection that never said hello is not worker 1; this is.
    let clients: Vec<Client> = (0..2).map(|w| job.connect(&endpoints, w).unwrap()).collect();
    clients.iter().for_each(|c| drop(c.leave().unwrap()));
    drop(clients);
    server.run().unwrap();
}

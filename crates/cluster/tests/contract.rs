//! What each way of saying a place means, and what is said about mistakes.

use std::time::Duration;

use regatta_cluster::{
    CollectivePlace, Devices, Env, JobIdentity, OtherFrameworks, Place, PsPlace, PsRole,
};

/// Variables as `NAME=value` separated by `|`.
fn env(text: &str) -> Env {
    text.split('|')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').expect("NAME=value"))
        .collect()
}

fn ps(text: &str) -> PsPlace {
    match Place::from_env(&env(text)) {
        Ok(Place::ParameterServer(place)) => place,
        other => panic!("{text}: {other:?}"),
    }
}

fn collective(text: &str) -> CollectivePlace {
    match Place::from_env(&env(text)) {
        Ok(Place::Collective(place)) => place,
        other => panic!("{text}: {other:?}"),
    }
}

fn error(text: &str) -> String {
    Place::from_env(&env(text)).expect_err(text).to_string()
}

const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6000,10.0.0.2:6000";

#[test]
fn nothing_or_blanks_are_a_local_run() {
    for text in ["", "PATH=/bin|HOME=/root", "TRAINING_ROLE=|PADDLE_TRAINERS_NUM= "] {
        assert_eq!(Place::from_env(&env(text)), Ok(Place::Local), "{text}");
    }
}

#[test]
fn a_worker_and_a_server_of_paddle_cloud() {
    let worker = ps(&format!(
        "{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINER_ID=1|\
         PADDLE_JOB_ID=ads|REGATTA_JOB_TOKEN=s3|REGATTA_START_TIMEOUT=2.5"
    ));
    assert_eq!(worker.role, PsRole::Worker(1));
    assert_eq!((worker.servers.len(), worker.workers), (2, 2));
    let job = JobIdentity {
        id: "ads".into(),
        token: Some("s3".into()),
        start_timeout: Duration::from_millis(2500),
        tls: regatta_cluster::Tls::default(),
    };
    assert_eq!(worker.job, job);
    assert!(!format!("{worker:?}").contains("s3"), "the token is not printed");
    let server = ps(&format!(
        "{SERVERS}|TRAINING_ROLE=PSERVER|PADDLE_TRAINERS_NUM=2|POD_IP=10.0.0.2|PADDLE_PORT=6000"
    ));
    assert_eq!(server.role, PsRole::Server(1));
    assert_eq!(server.endpoint(), Some("10.0.0.2:6000"));
}

#[test]
fn the_older_names() {
    let both =
        "PADDLE_PSERVER_PORT=6174|PADDLE_PSERVER_IPS=192.168.1.2, 192.168.1.3|PADDLE_TRAINERS=2";
    let server = ps(&format!(
        "{both}|PADDLE_TRAINING_ROLE=PSERVER|PADDLE_CURRENT_IP=192.168.1.3|PADDLE_TRAINER_ID=1"
    ));
    assert_eq!(server.role, PsRole::Server(1));
    assert_eq!(server.servers, ["192.168.1.2:6174", "192.168.1.3:6174"]);
    let worker = ps(&format!("{both}|PADDLE_TRAINING_ROLE=TRAINER|PADDLE_TRAINER_ID=1"));
    assert_eq!((worker.role, worker.workers), (PsRole::Worker(1), 2));
    let no_port =
        "PADDLE_PSERVER_IPS=a|PADDLE_TRAINERS=1|PADDLE_TRAINING_ROLE=TRAINER|PADDLE_TRAINER_ID=0";
    assert_eq!(ps(no_port).servers, ["a:6174"]);
}

#[test]
fn the_number_of_workers_under_both_names() {
    // As PaddleRec's run_gpubox.sh sets them.
    let place = ps(&format!(
        "{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINERS=2|PADDLE_TRAINER_ID=1"
    ));
    assert_eq!((place.role, place.workers), (PsRole::Worker(1), 2));
}

#[test]
fn the_environment_of_a_gpubox_job() {
    // As PaddleRec's run_gpubox.sh exports it; PADDLE_PSERVER_PORT_ARRAY never reaches a process.
    let all = "FLAGS_enable_pir_api=0|NCCL_LAUNCH_MODE=GROUP|FLAGS_LAUNCH_BARRIER=0|\
               PADDLE_TRAINER_ID=0|PADDLE_PSERVER_NUMS=1|PADDLE_TRAINERS=1|PADDLE_TRAINERS_NUM=1|\
               POD_IP=127.0.0.1|PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:29011|\
               FLAGS_selected_gpus=0,1,2,3,4,5,6,7|PADDLE_PORT=29011";
    assert_eq!(ps(&format!("{all}|TRAINING_ROLE=PSERVER")).role, PsRole::Server(0));
    let worker = ps(&format!("{all}|TRAINING_ROLE=TRAINER"));
    assert_eq!((worker.role, worker.workers), (PsRole::Worker(0), 1));
    assert_eq!(worker.servers, ["127.0.0.1:29011"]);
    let devices = Devices::from_env(&env(all)).unwrap();
    assert_eq!(devices.selected, Some((0..8).collect()));
    assert_eq!(devices.visible, None);
}

#[test]
fn devices_that_a_process_may_use() {
    let read = |text: &str| Devices::from_env(&env(text)).map_err(|e| e.to_string());
    assert_eq!(read(""), Ok(Devices::default()));
    let both = read("CUDA_VISIBLE_DEVICES=4, 6|FLAGS_selected_gpus=1").unwrap();
    assert_eq!((both.visible, both.selected), (Some(vec![4, 6]), Some(vec![1])));
    let beyond = read("CUDA_VISIBLE_DEVICES=4,6|FLAGS_selected_gpus=0,2").unwrap_err();
    assert!(beyond.contains("2 is selected, numbered from 0, of 2"), "{beyond}");
    for (text, reason) in [
        ("FLAGS_selected_gpus=0,0", "device 0 is there twice"),
        ("FLAGS_selected_gpus=0,", "separated by commas"),
        ("CUDA_VISIBLE_DEVICES=gpu", "separated by commas"),
    ] {
        assert!(read(text).unwrap_err().contains(reason), "{text}");
    }
}

#[test]
fn a_rank_of_a_collective_job() {
    let list = "PADDLE_TRAINER_ENDPOINTS=a:1,a:2,b:1,b:2";
    let place = collective(&format!(
        "{list}|PADDLE_TRAINER_ID=3|PADDLE_TRAINERS_NUM=4|PADDLE_CURRENT_ENDPOINT=b:2|\
         PADDLE_MASTER=a:9|FLAGS_selected_gpus=1|TRAINING_ROLE=TRAINER"
    ));
    assert_eq!((place.rank, place.world_size()), (3, 4));
    assert_eq!((place.local_rank, place.local_size, place.nodes), (1, 2, 2));
    assert_eq!(place.master.as_deref(), Some("a:9"));
    assert_eq!(place.devices, ["1"]);
    // The own address is enough.
    assert_eq!(collective(&format!("{list}|PADDLE_CURRENT_ENDPOINT=b:1")).rank, 2);
    // Kubernetes gives the index.
    assert_eq!(collective(&format!("{list}|JOB_COMPLETION_INDEX=1")).rank, 1);
}

#[test]
fn kubernetes_gives_the_index_of_a_worker() {
    let place = ps(&format!(
        "{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=3|JOB_COMPLETION_INDEX=2"
    ));
    assert_eq!(place.role, PsRole::Worker(2));
    // An indexed job of something else.
    assert_eq!(Place::from_env(&env("JOB_COMPLETION_INDEX=2")), Ok(Place::Local));
}

#[test]
fn mpirun_on_one_machine() {
    let mpi = "OMPI_COMM_WORLD_RANK=2|OMPI_COMM_WORLD_SIZE=3|OMPI_COMM_WORLD_LOCAL_RANK=2|\
               OMPI_COMM_WORLD_LOCAL_SIZE=3";
    let place = collective(mpi);
    assert_eq!((place.rank, place.local_size), (2, 3));
    assert_eq!(place.endpoints, ["127.0.0.1:6070", "127.0.0.1:6071", "127.0.0.1:6072"]);
    let place = ps(&format!("{mpi}|PADDLE_SERVER_NUM=1|PADDLE_START_PORT=7000"));
    assert_eq!((place.role, place.workers), (PsRole::Worker(1), 2));
    assert_eq!(place.servers, ["127.0.0.1:7000"]);
    let alone = "OMPI_COMM_WORLD_RANK=0|OMPI_COMM_WORLD_SIZE=1|OMPI_COMM_WORLD_LOCAL_RANK=0";
    assert_eq!(Place::from_env(&env(alone)), Ok(Place::Local));
}

#[test]
fn mpirun_on_several_machines_needs_their_addresses() {
    let mpi = "PMI_RANK=3|PMI_SIZE=4|MPI_LOCALRANKID=1|MPI_LOCALNRANKS=2";
    assert!(error(mpi).starts_with("PADDLE_IPS is not set"));
    let place = collective(&format!("{mpi}|PADDLE_IPS=a, b"));
    assert_eq!(place.endpoints, ["a:6070", "a:6071", "b:6070", "b:6071"]);
    assert_eq!((place.rank, place.local_rank, place.nodes), (3, 1, 2));
    let cyclic = "PMI_RANK=1|PMI_SIZE=4|MPI_LOCALRANKID=0|MPI_LOCALNRANKS=2|PADDLE_IPS=a,b";
    assert!(error(cyclic).contains("--map-by slot"));
    assert!(error(&format!("{mpi}|PADDLE_IPS=a,b,c")).contains("6 processes on 3 machines"));
}

#[test]
fn srun_lists_its_machines() {
    let step = "SLURM_STEP_ID=0|SLURM_PROCID=4|SLURM_STEP_NUM_TASKS=7|SLURM_LOCALID=0|\
                SLURM_STEP_NODELIST=gpu[08-10],big|SLURM_STEP_TASKS_PER_NODE=2(x3),1";
    let place = collective(step);
    assert_eq!(place.endpoints[4], "gpu10:6070");
    assert_eq!(place.endpoints[6], "big:6070");
    assert_eq!((place.rank, place.local_rank, place.local_size, place.nodes), (4, 0, 2, 4));
    // The batch script itself has a rank but is not one of several processes.
    let script = "SLURM_PROCID=0|SLURM_NTASKS=7|SLURM_LOCALID=0";
    assert_eq!(Place::from_env(&env(script)), Ok(Place::Local));
}

#[test]
fn each_missing_variable_is_named() {
    let worker =
        format!("{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINER_ID=0");
    let server = format!(
        "{SERVERS}|TRAINING_ROLE=PSERVER|PADDLE_TRAINERS_NUM=2|POD_IP=10.0.0.1|PADDLE_PORT=6000"
    );
    let old_server = "PADDLE_TRAINING_ROLE=PSERVER|PADDLE_PSERVER_IPS=a|PADDLE_TRAINERS=1|\
                      PADDLE_CURRENT_IP=a"
        .to_string();
    let old_worker = "PADDLE_TRAINING_ROLE=TRAINER|PADDLE_PSERVER_IPS=a|PADDLE_TRAINERS=1|\
                      PADDLE_TRAINER_ID=0"
        .to_string();
    for whole in [&worker, &server, &old_server, &old_worker] {
        let pairs: Vec<&str> = whole.split('|').collect();
        for skipped in &pairs {
            let rest: Vec<&str> = pairs.iter().filter(|p| p != &skipped).copied().collect();
            let name = skipped.split('=').next().unwrap();
            // With the list of servers gone the rest may be a collective job; that lacks its list.
            let expected = match name {
                "PADDLE_PSERVERS_IP_PORT_LIST" => "PADDLE_PSERVERS_IP_PORT_LIST is not set",
                other => &format!("{other} is not set"),
            };
            let error = error(&rest.join("|"));
            assert!(error.starts_with(expected), "without {name}: {error}");
        }
    }
    assert!(error("PADDLE_TRAINERS_NUM=2").starts_with("PADDLE_TRAINER_ENDPOINTS is not set"));
    assert!(error("PADDLE_TRAINER_ENDPOINTS=a:1").starts_with("PADDLE_TRAINER_ID is not set"));
}

#[test]
fn contradictions_name_both_sides() {
    for (text, names) in [
        (
            format!("{SERVERS}|PADDLE_TRAINING_ROLE=TRAINER"),
            ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINING_ROLE"],
        ),
        (
            format!(
                "{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINER_ID=0|\
                 PADDLE_TRAINER_ENDPOINTS=a:1"
            ),
            ["PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS"],
        ),
        (
            format!(
                "{SERVERS}|TRAINING_ROLE=PSERVER|PADDLE_TRAINERS_NUM=2|\
                 POD_IP=10.0.0.9|PADDLE_PORT=1"
            ),
            ["POD_IP:PADDLE_PORT", "10.0.0.9:1 is not one of the servers"],
        ),
        (
            "PADDLE_TRAINER_ENDPOINTS=a:1,b:1|PADDLE_TRAINER_ID=0|PADDLE_CURRENT_ENDPOINT=b:1".into(),
            ["PADDLE_TRAINER_ID", "PADDLE_CURRENT_ENDPOINT"],
        ),
        (
            "PADDLE_TRAINER_ENDPOINTS=a:1,b:1|PADDLE_TRAINER_ID=0|PADDLE_TRAINERS_NUM=3".into(),
            ["PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS"],
        ),
        (
            "PADDLE_TRAINER_ENDPOINTS=a:1|PADDLE_TRAINER_ID=0|PADDLE_GLOBAL_RANK=1".into(),
            ["PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"],
        ),
        (
            "PADDLE_TRAINING_ROLE=PSERVER|PADDLE_PSERVER_IPS=a|PADDLE_TRAINERS=1|PADDLE_CURRENT_IP=b"
                .into(),
            ["PADDLE_CURRENT_IP", "PADDLE_PSERVER_IPS"],
        ),
        (
            format!(
                "{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINERS=3|\
                 PADDLE_TRAINER_ID=0"
            ),
            ["PADDLE_TRAINERS_NUM", "PADDLE_TRAINERS contradict"],
        ),
    ] {
        let error = error(&text);
        assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
    }
}

#[test]
fn senseless_values_are_named() {
    let rest = format!("{SERVERS}|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINER_ID=0");
    let wrong_role = error(&format!("{rest}|TRAINING_ROLE=WORKER"));
    assert_eq!(wrong_role, "TRAINING_ROLE is 'WORKER': it must be TRAINER or PSERVER");
    let too_large =
        format!("{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=2|PADDLE_TRAINER_ID=2");
    assert!(error(&too_large).starts_with("PADDLE_TRAINER_ID is '2': there are 2 workers"));
    let none = format!("{SERVERS}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=0|PADDLE_TRAINER_ID=0");
    assert!(error(&none).starts_with("PADDLE_TRAINERS_NUM is '0'"));
    let text = format!("{rest}|TRAINING_ROLE=TRAINER|REGATTA_START_TIMEOUT=soon");
    assert!(error(&text).starts_with("REGATTA_START_TIMEOUT is 'soon'"));
}

#[test]
fn a_job_that_others_can_reach_needs_a_token() {
    let mut job = JobIdentity::default();
    let error = job.secret(&["127.0.0.2:1".into(), "10.0.0.1:1".into()]).unwrap_err().to_string();
    assert!(error.starts_with("REGATTA_JOB_TOKEN is not set"), "{error}");
    job.token = Some("x".into());
    let error = job.secret(&["10.0.0.1:1".into()]).unwrap_err().to_string();
    assert!(error.starts_with("REGATTA_JOB_TOKEN: the token is easy to guess"), "{error}");
    let good = "0123456789abcdef0123456789abcdef";
    job.token = Some(good.into());
    assert_eq!(job.secret(&["10.0.0.1:1".into()]), Ok(good.into()));
}

#[test]
fn ranks_may_know_the_master_alone() {
    let base = "PADDLE_MASTER=10.0.0.1:6768|PADDLE_TRAINERS_NUM=4|\
                REGATTA_JOB_TOKEN=0123456789abcdef";
    let place = collective(&format!("{base}|PADDLE_TRAINER_ID=2"));
    assert_eq!((place.rank, place.world_size()), (2, 4));
    assert_eq!(place.master.as_deref(), Some("10.0.0.1:6768"));
    assert!(place.endpoints.is_empty());
    assert_eq!(place.secret(), Ok("0123456789abcdef".into()));
    assert!(error(&format!("{base}|PADDLE_TRAINER_ID=4")).contains("there are 4 ranks"));
    assert!(error(base).contains("PADDLE_TRAINER_ID"));
    let alone = "PADDLE_MASTER=10.0.0.1:6768|PADDLE_TRAINER_ID=0";
    assert!(error(alone).contains("PADDLE_TRAINERS_NUM"));
    assert!(error(&format!("{alone}|PADDLE_TRAINERS_NUM=2,3")).contains("whole number"));
    // Somebody must know a secret when others can reach the master.
    let open = collective(&format!("{alone}|PADDLE_TRAINERS_NUM=2"));
    assert!(open.secret().unwrap_err().to_string().contains("REGATTA_JOB_TOKEN"));
}

#[test]
fn other_frameworks_meet_on_ports_of_their_own() {
    let list = "PADDLE_TRAINER_ENDPOINTS=a:1,b:1,a:2";
    let others =
        OtherFrameworks { torch: "[fe80::1]:7".into(), gloo: Some("s:8".into()), with_gloo: 2 };
    let of = |text: &str| -> Env {
        others.to_env(&Place::from_env(&env(text)).unwrap()).into_iter().collect()
    };
    let worker = of(&format!(
        "{SERVERS}|{list}|TRAINING_ROLE=TRAINER|PADDLE_TRAINERS_NUM=3|PADDLE_TRAINER_ID=2"
    ));
    let torch =
        "RANK=2|WORLD_SIZE=3|LOCAL_RANK=1|LOCAL_WORLD_SIZE=2|MASTER_ADDR=fe80::1|MASTER_PORT=7";
    let gloo = "PADDLE_WITH_GLOO=2|PADDLE_GLOO_RENDEZVOUS=3|PADDLE_GLOO_HTTP_ENDPOINT=s:8";
    assert_eq!(worker, env(&format!("{torch}|{gloo}")));
    let server = of(&format!(
        "{SERVERS}|{list}|TRAINING_ROLE=PSERVER|PADDLE_TRAINERS_NUM=3|POD_IP=10.0.0.1|\
         PADDLE_PORT=6000"
    ));
    assert_eq!(server, env(gloo));
    let rank = format!("{list}|PADDLE_TRAINER_ID=2");
    assert_eq!(of(&rank), env(torch));
    // Launchers meet at the master and listen there.
    let master = of(&format!("{rank}|PADDLE_MASTER=a:9"));
    assert_eq!(master.get("PADDLE_MASTER"), Some("[fe80::1]:7"));
    assert_eq!(of(""), Env::default());
}

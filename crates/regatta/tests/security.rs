//! Jobs and those who do not belong to them: another user of the machine, and somebody on the line.
//!
//! Machines are network namespaces that the tests make, joined by a pair of virtual interfaces.
//! That needs root; without it the tests say so and pass.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use regatta_net::{Client, ClientOptions, Identity, JobToken};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};

const NOBODY: u32 = 65534;
/// The role of a process that the tests start from their own binary.
const ATTACK: &str = "REGATTA_TEST_ATTACK";
const CAPTURE: &str = "REGATTA_TEST_CAPTURE";

#[expect(clippy::disallowed_methods, reason = "tests pass arguments to their own processes")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn is_root(what: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|me| {
        use std::os::unix::fs::MetadataExt;
        me.uid() == 0
    });
    if !root {
        println!("skipped: {what} needs root");
    }
    root
}

/// A command without a place in a job, in a home of its own.
fn clean(program: &str, home: &Path) -> Command {
    let mut command = Command::new(program);
    for name in regatta_cluster::names::PLACE {
        command.env_remove(name);
    }
    command.env_remove("XDG_RUNTIME_DIR").env("XDG_CACHE_HOME", home);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Arguments of `regatta train` for a small model.
fn train(dir: &Path, mode: &str) -> Vec<String> {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let data =
        "runner.train_data_dir=synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&examples=2000";
    let save = format!("runner.model_save_path={}", dir.join("model").display());
    let config = config.to_string_lossy().into_owned();
    let mut args: Vec<String> =
        ["train", "-m", &config, "-o", data, &save].map(String::from).into();
    let rest = ["runner.epochs=1", "runner.split_file_list=True", "runner.train_batch_size=100"];
    args.extend(rest.map(String::from));
    args.push(format!("runner.sync_mode={mode}"));
    args
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output))
}

fn free_endpoint() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// This test binary, where every user can run it.
fn own_binary(dir: &Path) -> PathBuf {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.join("attacker");
    // Another process copies: a child that a test beside this one starts meanwhile would keep the
    // copy open for writing, and a file that is can not be executed.
    let from = std::env::current_exe().unwrap();
    assert!(Command::new("cp").arg(from).arg(&copy).status().unwrap().success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// What the other user tries: the secrets that it can know, in every role.
#[test]
fn attacker() {
    let Some(endpoint) = variable(ATTACK) else { return };
    let own = fs::read_to_string("token").unwrap_or_default();
    let secrets = ["job default", "", "default", &format!("{} job default", own.trim())];
    for secret in secrets {
        for me in [Identity::tool(0), Identity::worker(0)] {
            let mut options = ClientOptions::new(me, Identity::server(0), JobToken::new(secret));
            options.connect_timeout = Duration::from_millis(500);
            match Client::connect(endpoint.as_str(), options) {
                Ok(_) => panic!("{me} was let in with '{secret}'"),
                Err(error) => println!("{me}: {error}"),
            }
        }
    }
    println!("kept out");
}

#[test]
fn another_user_of_the_machine_is_kept_out_of_a_job_without_a_token() {
    if !is_root("a second user") {
        return;
    }
    let (dir, public) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let endpoint = free_endpoint();
    let start = |role: &str| {
        let mut command = clean(env!("CARGO_BIN_EXE_regatta"), dir.path());
        command.args(train(dir.path(), "async"));
        command.env("PADDLE_PSERVERS_IP_PORT_LIST", &endpoint);
        command.env("PADDLE_TRAINERS_NUM", "1").env("TRAINING_ROLE", role);
        let (host, port) = endpoint.split_once(':').unwrap();
        match role {
            "PSERVER" => command.env("POD_IP", host).env("PADDLE_PORT", port),
            _ => command.env("PADDLE_TRAINER_ID", "0"),
        };
        command
    };
    let server = start("PSERVER").spawn().unwrap();
    while std::net::TcpStream::connect(&endpoint).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    let attacker = own_binary(public.path());
    let mut attack = clean(attacker.to_str().unwrap(), public.path());
    attack.args(["attacker", "--exact", "--nocapture"]).env(ATTACK, &endpoint);
    attack.current_dir(public.path()).uid(NOBODY).gid(NOBODY);
    let output = attack.output().unwrap();
    assert!(output.status.success() && text(&output).contains("kept out"), "{}", text(&output));

    // The same command of the other user, with a token file of its own.
    fs::set_permissions(public.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut worker = start("TRAINER");
    worker.env("XDG_CACHE_HOME", public.path().join("cache")).env("REGATTA_START_TIMEOUT", "2");
    worker.current_dir(public.path()).uid(NOBODY).gid(NOBODY);
    if let Ok(output) = worker.output() {
        assert!(!output.status.success(), "{}", text(&output));
    }
    let token = dir.path().join("regatta/token");
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);

    // The user's own worker trains and ends the server.
    let (code, all) = end(start("TRAINER").spawn().unwrap());
    assert_eq!(code, Some(0), "{all}");
    let (code, all) = end(server);
    assert_eq!(code, Some(0), "{all}");
    assert!(all.contains("presented a wrong job token"), "{all}");
}

/// Two network namespaces that see each other; removed at the end.
struct Machines {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.213.7.1", "10.213.7.2"];

impl Machines {
    /// `None` where namespaces cannot be made.
    fn new(test: &str) -> Option<Machines> {
        if !is_root("network namespaces") {
            return None;
        }
        let id = std::process::id();
        let machines = Machines { names: [0, 1].map(|n| format!("rgt-{test}-{id}-{n}")) };
        let ip = |args: &str| {
            let done = Command::new("ip").args(args.split(' ')).output();
            done.is_ok_and(|output| output.status.success())
        };
        let [a, b] = &machines.names;
        let link = |n: usize| format!("rg{n}{}", id % 100_000);
        let (one, two) = (link(0), link(1));
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add {one} netns {a} type veth peer name {two} netns {b}"))
            && ip(&format!("-n {a} addr add {}/24 dev {one}", ADDRESSES[0]))
            && ip(&format!("-n {b} addr add {}/24 dev {two}", ADDRESSES[1]))
            && [(a, &one), (b, &two)].iter().all(|(name, link)| {
                ip(&format!("-n {name} link set {link} up"))
                    && ip(&format!("-n {name} link set lo up"))
            });
        if !made {
            println!("skipped: network namespaces cannot be made here");
            return None;
        }
        Some(machines)
    }

    /// A program on one of them.
    fn on(&self, machine: usize, program: &str, home: &Path) -> Command {
        let mut command = clean("ip", home);
        command.args(["netns", "exec", &self.names[machine], program]);
        command
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Copies whatever leaves or reaches a machine, until standard input ends.
#[test]
fn capturer() {
    let Some(file) = variable(CAPTURE) else { return };
    let every = Protocol::from_raw(std::num::NonZero::new(0x0300).unwrap());
    let socket = rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(every),
    );
    let socket = socket.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ending = done.clone();
    thread::spawn(move || {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        ending.store(true, Ordering::SeqCst);
    });
    let limit = Some(Duration::from_millis(50));
    let which = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&socket, which, limit).unwrap();
    let mut out = std::io::BufWriter::new(fs::File::create(file).unwrap());
    eprintln!("capturing");
    let mut packet = vec![0; 70_000];
    loop {
        match rustix::net::recv(&socket, &mut packet, RecvFlags::empty()) {
            // Packets that stay on the machine have no addresses of interfaces.
            Ok((n, _)) if packet[..n].iter().take(12).all(|byte| *byte == 0) => {}
            Ok((n, _)) => std::io::Write::write_all(&mut out, &packet[..n]).unwrap(),
            Err(_) if done.load(Ordering::SeqCst) => return,
            Err(_) => {}
        }
    }
}

/// A capture of what passes a machine.
struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    fn begin(machines: &Machines, dir: &Path) -> Capture {
        let file = dir.join("capture");
        let this = std::env::current_exe().unwrap();
        let mut command = machines.on(0, this.to_str().unwrap(), dir);
        command.args(["capturer", "--exact", "--nocapture"]).env(CAPTURE, &file);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        assert!(line.contains("capturing"), "{line}");
        child.stderr = Some(lines.into_inner());
        Capture { child, file }
    }

    fn end(mut self) -> Vec<u8> {
        drop(self.child.stdin.take());
        let (code, all) = end(self.child);
        assert_eq!(code, Some(0), "{all}");
        fs::read(&self.file).unwrap()
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Runs the same command of `fleetrun` on both machines; both must succeed.
fn fleetrun(machines: &Machines, dir: &Path, flags: &[&str], mode: &str) -> String {
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef of this test\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let start = |machine: usize| {
        let mut command = machines.on(machine, env!("CARGO_BIN_EXE_fleetrun"), dir);
        command.args(["--token-file", token.to_str().unwrap()]).args(flags);
        command.arg(format!("--host={}", ADDRESSES[machine]));
        command.arg(format!("--log_dir={}", dir.join(format!("log-{machine}")).display()));
        command.arg("regatta").args(train(dir, mode)).current_dir(dir);
        command.spawn().unwrap()
    };
    let both = [0, 1].map(start);
    let mut all = String::new();
    for (machine, child) in both.into_iter().enumerate() {
        let (code, text) = end(child);
        let logs: String = fs::read_dir(dir.join(format!("log-{machine}")))
            .unwrap()
            .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        assert_eq!(code, Some(0), "machine {machine}: {text}{logs}");
        all = all + &text + &logs;
    }
    all
}

/// Whether three ids stand in a row: 8 bytes each, of which the upper ones are zero.
fn contains_ids(haystack: &[u8]) -> bool {
    let is_id = |bytes: &[u8]| bytes[..2] != [0, 0] && bytes[2..] == [0; 6];
    haystack.windows(24).any(|window| window.chunks(8).all(is_id))
}

/// The magic of frames and the name of a verb: what is in clear otherwise.
const IN_CLEAR: [&[u8]; 2] = [b"RGTA", b"\"hello\":{"];

#[test]
fn servers_and_workers_on_two_machines_train_encrypted() {
    let Some(machines) = Machines::new("ps") else { return };
    for (tls, encrypted) in [("on", true), ("off", false)] {
        let dir = tempfile::tempdir().unwrap();
        let capture = Capture::begin(&machines, dir.path());
        let list = |port: u16| ADDRESSES.map(|host| format!("{host}:{port}")).join(",");
        let (servers, workers) = (list(6070), list(6170));
        let (servers, workers) = (format!("--servers={servers}"), format!("--workers={workers}"));
        let mut flags = vec![servers.as_str(), workers.as_str()];
        if !encrypted {
            flags.extend(["--tls", tls]);
        }
        let all = fleetrun(&machines, dir.path(), &flags, "sync");
        let seen = capture.end();
        assert!(seen.len() > 100_000, "{} bytes on the line", seen.len());
        for word in IN_CLEAR {
            let word_text = String::from_utf8_lossy(word);
            assert_eq!(contains(&seen, word), !encrypted, "{word_text} with --tls {tls}");
        }
        assert_eq!(contains_ids(&seen), !encrypted, "ids with --tls {tls}");
        assert_eq!(all.contains("not encrypted"), !encrypted, "{all}");
    }
}

#[test]
fn ranks_in_two_containers_on_one_machine_train() {
    let Some(machines) = Machines::new("ranks") else { return };
    let dir = tempfile::tempdir().unwrap();
    let capture = Capture::begin(&machines, dir.path());
    let ips = format!("--ips={}", ADDRESSES.join(","));
    let all = fleetrun(&machines, dir.path(), &[&ips, "--nproc_per_node=2"], "sync");
    assert!(all.contains("over TCP: it is on this machine"), "{all}");
    assert!(all.contains("TLS"), "{all}");
    let seen = capture.end();
    assert!(seen.len() > 10_000 && !contains(&seen, IN_CLEAR[0]), "{} bytes", seen.len());
}

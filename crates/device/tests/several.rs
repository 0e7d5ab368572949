//! Two devices in one process that give each other rows through host memory. PoCL shows two when
//! its environment says so, which is set for a process of its own: this one, started again.

use std::process::Command;
use std::thread;

use regatta_device::{Arena, Choice, Device, Queue, Step};
use regatta_optim::{Rule, Sgd, SharedState};

#[test]
fn two_devices_work_side_by_side() {
    if let Err(e) = Choice::OpenClCpu(0).open() {
        eprintln!("left out: {e}");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "in_a_process_with_two_devices", "--nocapture"])
        .env("POCL_DEVICES", "pthread pthread")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

const ROWS: usize = 500;
const DIM: usize = 7;

fn table(seed: u32) -> Vec<f32> {
    (0..ROWS * DIM).map(|i| ((i as u32 * 31 + seed) % 1000) as f32 / 500.0 - 1.0).collect()
}

fn arena(device: &Device, values: &[f32]) -> Arena {
    let arena = Arena::new(device, ROWS as u64, DIM as u32, DIM as u32).unwrap();
    device.write_values(Queue::Compute, &arena.buffer, 0, values).unwrap();
    arena
}

/// Packs the weights of some rows of one device and brings them to the other as gradients: out on
/// the compute queue of the owner, over both transfer queues, into the compute queue of the other.
fn exchange(from: &Device, rows: &Arena, to: &Device, target: &Arena, slots: &[u32]) {
    let n = slots.len();
    let bytes = n * DIM * 4;
    let [slots_from, slots_to] = [from, to].map(|device| device.buffer_of(slots).unwrap());
    let packed = from.alloc(bytes as u64).unwrap();
    from.rows_out(Queue::Compute, rows, &slots_from, n as u32, (&packed, DIM as u32)).unwrap();
    let ready = from.mark(Queue::Compute).unwrap();
    from.after(Queue::Transfer, &ready).unwrap();
    let mut left = from.host(bytes).unwrap();
    from.download(Queue::Transfer, (&packed, 0), (&mut left, 0), bytes).unwrap();

    let mut right = to.host(bytes).unwrap();
    right.bytes().unwrap().copy_from_slice(left.bytes().unwrap());
    let arrived = to.alloc(bytes as u64).unwrap();
    to.upload(Queue::Transfer, (&mut right, 0), (&arrived, 0), bytes).unwrap();
    let there = to.mark(Queue::Transfer).unwrap();
    to.after(Queue::Compute, &there).unwrap();
    let step = Step::new(&Rule::Sgd(Sgd {}), 0.5, &SharedState::default()).unwrap();
    to.update_rows(Queue::Compute, &step, target, &slots_to, (&arrived, n as u32)).unwrap();
}

#[test]
#[ignore = "needs POCL_DEVICES='pthread pthread'"]
fn in_a_process_with_two_devices() {
    let devices = [0, 1].map(|n| Choice::OpenClCpu(n).open().unwrap());
    let [a, b] = &devices;
    assert_eq!((a.info().number, b.info().number), (0, 1));
    let missing = Choice::OpenClCpu(2).open().unwrap_err().to_string();
    assert!(missing.contains("no device for 'opencl-cpu:2'"), "{missing}");
    assert!(missing.contains("opencl-cpu:1 ("), "what is there: {missing}");

    let [left, right] = [arena(a, &table(1)), arena(b, &table(2))];
    let slots: Vec<u32> = (0..ROWS as u32).step_by(3).collect();
    let wrong = a.rows_out(Queue::Compute, &right, &right.buffer, 1, (&left.buffer, 1));
    assert!(wrong.unwrap_err().to_string().contains("another device"));

    // Each in a thread of its own, back and forth.
    for _ in 0..5 {
        thread::scope(|scope| {
            scope.spawn(|| exchange(a, &left, b, &right, &slots[..80]));
            scope.spawn(|| exchange(b, &right, a, &left, &slots[80..]));
        });
    }
    let [mut x, mut y] = [table(1), table(2)];
    for _ in 0..5 {
        for (i, &slot) in slots.iter().enumerate() {
            let row = slot as usize * DIM..(slot as usize + 1) * DIM;
            for at in row {
                match i < 80 {
                    true => y[at] -= 0.5 * x[at],
                    false => x[at] -= 0.5 * y[at],
                }
            }
        }
    }
    let read = |device: &Device, arena: &Arena| {
        device.read_floats(Queue::Compute, &arena.buffer, 0, ROWS * DIM).unwrap()
    };
    assert_eq!(read(a, &left), x);
    assert_eq!(read(b, &right), y);
}

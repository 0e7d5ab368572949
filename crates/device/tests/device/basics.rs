//! Buffers, launches, queues, events and errors.

use std::time::Duration;

use regatta_device::{Arg, Choice, Error, Grid, Queue, Text};

use super::device;

#[test]
fn a_launch_writes_its_range_and_is_counted() {
    let Some(device) = device() else { return };
    let before = device.counters().now();
    let y = device.buffer_of(&vec![7.0_f32; 1001]).unwrap();
    let fill = device.kernel("fill").unwrap();
    let args = [Arg::Buffer(&y), Arg::F32(2.5), Arg::U64(999)];
    device.launch(Queue::Compute, &fill, Grid::over(999, 64), &args).unwrap();
    let read = device.read_floats(Queue::Compute, &y, 0, 1001).unwrap();
    assert!(read[..999].iter().all(|&x| x == 2.5));
    assert_eq!(read[999..], [7.0, 7.0]);
    let counts = device.counters().now().since(&before);
    assert_eq!((counts.launches, counts.uploads, counts.downloads), (1, 1, 1));
    assert_eq!((counts.bytes_up, counts.bytes_down), (4004, 4004));
}

#[test]
fn large_values_travel_in_pieces() {
    let Some(device) = device() else { return };
    let values: Vec<u32> = (0..3_000_001).collect();
    let x = device.buffer_of(&values).unwrap();
    let mut back = vec![0_u32; values.len()];
    device.read(Queue::Compute, &x, 0, bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert!(back == values);
    let mut part = [0_u32; 5];
    device.read(Queue::Compute, &x, 4 * 2_000_000, bytemuck::cast_slice_mut(&mut part)).unwrap();
    assert_eq!(part, [2_000_000, 2_000_001, 2_000_002, 2_000_003, 2_000_004]);
}

#[test]
fn parts_of_buffers_are_buffers() {
    let Some(device) = device() else { return };
    let align = device.info().align;
    let whole = device.alloc(align * 4).unwrap();
    device.fill(Queue::Compute, &whole, 0).unwrap();
    let part = device.slice(&whole, align * 2, align).unwrap();
    let n = align / 4;
    let fill = device.kernel("fill").unwrap();
    let args = [Arg::Buffer(&part), Arg::F32(1.0), Arg::U64(n)];
    device.launch(Queue::Compute, &fill, Grid::over(n, 32), &args).unwrap();
    device.copy(Queue::Compute, (&part, 0), (&whole, 4), 4).unwrap();
    let read = device.read_floats(Queue::Compute, &whole, 0, n as usize * 4).unwrap();
    let expected = |i: usize| i == 1 || (i as u64 / n) == 2;
    assert!(read.iter().enumerate().all(|(i, &x)| x == f32::from(u8::from(expected(i)))));

    let error = device.slice(&whole, align / 2, 4).unwrap_err().to_string();
    assert!(error.contains("multiples of"), "{error}");
    let error = device.slice(&whole, align * 3, align + 1).unwrap_err();
    assert!(matches!(error, Error::Range { .. }), "{error}");
}

#[test]
fn events_order_the_queues() {
    let Some(device) = device() else { return };
    let n = 1 << 18;
    let mut host = device.host(n * 4).unwrap();
    let x = device.alloc(n as u64 * 4).unwrap();
    let y = device.alloc(n as u64 * 4).unwrap();
    let copy = device.kernel("copy").unwrap();
    for round in 0..20 {
        host.values::<f32>().unwrap().fill(round as f32);
        device.upload(Queue::Transfer, (&mut host, 0), (&x, 0), n * 4).unwrap();
        let there = device.mark(Queue::Transfer).unwrap();
        device.after(Queue::Compute, &there).unwrap();
        let args = [Arg::Buffer(&x), Arg::Buffer(&y), Arg::U64(n as u64)];
        device.launch(Queue::Compute, &copy, Grid::over(n as u64, 256), &args).unwrap();
        let copied = device.mark(Queue::Compute).unwrap();
        device.after(Queue::Transfer, &copied).unwrap();
        device.download(Queue::Transfer, (&y, 0), (&mut host, 0), n * 4).unwrap();
        assert!(host.values::<f32>().unwrap().iter().all(|&v| v == round as f32));
        assert!(copied.is_done().unwrap());
    }
}

#[test]
fn a_text_that_does_not_compile_shows_the_log() {
    let Some(device) = device() else { return };
    let text = Text::new("broken", "KERNEL void broken(GLOBAL float *x) { x[0] = nothing; }");
    let error = device.build(&text).unwrap_err().to_string();
    assert!(error.contains("'broken'") && error.contains("opencl-cpu:0"), "{error}");
    assert!(error.contains("nothing"), "the compiler's message: {error}");
    let error = device.kernel("no_such").unwrap_err().to_string();
    assert!(error.contains("'no_such'"), "{error}");
}

#[test]
fn arguments_are_compared_with_the_text() {
    let Some(device) = device() else { return };
    let fill = device.kernel("fill").unwrap();
    let y = device.alloc(16).unwrap();
    let launch = |args: &[Arg<'_>]| {
        device.launch(Queue::Compute, &fill, Grid::over(4, 4), args).unwrap_err().to_string()
    };
    let error = launch(&[Arg::Buffer(&y)]);
    assert!(error.contains("takes 3 arguments, not 1"), "{error}");
    let error = launch(&[Arg::Buffer(&y), Arg::U32(1), Arg::U64(4)]);
    assert!(error.contains("takes F32 as argument 1, not U32"), "{error}");
    let other = Choice::OpenClCpu(0).open().unwrap();
    let elsewhere = other.alloc(16).unwrap();
    let error = launch(&[Arg::Buffer(&elsewhere), Arg::F32(1.0), Arg::U64(4)]);
    assert!(error.contains("buffer of another device"), "{error}");
}

#[test]
fn a_wait_ends_and_says_what_it_waited_for() {
    let Some(device) = device() else { return };
    let source = "KERNEL void slow(GLOBAL float *x, const uint n) {\n\
                  float s = 0.0f; for (uint i = 0; i < n; ++i) s = s * 0.5f + x[i % 3];\n\
                  x[3] = s; }";
    device.build(&Text::new("slow", source)).unwrap();
    let x = device.buffer_of(&[1.0_f32, 2.0, 3.0, 0.0]).unwrap();
    device.finish(Queue::Compute, "uploads").unwrap();
    let slow = device.kernel("slow").unwrap();
    let args = [Arg::Buffer(&x), Arg::U32(400_000_000)];
    device.launch(Queue::Compute, &slow, Grid::over(1, 1), &args).unwrap();
    device.set_limit(Duration::from_millis(1));
    let error = device.finish(Queue::Compute, "a slow kernel").unwrap_err().to_string();
    assert!(error.ends_with("has not finished within 0.001 s: a slow kernel"), "{error}");
    device.set_limit(Duration::from_secs(100));
    device.finish(Queue::Compute, "a slow kernel").unwrap();
}

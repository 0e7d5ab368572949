//! Rows that move, are pooled and added up, against loops.

use regatta_device::{Arena, Pool, Queue};

use super::{device, noise};

#[test]
fn rows_go_in_and_out_by_slot() {
    let Some(device) = device() else { return };
    for (stride, dim) in [(1, 1), (5, 2), (27, 9), (48, 16)] {
        let arena = Arena::new(&device, 100, stride, dim).unwrap();
        assert_eq!(arena.slots(), 100);
        device.fill(Queue::Compute, &arena.buffer, 0).unwrap();
        let slots: Vec<u32> = (0..31).map(|i| (i * 37 + 5) % 100).collect();
        let packed = noise(1, slots.len() * stride as usize);
        let [slots_on, packed_on] =
            [device.buffer_of(&slots).unwrap(), device.buffer_of(&packed).unwrap()];
        let rows = slots.len() as u32;
        device.rows_in(Queue::Compute, (&packed_on, stride), &arena, &slots_on, rows).unwrap();

        let all =
            device.read_floats(Queue::Compute, &arena.buffer, 0, 100 * stride as usize).unwrap();
        let mut expected = vec![0.0; all.len()];
        let width = stride as usize;
        for (row, &slot) in slots.iter().enumerate() {
            let at = slot as usize * width;
            expected[at..at + width].copy_from_slice(&packed[row * width..(row + 1) * width]);
        }
        assert_eq!(all, expected);

        // Weights only, in another order.
        let back: Vec<u32> = slots.iter().rev().copied().collect();
        let back_on = device.buffer_of(&back).unwrap();
        let out = device.alloc(u64::from(rows * dim) * 4).unwrap();
        device.rows_out(Queue::Compute, &arena, &back_on, rows, (&out, dim)).unwrap();
        let got = device.read_floats(Queue::Compute, &out, 0, (rows * dim) as usize).unwrap();
        for (row, &slot) in back.iter().enumerate() {
            let (from, at) = (slot as usize * width, row * dim as usize);
            let dim = dim as usize;
            assert_eq!(got[at..at + dim], expected[from..from + dim]);
        }
    }
}

#[test]
fn pools_and_sums_of_segments() {
    let Some(device) = device() else { return };
    let (stride, dim, n_slots) = (11, 3, 50);
    let arena = Arena::new(&device, n_slots, stride, dim).unwrap();
    let values = noise(2, (n_slots * u64::from(stride)) as usize);
    device.write_values(Queue::Compute, &arena.buffer, 0, &values).unwrap();
    let starts: Vec<u32> = vec![0, 3, 3, 4, 11, 20];
    let slots: Vec<u32> = (0..20).map(|i| (i * 7) % 50).collect();
    let [slots_on, starts_on] =
        [device.buffer_of(&slots).unwrap(), device.buffer_of(&starts).unwrap()];
    let segments = starts.len() - 1;
    let out = device.alloc((segments * 3 * 4) as u64).unwrap();
    for pool in [Pool::Sum, Pool::Mean, Pool::SqrtN] {
        let at = [&slots_on, &starts_on];
        device.gather_pool(Queue::Compute, &arena, at, &out, segments as u32, pool).unwrap();
        let got = device.read_floats(Queue::Compute, &out, 0, segments * 3).unwrap();
        for (i, have) in got.iter().enumerate() {
            let of = &slots[starts[i / 3] as usize..starts[i / 3 + 1] as usize];
            let sum: f32 = of.iter().map(|&slot| values[(slot * stride) as usize + i % 3]).sum();
            let n = of.len().max(1) as f32;
            let want = sum * [1.0, 1.0 / n, 1.0 / n.sqrt()][pool as usize];
            assert!((have - want).abs() < 1e-6, "{pool:?}: {have}, not {want}");
        }
    }

    let packed = noise(3, 20 * 3);
    let positions: Vec<u32> = (0..20).rev().collect();
    let [packed_on, positions_on] =
        [device.buffer_of(&packed).unwrap(), device.buffer_of(&positions).unwrap()];
    let of = [&positions_on, &starts_on];
    device.segment_sum(Queue::Compute, &packed_on, of, &out, [segments as u32, 3]).unwrap();
    let got = device.read_floats(Queue::Compute, &out, 0, segments * 3).unwrap();
    for (i, have) in got.iter().enumerate() {
        let of = &positions[starts[i / 3] as usize..starts[i / 3 + 1] as usize];
        let want = of.iter().fold(0.0, |sum, &p| sum + packed[p as usize * 3 + i % 3]);
        assert_eq!(*have, want, "in the order of the positions");
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let Some(device) = device() else { return };
    let arena = Arena::new(&device, 10, 4, 2).unwrap();
    let slots = device.buffer_of(&[0_u32, 1]).unwrap();
    let packed = device.alloc(40).unwrap();
    let wide = device.rows_in(Queue::Compute, (&packed, 5), &arena, &slots, 2).unwrap_err();
    assert!(wide.to_string().contains("a row has 4 floats, not 5"), "{wide}");
    let many = device.rows_in(Queue::Compute, (&packed, 4), &arena, &slots, 3).unwrap_err();
    assert!(many.to_string().contains("packed rows"), "{many}");
    device.rows_in(Queue::Compute, (&packed, 4), &arena, &slots, 0).unwrap();
}

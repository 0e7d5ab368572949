//! What every backend must do. Each check runs on all ranks of a group at the same time and
//! compares with what one process computes.

use regatta_collective::{Group, ReduceOp, Wire};
use regatta_kernels::half::{self, Half};

/// A check, run by every rank.
pub(crate) type Check = fn(&mut Group);

/// All checks, by name.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("all_reduce", all_reduce),
    ("all_reduce_f64", all_reduce_f64),
    ("all_reduce_is_the_same_everywhere", all_reduce_is_the_same_everywhere),
    ("all_reduce_of_halves", all_reduce_of_halves),
    ("reduce", reduce),
    ("reduce_scatter", reduce_scatter),
    ("broadcast", broadcast),
    ("broadcast_bytes", broadcast_bytes),
    ("all_gather", all_gather),
    ("all_gather_bytes", all_gather_bytes),
    ("scatter", scatter),
    ("send_and_recv", send_and_recv),
    ("barrier", barrier),
    ("split", split),
    ("back_to_back", back_to_back),
];

/// Lengths around the borders between algorithms and around the number of ranks.
const LENGTHS: &[usize] = &[0, 1, 2, 3, 5, 17, 1000, 4096, 16_385, 70_001, 300_007];
const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod, ReduceOp::Mean];

/// Small whole numbers, so that sums and products are exact in any order.
fn value(rank: usize, i: usize, salt: usize) -> f32 {
    let mixed = (i * 31 + rank * 17 + salt * 7 + i / 97) % 13;
    mixed as f32 - 6.0
}

fn contribution(rank: usize, len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i, salt)).collect()
}

/// What all ranks should get.
fn reduced(size: usize, len: usize, salt: usize, op: ReduceOp) -> Vec<f32> {
    let one = |i| {
        let values = (0..size).map(|rank| value(rank, i, salt));
        match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Prod => values.product(),
            ReduceOp::Max => values.fold(f32::NEG_INFINITY, f32::max),
            ReduceOp::Min => values.fold(f32::INFINITY, f32::min),
            ReduceOp::Mean => values.sum::<f32>() * (1.0 / size as f32),
        }
    };
    (0..len).map(one).collect()
}

fn all_reduce(group: &mut Group) {
    for (salt, len) in LENGTHS.iter().enumerate() {
        for op in OPS {
            let mut data = contribution(group.rank(), *len, salt);
            group.all_reduce("x", &mut data, op, Wire::F32).unwrap();
            assert!(data == reduced(group.size(), *len, salt, op), "{op} of {len}");
        }
    }
}

fn all_reduce_f64(group: &mut Group) {
    for len in [0, 1, 3, 5000, 100_003] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod] {
            let data = contribution(group.rank(), len, 1);
            let mut data: Vec<f64> = data.into_iter().map(f64::from).collect();
            group.all_reduce_f64("x", &mut data, op).unwrap();
            let wanted = reduced(group.size(), len, 1, op);
            assert!(data.iter().zip(&wanted).all(|(a, b)| *a == f64::from(*b)), "{op} of {len}");
        }
    }
}

/// Sums of fractions depend on their order; the bits must not depend on the rank.
fn all_reduce_is_the_same_everywhere(group: &mut Group) {
    for len in [1, 7, 4096, 100_003] {
        let mut data: Vec<f32> = (0..len)
            .map(|i| ((i + 1) as f32).sqrt() * 1.1f32.powi(group.rank() as i32 * 9 - i % 20))
            .collect();
        group.all_reduce("x", &mut data, ReduceOp::Mean, Wire::F32).unwrap();
        same_bits(group, &data);
    }
}

/// Contributions and result are rounded to the format, the sum in between is not.
fn all_reduce_of_halves(group: &mut Group) {
    let at = |rank: usize, i: usize| ((i * 7 + rank * 3) % 1009) as f32 * 0.37 - 180.0;
    for wire in [Wire::Bf16, Wire::F16] {
        let rounded = |x: f32| {
            let (format, mut bits, mut back) = (format_of(wire), [0], [0.0]);
            half::narrow(format, &[x], &mut bits);
            half::widen(format, &bits, &mut back);
            back[0]
        };
        for len in [0, 1, 3, 4096, 100_003] {
            let mut data: Vec<f32> = (0..len).map(|i| at(group.rank(), i)).collect();
            group.all_reduce("x", &mut data, ReduceOp::Mean, wire).unwrap();
            let size = group.size();
            let wanted = |i| {
                let sum: f32 = (0..size).map(|rank| rounded(at(rank, i))).sum();
                rounded(sum * (1.0 / size as f32))
            };
            for (i, x) in data.iter().enumerate() {
                assert_eq!(*x, wanted(i), "{wire}, element {i} of {len}");
            }
            same_bits(group, &data);
        }
    }
}

fn format_of(wire: Wire) -> Half {
    if wire == Wire::Bf16 { Half::Bf16 } else { Half::F16 }
}

fn same_bits(group: &mut Group, data: &[f32]) {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let all = group.all_gather_bytes("bits", &bytes).unwrap();
    assert!(all.iter().all(|theirs| *theirs == bytes));
}

fn reduce(group: &mut Group) {
    for len in [0, 1, 5, 1000, 70_001] {
        for root in 0..group.size() {
            let mut data = contribution(group.rank(), len, root);
            group.reduce("x", &mut data, ReduceOp::Sum, root).unwrap();
            if group.rank() == root {
                assert!(data == reduced(group.size(), len, root, ReduceOp::Sum), "{len}");
            }
        }
    }
}

fn reduce_scatter(group: &mut Group) {
    for len in [0, 1, 5, 1000, 70_001] {
        let mut data = contribution(group.rank(), len, 3);
        let mine = group.reduce_scatter("x", &mut data, ReduceOp::Sum).unwrap();
        let all = reduced(group.size(), len, 3, ReduceOp::Sum);
        assert!(mine == all[group.part(len, group.rank())], "{len}");
    }
}

fn broadcast(group: &mut Group) {
    for len in [0, 1, 5, 1000, 300_007] {
        for root in 0..group.size() {
            let mut data = contribution(group.rank(), len, 5);
            group.broadcast("x", &mut data, root).unwrap();
            assert!(data == contribution(root, len, 5), "{len} from {root}");
        }
    }
}

fn broadcast_bytes(group: &mut Group) {
    for root in 0..group.size() {
        for len in [0, 1, 200_000] {
            let bytes = vec![group.rank() as u8; if group.rank() == root { len } else { 3 }];
            let got = group.broadcast_bytes("x", bytes, root).unwrap();
            assert!(got == vec![root as u8; len]);
        }
    }
}

fn all_gather(group: &mut Group) {
    for len in [0, 1, 1000, 40_001] {
        let all = group.all_gather("x", &contribution(group.rank(), len, 2)).unwrap();
        let wanted: Vec<f32> =
            (0..group.size()).flat_map(|rank| contribution(rank, len, 2)).collect();
        assert!(all == wanted, "{len}");
    }
}

fn all_gather_bytes(group: &mut Group) {
    // The same buffers for longer and shorter contents.
    let mut parts = vec![vec![9; 3]; group.size()];
    for scale in [0, 1, 50_000, 700_000, 2] {
        let of = |rank: usize| vec![rank as u8 + 1; rank * scale];
        let expected: Vec<_> = (0..group.size()).map(of).collect();
        let all = group.all_gather_bytes("x", &of(group.rank())).unwrap();
        assert!(all == expected);
        parts[group.rank()] = of(group.rank());
        group.all_gather_parts("x", &mut parts).unwrap();
        assert!(parts == expected);
    }
}

fn scatter(group: &mut Group) {
    for len in [0, 1, 1000, 40_001] {
        for root in 0..group.size() {
            let data = match group.rank() == root {
                true => contribution(root, len * group.size(), 4),
                false => Vec::new(),
            };
            let mut mine = vec![0.0; len];
            group.scatter("x", &data, &mut mine, root).unwrap();
            let all = contribution(root, len * group.size(), 4);
            assert!(mine == all[group.rank() * len..][..len]);
        }
    }
}

/// Around the ring, twice, with other operations in between.
fn send_and_recv(group: &mut Group) {
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return;
    }
    for len in [0, 3, 100_000] {
        let (next, prev) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut data = vec![0.0; len];
        if rank == 0 {
            group.send("token", &contribution(0, len, 0), next).unwrap();
            group.recv("token", &mut data, prev).unwrap();
            assert!(data == contribution(size - 1, len, 0));
        } else {
            group.recv("token", &mut data, prev).unwrap();
            assert!(data == contribution(prev, len, 0));
            group.send("token", &contribution(rank, len, 0), next).unwrap();
        }
        group.barrier("between").unwrap();
    }
}

fn barrier(group: &mut Group) {
    for _ in 0..20 {
        group.barrier("b").unwrap();
    }
}

/// Neighbours in pairs, in reverse order; then both groups together.
fn split(group: &mut Group) {
    let (rank, size) = (group.rank(), group.size());
    let mut pair = group.split(rank as u64 / 2, (size - rank) as u64).unwrap();
    let first = rank / 2 * 2;
    let members: Vec<usize> = (first..(first + 2).min(size)).rev().collect();
    assert_eq!(pair.members(), members);
    let mut data = vec![rank as f32 + 1.0; 30_000];
    pair.all_reduce("inner", &mut data, ReduceOp::Sum, Wire::F32).unwrap();
    let inner: f32 = members.iter().map(|rank| *rank as f32 + 1.0).sum();
    assert!(data.iter().all(|x| *x == inner));
    group.all_reduce("outer", &mut data, ReduceOp::Max, Wire::F32).unwrap();
    let outer =
        (0..size).map(|rank| if rank / 2 * 2 + 1 < size { rank / 2 * 4 + 3 } else { rank + 1 });
    assert!(data.iter().all(|x| *x == outer.clone().max().unwrap() as f32));
}

fn back_to_back(group: &mut Group) {
    let mut state = 1u64;
    for round in 0..300 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = [(state >> 40) as usize % 50, (state >> 40) as usize % 30_000][round % 2];
        let mut data = contribution(group.rank(), len, round);
        group.all_reduce(&format!("t{round}"), &mut data, ReduceOp::Sum, Wire::F32).unwrap();
        assert!(data == reduced(group.size(), len, round, ReduceOp::Sum), "{len}, round {round}");
    }
}

//! Convolutions, pools and normalisation of images against PaddlePaddle 2.6.2, on inputs that both
//! sides compute, and what is refused.

use regatta_ir::Op;
use regatta_tensor::DType;

use crate::case::{Case, case, close, dense, f32s, inferred, numbers};

#[test]
fn convolutions_are_those_of_paddle() {
    let y = case("conv2d")
        .input("X", numbers(&[2, 4, 5, 6], 1))
        .input("W", numbers(&[6, 2, 3, 2], 2))
        .input("Bias", numbers(&[6], 3))
        .attr("strides", vec![2i64, 1])
        .attr("paddings", vec![1i64, 0, 2, 1])
        .attr("dilations", vec![1i64, 2])
        .attr("groups", 2)
        .out();
    assert_eq!(y.shape(), [2, 6, 2, 7]);
    let row = |at: usize| f32s(&[7], &y.f32()[at * 7..][..7]);
    let first = [0.030634, -0.28855, -0.05274, 0.039408, -0.601118, -0.073326, -0.012548];
    close("first row", &row(0), &first);
    let last = [-0.05769, -0.405892, -0.913244, -0.096951, -0.231154, -0.20694, -0.228899];
    close("first row of the last map", &row(22), &last);
}

#[test]
fn transposed_convolutions_are_those_of_paddle() {
    let all = numbers(&[2, 4, 5, 6], 1);
    let corner = |i: usize| all.f32()[i / 6 * 30 + i % 6 / 3 * 6 + i % 3];
    let y = case("conv2d_transpose")
        .input("X", f32s(&[2, 4, 2, 3], &(0..48).map(corner).collect::<Vec<_>>()))
        .input("W", numbers(&[4, 3, 3, 2], 2))
        .input("Bias", numbers(&[6], 3))
        .attr("strides", vec![2i64, 3])
        .attr("paddings", vec![1i64, 0])
        .attr("output_padding", vec![1i64, 2])
        .attr("dilations", vec![1i64, 2])
        .attr("groups", 2)
        .out();
    assert_eq!(y.shape(), [2, 6, 4, 11]);
    let columns: Vec<f32> = (0..4).flat_map(|row| y.f32()[row * 11..][..3].to_vec()).collect();
    let want = [
        -0.367317, -0.173267, -0.266395, -0.164396, -0.173267, -0.005588, -0.269287, -0.173267,
        -0.221302, -0.163415, -0.173267, -0.11543,
    ];
    close("columns", &f32s(&[12], &columns), &want);
}

fn pool(kind: &str) -> Case {
    case("pool2d").input("X", numbers(&[1, 2, 5, 6], 1)).attr("pooling_type", kind)
}

#[test]
fn largest_values_are_those_of_paddle() {
    let env = case("max_pool2d_with_index")
        .input("X", numbers(&[1, 2, 5, 6], 1))
        .attr("ksize", vec![3i64, 2])
        .attr("strides", vec![2i64, 2])
        .attr("paddings", vec![1i64, 0])
        .run()
        .unwrap();
    let values = [
        0.173267, 0.341584, 0.440594, 0.371287, 0.30198, 0.470297, 0.40099, 0.30198, 0.232673,
        0.163366, 0.331683, 0.430693, 0.361386, 0.292079, 0.460396, 0.391089, 0.490099, 0.222772,
    ];
    close("values", &dense(&env, "Out"), &values);
    let places = [7, 2, 5, 13, 21, 16, 24, 21, 29, 7, 2, 5, 13, 21, 16, 24, 27, 29];
    assert_eq!(dense(&env, "Mask").i64(), places);
    let ceiled = pool("max")
        .attr("ksize", vec![3i64, 2])
        .attr("strides", vec![2i64, 3])
        .attr("paddings", vec![1i64, 1])
        .attr("ceil_mode", true);
    let values = [
        -0.193069, 0.341584, 0.440594, 0.20297, 0.30198, 0.034653, 0.40099, 0.30198, 0.232673,
        -0.20297, 0.331683, 0.430693, 0.193069, 0.292079, 0.024752, 0.391089, 0.490099, 0.222772,
    ];
    close("ceiled", &ceiled.out(), &values);
    let values = [
        0.371287, 0.371287, 0.470297, 0.470297, 0.40099, 0.371287, 0.470297, 0.470297, 0.361386,
        0.361386, 0.460396, 0.460396, 0.391089, 0.361386, 0.490099, 0.460396,
    ];
    let adaptive = pool("max").attr("ksize", vec![2i64, 4]).attr("adaptive", true);
    close("adaptive", &adaptive.out(), &values);
}

#[test]
fn means_are_those_of_paddle() {
    let mean = || {
        pool("avg")
            .attr("ksize", vec![3i64, 2])
            .attr("strides", vec![2i64, 3])
            .attr("paddings", vec![1i64, 1])
            .attr("ceil_mode", true)
    };
    let values = [
        -0.292079, -0.126238, 0.039604, 0.00495, -0.079208, -0.163366, 0.30198, -0.032178,
        0.133663, -0.30198, -0.136139, 0.029703, -0.00495, -0.089109, -0.173267, 0.292079,
        0.207921, 0.123762,
    ];
    close("of what is inside", &mean().out(), &values);
    let values = [
        -0.09736, -0.084158, 0.013201, 0.002475, -0.079208, -0.081683, 0.10066, -0.021452,
        0.044554, -0.10066, -0.090759, 0.009901, -0.002475, -0.089109, -0.086634, 0.09736,
        0.138614, 0.041254,
    ];
    close("with paddings", &mean().attr("exclusive", false).out(), &values);
    let values = [
        -0.009901, 0.023102, 0.089109, 0.122112, 0.052805, -0.080858, -0.014851, 0.018152,
        -0.019802, 0.013201, 0.079208, 0.112211, 0.042904, -0.090759, 0.141914, 0.008251,
    ];
    let adaptive = pool("avg").attr("ksize", vec![2i64, 4]).attr("adaptive", true);
    close("adaptive", &adaptive.out(), &values);
}

#[test]
fn norms_are_those_of_paddle() {
    let env = case("group_norm")
        .input("X", numbers(&[1, 4, 3, 1], 1))
        .input("Scale", numbers(&[4], 2))
        .input("Bias", numbers(&[4], 3))
        .attr("groups", 2)
        .run()
        .unwrap();
    let values = [
        0.213745, -0.127194, -0.468134, 0.105127, 0.20681, 0.308494, -0.581155, 0.042936,
        -1.036573, -0.085688, -0.339439, 0.099482,
    ];
    close("group_norm", &dense(&env, "Y"), &values);
    let variance: Vec<f32> = numbers(&[2], 5).f32().iter().map(|x| x + 1.0).collect();
    let env = case("batch_norm")
        .input("X", numbers(&[2, 2, 3], 1))
        .input("Scale", numbers(&[2], 2))
        .input("Bias", numbers(&[2], 3))
        .input("Mean", numbers(&[2], 4))
        .input("Variance", f32s(&[2], &variance))
        .attr("data_layout", "NCHW")
        .run()
        .unwrap();
    let values = [
        0.11918, -0.239512, -0.598204, 0.105848, 0.212827, 0.319805, -0.074708, -0.4334, 0.187041,
        0.163674, 0.270653, 0.085609,
    ];
    close("batch_norm", &dense(&env, "Y"), &values);
    close("running mean", &dense(&env, "Mean"), &[-0.067162, 0.272442]);
    close("running variance", &dense(&env, "Variance"), &[0.948403, 1.278106]);
}

#[test]
fn only_the_batch_may_be_unknown() {
    let conv = || Op::new("conv2d").attr("strides", vec![2i64, 2]).attr("paddings", vec![1i64, 1]);
    let x = ("X", DType::F32, &[-1i64, 3, 32, 32][..]);
    let w = ("W", DType::F32, &[64i64, 3, 7, 7][..]);
    assert_eq!(inferred(conv(), &[x, w]).unwrap(), "f32[-1, 64, 14, 14]");
    let unknown = ("X", DType::F32, &[-1i64, 3, -1, 32][..]);
    let error = inferred(conv(), &[unknown, w]).unwrap_err();
    assert!(error.contains("known sizes"), "{error}");
    let groups = inferred(conv().attr("groups", 2), &[x, w]).unwrap_err();
    let want = "attribute 'groups' is 2, which does not divide the 3 channels of X";
    assert!(groups.contains(want), "{groups}");
    let small = ("X", DType::F32, &[-1i64, 3, 4, 4][..]);
    let error = inferred(conv(), &[small, w]).unwrap_err();
    assert!(error.contains("leave nothing of f32[-1, 3, 4, 4]"), "{error}");
    let pool = Op::new("pool2d").attr("pooling_type", "max").attr("ksize", vec![2i64, 2]);
    assert_eq!(inferred(pool.clone(), &[x]).unwrap(), "f32[-1, 3, 16, 16]");
    let error = inferred(pool.attr("paddings", vec![0i64, 2]), &[x]).unwrap_err();
    assert!(error.contains("a window sees no pixel"), "{error}");
}

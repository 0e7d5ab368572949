//! Every layer of the builder finds its op, and shapes are right while the batch is not known.

use regatta_ir::Var;
use regatta_ops::builder;
use regatta_tensor::DType;

#[test]
fn layers_infer_shapes_with_an_unknown_batch() {
    let mut b = builder(1);
    let x = b.data("x", DType::F32, &[-1, 6]).unwrap();
    let cube = b.data("cube", DType::F32, &[-1, 26, 9]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let y = b.data("y", DType::F32, &[-1, 1]).unwrap();

    let images = b.data("images", DType::F32, &[-1, 3, 32, 32]).unwrap();

    let mut made: Vec<(&str, Var)> = vec![
        ("f32[-1, 64, 16, 16]", b.conv2d(&images, 64, [7, 7], [2, 2], [3, 3]).unwrap()),
        ("f32[-1, 3, 16, 16]", b.pool2d(&images, "max", [3, 3], [2, 2], [1, 1]).unwrap()),
        ("f32[-1, 26, 5]", b.lstm(&cube, 5).unwrap()),
        ("f32[-1, 26, 5]", b.gru(&cube, 5).unwrap()),
        ("f32[-1, 26, 26]", b.matmul(&cube, &cube, false, true).unwrap()),
        ("f32[6, 6]", b.matmul(&x, &x, true, false).unwrap()),
        ("f32[-1, 13]", b.concat(&[&x, &y, &x], 1).unwrap()),
        ("f32[-1, 2]", b.slice(&x, 1, -2, 6).unwrap()),
        ("f32[-1, 234]", b.reshape(&cube, &[-1, 234]).unwrap()),
        ("f32[-1, 9, 26]", b.transpose(&cube, &[0, 2, 1]).unwrap()),
        ("f32[6, -1]", b.transpose(&x, &[1, 0]).unwrap()),
        ("f32[1]", b.reduce_sum(&x, &[], false).unwrap()),
        ("f32[-1, 1, 9]", b.reduce_mean(&cube, &[1], true).unwrap()),
        ("f32[26, 9]", b.reduce_mean(&cube, &[0], false).unwrap()),
        ("f32[-1, 26]", b.reduce_max(&cube, &[-1], false).unwrap()),
        ("f32[-1, 6]", b.dropout(&x, 0.5, 1).unwrap()),
        ("f32[-1, 6]", b.batch_norm(&x, 0.9, 1e-5).unwrap()),
        ("f32[-1, 26, 9]", b.layer_norm(&cube, 1e-5).unwrap()),
        ("f32[-1, 1]", b.sigmoid_cross_entropy(&y, &y).unwrap()),
        ("f32[-1, 1]", b.log_loss(&y, &y, 1e-4).unwrap()),
        ("f32[-1, 1]", b.huber_loss(&y, &y, 1.0).unwrap()),
        ("f32[-1, 1]", b.hinge_loss(&y, &y).unwrap()),
        ("f32[-1, 1]", b.cos_sim(&x, &x).unwrap()),
        ("f32[1]", b.accuracy(&x, &label).unwrap()),
        ("f32[1]", b.auc(&y, &label, 10).unwrap()),
        ("f32[-1, 1]", b.cast(&label, DType::F32).unwrap()),
    ];
    let ids = b.data("ids", DType::I64, &[-1, 2]).unwrap();
    let larger = b.greater_than(&x, &y).unwrap();
    let (top, indices) = b.topk(&cube, 3, 1).unwrap();
    let table = b.reduce_sum(&cube, &[0], false).unwrap();
    made.extend([
        ("i64[-1, 6]", larger.clone()),
        ("f32[-1, 6]", b.select(&larger, &x, &y).unwrap()),
        ("f32[-1, 2, 9]", b.gather(&table, &ids, 0).unwrap()),
        ("f32[-1]", b.gather_nd(&table, &ids).unwrap()),
        ("f32[-1, 12]", b.tile(&x, &[1, 2]).unwrap()),
        ("f32[-1, 6]", b.expand(&y, &[-1, 6]).unwrap()),
        ("f32[-1, 6]", b.expand_as(&y, &x).unwrap()),
        ("f32[-1, 8]", b.pad(&x, &[0, 0, 1, 1], 0.0).unwrap()),
        ("f32[-1, 26, 9]", b.triangle(&cube, -1, true).unwrap()),
        ("f32[-1, 6]", b.cumsum(&x, 1).unwrap()),
        ("f32[-1, 3, 9]", top),
        ("i64[-1, 3, 9]", indices),
        ("i64[-1, 9]", b.argmax(&cube, 1).unwrap()),
        ("f32[-1, 26]", b.reduce_min(&cube, &[-1], false).unwrap()),
        ("f32[-1, 26, 1]", b.reduce_prod(&cube, &[-1], true).unwrap()),
        ("f32[-1, 6]", b.silu(&x).unwrap()),
        ("f32[-1, 6]", b.log_softmax(&x).unwrap()),
        ("i64[2]", b.shape(&x).unwrap()),
        ("i64[-1, 6]", b.isnan(&x).unwrap()),
        ("f32[-1, 6]", b.elementwise_pow(&x, &y).unwrap()),
    ]);
    let parts = b.split(&x, &[2, 4], 1).unwrap();
    made.extend(["f32[-1, 2]", "f32[-1, 4]"].into_iter().zip(parts));
    let error = b.conv2d(&x, 4, [3, 3], [1, 1], [0, 0]).unwrap_err().to_string();
    assert!(error.contains("should be f32 with 4 dimensions"), "{error}");
    for (want, var) in made {
        assert_eq!(b.ty(&var).unwrap().to_string(), want, "{}", var.name());
    }
}

"""Names of variables: those that PaddlePaddle 2.6.2 gives, as configurations may use them."""
from __future__ import annotations

import numpy as np
import pytest

import regatta as rg
import regatta.nn.functional as F

# What is built first in a program over x, y [n, 4], z [n, 3, 4], i [n, 1] and j [n], and the name
# of the result.
CASES = [
    (lambda x, y, z, i, j: F.sigmoid(x), "sigmoid_0.tmp_0"),
    (lambda x, y, z, i, j: rg.pow(x, 2), "pow_0.tmp_0"),
    (lambda x, y, z, i, j: rg.scale(x, 2.0), "scale_0.tmp_0"),
    (lambda x, y, z, i, j: rg.clip(x, 0.0, 1.0), "clip_0.tmp_0"),
    (lambda x, y, z, i, j: rg.sum(x, 1), "sum_0.tmp_0"),
    (lambda x, y, z, i, j: rg.sum(i), "sum_0.tmp_0"),
    (lambda x, y, z, i, j: rg.mean(x), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: rg.max(x), "max_0.tmp_0"),
    (lambda x, y, z, i, j: rg.min(x), "min_0.tmp_0"),
    (lambda x, y, z, i, j: rg.logsumexp(x), "logsumexp_0.tmp_0"),
    (lambda x, y, z, i, j: rg.add_n([x, y]), "add_n_0.tmp_0"),
    (lambda x, y, z, i, j: rg.add_n(x), "add_n_0.tmp_0"),
    (lambda x, y, z, i, j: rg.concat([x, y], 1), "concat_0.tmp_0"),
    (lambda x, y, z, i, j: rg.split(x, 2, 1), ["split_0.tmp_0", "split_0.tmp_1"]),
    (lambda x, y, z, i, j: rg.split(x, [1, -1], 1), ["split_0.tmp_0", "split_0.tmp_1"]),
    (lambda x, y, z, i, j: rg.chunk(x, 2, 1), ["split_0.tmp_0", "split_0.tmp_1"]),
    (lambda x, y, z, i, j: rg.stack([x, y]), "stack_0.tmp_0"),
    (
        lambda x, y, z, i, j: rg.unstack(z, 1),
        ["unstack_0.tmp_0", "unstack_0.tmp_1", "unstack_0.tmp_2"],
    ),
    (lambda x, y, z, i, j: rg.unbind(z, 1), ["unbind_0.tmp_0", "unbind_0.tmp_1", "unbind_0.tmp_2"]),
    (lambda x, y, z, i, j: rg.reshape(z, [0, -1]), "reshape2_0.tmp_0"),
    (lambda x, y, z, i, j: rg.transpose(z, [0, 2, 1]), "transpose_0.tmp_0"),
    (lambda x, y, z, i, j: rg.t(x), "t_0.tmp_0"),
    (lambda x, y, z, i, j: rg.squeeze(i, 1), "squeeze_0.tmp_0"),
    (lambda x, y, z, i, j: rg.squeeze(i), "squeeze_0.tmp_0"),
    (lambda x, y, z, i, j: rg.unsqueeze(x, 1), "unsqueeze2_0.tmp_0"),
    (lambda x, y, z, i, j: rg.flatten(z, 1, 2), "flatten_0.tmp_0"),
    (lambda x, y, z, i, j: rg.slice(x, [1], [0], [2]), "slice_0.tmp_0"),
    (lambda x, y, z, i, j: rg.cast(i, "float32"), "cast_0.tmp_0"),
    (lambda x, y, z, i, j: rg.mm(z, rg.transpose(z, [0, 2, 1])), "mm_0.tmp_0"),
    (lambda x, y, z, i, j: rg.bmm(z, rg.transpose(z, [0, 2, 1])), "bmm_0.tmp_0"),
    (lambda x, y, z, i, j: rg.dot(x, y), "dot_0.tmp_0"),
    (lambda x, y, z, i, j: rg.full([2], 3.0), "fill_constant_1.tmp_0"),
    (lambda x, y, z, i, j: rg.zeros([2]), "fill_constant_1.tmp_0"),
    (lambda x, y, z, i, j: rg.ones([2]), "fill_constant_1.tmp_0"),
    (lambda x, y, z, i, j: rg.full_like(x, 3.0), "full_like_0.tmp_0"),
    (lambda x, y, z, i, j: rg.ones_like(i), "full_like_0.tmp_0"),
    (lambda x, y, z, i, j: rg.zeros_like(x), "full_like_0.tmp_0"),
    (lambda x, y, z, i, j: rg.assign(x), "assign_0.tmp_0"),
    (lambda x, y, z, i, j: rg.assign(np.ones([2], "float32")), "assign_0.tmp_0"),
    (lambda x, y, z, i, j: rg.to_tensor(np.ones([2], "float32")), "assign_0.tmp_0"),
    (lambda x, y, z, i, j: F.one_hot(j, 3), "one_hot_v2_0.tmp_0"),
    (lambda x, y, z, i, j: F.one_hot(i, 3), "one_hot_v2_0.tmp_0"),
    (lambda x, y, z, i, j: rg.norm(x, p=2, axis=1), "p_norm_0.tmp_0"),
    (lambda x, y, z, i, j: rg.norm(x), "frobenius_norm_0.tmp_0"),
    (lambda x, y, z, i, j: F.normalize(x), "elementwise_div_0"),
    (lambda x, y, z, i, j: F.cosine_similarity(x, y), "tmp_1"),
    (lambda x, y, z, i, j: rg.where(x > 0, x, y), "where_0.tmp_0"),
    (lambda x, y, z, i, j: rg.tile(x, [1, 2]), "tile_0.tmp_0"),
    (lambda x, y, z, i, j: rg.argmax(x, -1), "argmax_0.tmp_0"),
    (lambda x, y, z, i, j: list(rg.topk(x, 2)), ["top_k_v2_0.tmp_0", "top_k_v2_0.tmp_1"]),
    (lambda x, y, z, i, j: rg.argsort(x), "argsort_0.tmp_1"),
    (lambda x, y, z, i, j: rg.cumsum(x, 1), "cumsum_0.tmp_0"),
    (lambda x, y, z, i, j: rg.flip(x, [1]), "flip_0.tmp_0"),
    (lambda x, y, z, i, j: rg.roll(x, 1, 1), "roll_0.tmp_0"),
    (lambda x, y, z, i, j: rg.logical_and(x > 0, x > 1), "logical_and_0.tmp_0"),
    (lambda x, y, z, i, j: rg.isnan(x), "isnan_v2_0.tmp_0"),
    (lambda x, y, z, i, j: rg.tril(z), "tril_0"),
    (lambda x, y, z, i, j: x[:, ::2], "x_strided_slice_0"),
    (lambda x, y, z, i, j: i % 2, "tmp_1"),
    (lambda x, y, z, i, j: i // 2, "tmp_1"),
    (lambda x, y, z, i, j: rg.nn.Conv1D(3, 2, 3)(z), "squeeze_0.tmp_0"),
    (lambda x, y, z, i, j: F.max_pool1d(z, 2), "squeeze_0.tmp_0"),
    (lambda x, y, z, i, j: rg.nn.GroupNorm(3, 3)(z), "group_norm_0.tmp_2"),
    (lambda x, y, z, i, j: F.selu(x), "selu_0.tmp_0"),
    (lambda x, y, z, i, j: x + y, "tmp_0"),
    (lambda x, y, z, i, j: x + 1, "tmp_0"),
    (lambda x, y, z, i, j: 1 + x, "tmp_0"),
    (lambda x, y, z, i, j: 1 - x, "tmp_0"),
    (lambda x, y, z, i, j: x - 1, "tmp_0"),
    (lambda x, y, z, i, j: x * 2, "tmp_0"),
    (lambda x, y, z, i, j: x / 2, "tmp_0"),
    (lambda x, y, z, i, j: 1 / x, "tmp_1"),
    (lambda x, y, z, i, j: x ** 2, "tmp_1"),
    (lambda x, y, z, i, j: 2 ** x, "tmp_1"),
    (lambda x, y, z, i, j: -x, "tmp_0"),
    (lambda x, y, z, i, j: z @ z.transpose([0, 2, 1]), "tmp_0"),
    (lambda x, y, z, i, j: i + 1, "tmp_0"),
    (lambda x, y, z, i, j: i / 2, "tmp_1"),
    (lambda x, y, z, i, j: i * 0.5, "tmp_1"),
    (lambda x, y, z, i, j: i + x, "tmp_1"),
    (lambda x, y, z, i, j: x[:, 0], "x_slice_0"),
    (lambda x, y, z, i, j: z[:, 1, 2], "z_slice_0"),
    (lambda x, y, z, i, j: z[:, 1:2], "z_slice_0"),
    (lambda x, y, z, i, j: z[:, -1], "z_slice_0"),
    (lambda x, y, z, i, j: z[..., 0], "z_slice_0"),
    (lambda x, y, z, i, j: z[:, None], "unsqueeze2_0.tmp_0"),
    (lambda x, y, z, i, j: i.astype("float32"), "tmp_0"),
    (lambda x, y, z, i, j: z.reshape([-1, 12]), "reshape2_0.tmp_0"),
    (lambda x, y, z, i, j: z.sum(-1), "sum_0.tmp_0"),
    (lambda x, y, z, i, j: x.pow(2), "pow_0.tmp_0"),
    (lambda x, y, z, i, j: F.relu(x), "relu_0.tmp_0"),
    (lambda x, y, z, i, j: F.softmax(z, axis=1), "softmax_0.tmp_0"),
    (lambda x, y, z, i, j: F.log_softmax(z), "log_softmax_0.tmp_0"),
    (lambda x, y, z, i, j: F.gelu(x), "gelu_0.tmp_0"),
    (lambda x, y, z, i, j: F.leaky_relu(x), "leaky_relu_0.tmp_0"),
    (lambda x, y, z, i, j: F.log_sigmoid(x), "log_sigmoid_0.tmp_0"),
    (lambda x, y, z, i, j: F.softplus(x), "softplus_0.tmp_0"),
    (lambda x, y, z, i, j: F.silu(x), "silu_0.tmp_0"),
    (lambda x, y, z, i, j: F.swish(x), "swish_0.tmp_0"),
    (lambda x, y, z, i, j: F.relu6(x), "relu6_0.tmp_0"),
    (lambda x, y, z, i, j: F.elu(x), "elu_0.tmp_0"),
    (lambda x, y, z, i, j: F.tanh(x), "tanh_0.tmp_0"),
    (lambda x, y, z, i, j: F.dropout(x, 0.3), "dropout_0.tmp_0"),
    (lambda x, y, z, i, j: F.dropout(x, 0), "x"),
    (lambda x, y, z, i, j: F.dropout(x, 1.0), "dropout_0.tmp_0"),
    (lambda x, y, z, i, j: F.dropout(x, 0.3, mode="downscale_in_infer"), "dropout_0.tmp_0"),
    (
        lambda x, y, z, i, j: F.linear(
            x, rg.create_parameter([4, 2], "float32"),
            rg.create_parameter([2], "float32", is_bias=True),
        ),
        "linear_0.tmp_1",
    ),
    (
        lambda x, y, z, i, j: F.embedding(i, rg.create_parameter([4, 2], "float32")),
        "embedding_0.tmp_0",
    ),
    (lambda x, y, z, i, j: F.cross_entropy(x, i), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.cross_entropy(x, j), "mean_0.tmp_0"),
    (
        lambda x, y, z, i, j: F.cross_entropy(x, i, reduction="none"),
        "softmax_with_cross_entropy_0.tmp_1",
    ),
    (lambda x, y, z, i, j: F.cross_entropy(x, j, reduction="none"), "squeeze_0.tmp_0"),
    (lambda x, y, z, i, j: F.cross_entropy(x, i, reduction="sum"), "sum_0.tmp_0"),
    (lambda x, y, z, i, j: F.cross_entropy(x, y, soft_label=True), "mean_0.tmp_0"),
    (
        lambda x, y, z, i, j: F.softmax_with_cross_entropy(x, i, return_softmax=True),
        ["softmax_with_cross_entropy_0.tmp_1", "softmax_with_cross_entropy_0.tmp_0"],
    ),
    (lambda x, y, z, i, j: F.binary_cross_entropy(x, y), "mean_0.tmp_0"),
    (
        lambda x, y, z, i, j: F.binary_cross_entropy(x, y, reduction="none"),
        "binary_cross_entropy_0.tmp_0",
    ),
    (lambda x, y, z, i, j: F.binary_cross_entropy(x, y, weight=x), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.binary_cross_entropy_with_logits(x, y), "mean_0.tmp_0"),
    (
        lambda x, y, z, i, j: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
        "sigmoid_cross_entropy_with_logits_0.tmp_0",
    ),
    (lambda x, y, z, i, j: F.square_error_cost(x, y), "square_error_cost_0.tmp_1"),
    (lambda x, y, z, i, j: F.mse_loss(x, y), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.l1_loss(x, y), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.smooth_l1_loss(x, y), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.kl_div(x, y), "mean_0.tmp_0"),
    (lambda x, y, z, i, j: F.nll_loss(x, j), "nll_loss_0.tmp_0"),
    (lambda x, y, z, i, j: F.pad(x, [0, 0, 1, 1]), "pad_0.tmp_0"),
    (lambda x, y, z, i, j: rg.nn.Linear(4, 2)(x), "linear_1.tmp_1"),
    (lambda x, y, z, i, j: rg.nn.Linear(4, 2, bias_attr=False)(x), "linear_1.tmp_0"),
    (lambda x, y, z, i, j: rg.nn.Linear(4, 2, name="foo")(x), "foo.tmp_1"),
    (lambda x, y, z, i, j: rg.nn.Embedding(4, 2)(i), "embedding_1.tmp_0"),
    (lambda x, y, z, i, j: rg.nn.LayerNorm(4)(x), "layer_norm_1.tmp_2"),
    (lambda x, y, z, i, j: rg.nn.BatchNorm1D(4)(x), "batch_norm_0.tmp_2"),
    (
        lambda x, y, z, i, j: (lambda l: (l.eval(), l(x))[1])(rg.nn.BatchNorm1D(4)),
        "batch_norm_0.tmp_2",
    ),
    (lambda x, y, z, i, j: rg.nn.BatchNorm1D(4, use_global_stats=True)(x), "batch_norm_0.tmp_2"),
    (lambda x, y, z, i, j: rg.nn.BatchNorm1D(3)(z), "batch_norm_0.tmp_2"),
    (lambda x, y, z, i, j: rg.nn.BatchNorm(4)(x), "batch_norm_0.tmp_3"),
    (lambda x, y, z, i, j: rg.nn.Dropout(0.3)(x), "dropout_1.tmp_0"),
    (lambda x, y, z, i, j: rg.nn.Sequential(rg.nn.Linear(4, 2), rg.nn.ReLU())(x), "relu_0.tmp_0"),
    (lambda x, y, z, i, j: rg.static.nn.fc(x, 2), "fc_0.tmp_1"),
    (lambda x, y, z, i, j: rg.static.nn.fc(x, 2, bias_attr=False, activation="relu"), "fc_0.tmp_1"),
    (lambda x, y, z, i, j: rg.static.nn.fc(x, 2, activation="relu"), "fc_0.tmp_2"),
    (lambda x, y, z, i, j: rg.static.nn.fc([x, y], 2, activation="relu"), "fc_0.tmp_4"),
    (lambda x, y, z, i, j: rg.static.nn.fc(z, 2), "fc_0.tmp_1"),
    (lambda x, y, z, i, j: rg.static.nn.fc(z, 2, num_flatten_dims=2), "fc_0.tmp_1"),
    (lambda x, y, z, i, j: rg.static.nn.embedding(i, [4, 2]), "embedding_0.tmp_0"),
    (
        lambda x, y, z, i, j: rg.static.nn.embedding(i, [4, 2], param_attr=rg.ParamAttr(name="E")),
        "embedding_0.tmp_0",
    ),
    (lambda x, y, z, i, j: rg.static.nn.sparse_embedding(i, [4, 2]), "sparse_embedding_0.tmp_0"),
    (
        lambda x, y, z, i, j: rg.static.nn.sparse_embedding(
            i, [4, 2], param_attr=rg.ParamAttr(name="E")
        ),
        "sparse_embedding_0.tmp_0",
    ),
    (lambda x, y, z, i, j: rg.static.nn.batch_norm(x), "batch_norm_0.tmp_3"),
    (lambda x, y, z, i, j: rg.static.nn.batch_norm(x, act="relu", name="foo"), "foo.tmp_4"),
    (lambda x, y, z, i, j: rg.static.nn.batch_norm(x, is_test=True), "batch_norm_0.tmp_2"),
    (lambda x, y, z, i, j: rg.static.nn.layer_norm(z), "layer_norm_0.tmp_2"),
    (
        lambda x, y, z, i, j: rg.static.nn.layer_norm(
            z, begin_norm_axis=2, scale=False, act="relu"
        ),
        "layer_norm_0.tmp_3",
    ),
    (
        lambda x, y, z, i, j: rg.static.auc(F.softmax(rg.static.nn.fc(x, 2)), i),
        ["auc_0.tmp_0", "auc_0.tmp_1", [f"_generated_var_{k}" for k in range(4)]],
    ),
    (lambda x, y, z, i, j: rg.static.accuracy(F.softmax(x), i), "accuracy_0.tmp_2"),
    (
        lambda x, y, z, i, j: rg.create_parameter([2], "float32", is_bias=True),
        "create_parameter_0.b_0",
    ),
    (lambda x, y, z, i, j: rg.create_parameter([2], "float32", name="hello"), "hello"),
    (lambda x, y, z, i, j: rg.create_parameter([2], "float32", attr=rg.ParamAttr(name="he")), "he"),
    (lambda x, y, z, i, j: rg.expand(x, [-1, 4]), "expand_0.tmp_0"),
    (lambda x, y, z, i, j: rg.tile(x, [1, 2]), "tile_0.tmp_0"),
    (lambda x, y, z, i, j: rg.rank(x), "assign_0.tmp_0"),
    (lambda x, y, z, i, j: rg.numel(x), "numel_0.tmp_0"),
    (lambda x, y, z, i, j: rg.add(x, y), "elementwise_add_0"),
    (lambda x, y, z, i, j: rg.subtract(x, y), "elementwise_sub_0"),
    (lambda x, y, z, i, j: rg.multiply(x, y), "elementwise_mul_0"),
    (lambda x, y, z, i, j: rg.divide(x, y), "elementwise_div_0"),
    (lambda x, y, z, i, j: rg.maximum(x, y), "elementwise_max_0"),
    (lambda x, y, z, i, j: rg.minimum(x, y), "elementwise_min_0"),
    (lambda x, y, z, i, j: rg.sqrt(x), "sqrt_0.tmp_0"),
    (lambda x, y, z, i, j: rg.exp(x), "exp_0.tmp_0"),
    (lambda x, y, z, i, j: rg.log(x), "log_0.tmp_0"),
    (lambda x, y, z, i, j: rg.abs(x), "abs_0.tmp_0"),
    (lambda x, y, z, i, j: rg.square(x), "square_0.tmp_0"),
    (lambda x, y, z, i, j: rg.tanh(x), "tanh_0.tmp_0"),
    (lambda x, y, z, i, j: rg.sign(x), "sign_0.tmp_0"),
    (lambda x, y, z, i, j: rg.log1p(x), "log1p_0.tmp_0"),
    (lambda x, y, z, i, j: rg.rsqrt(x), "rsqrt_0.tmp_0"),
    (lambda x, y, z, i, j: rg.reciprocal(x), "reciprocal_0.tmp_0"),
    (lambda x, y, z, i, j: rg.floor(x), "floor_0.tmp_0"),
    (lambda x, y, z, i, j: rg.neg(x), "scale_0.tmp_0"),
]


def names(made):
    return [names(v) for v in made] if isinstance(made, (list, tuple)) else made.name


@pytest.mark.parametrize("at", range(len(CASES)))
def test_name_of_result(at):
    build, expected = CASES[at]
    with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
        x, y = rg.static.data("x", [None, 4]), rg.static.data("y", [None, 4])
        z = rg.static.data("z", [None, 3, 4])
        i, j = rg.static.data("i", [None, 1], "int64"), rg.static.data("j", [None], "int64")
        assert names(build(x, y, z, i, j)) == expected


def built(build):
    """The names of all parameters and of the result."""
    main = rg.static.Program()
    with rg.static.program_guard(main, rg.static.Program()), rg.unique_name.guard():
        made = build(rg.static.data("x", [None, 4]))
        return [p.name for p in main.all_parameters()], names(made)


def test_layers_and_functions_share_counters():
    def build(x):
        first, second = rg.nn.Linear(4, 4), rg.nn.Linear(4, 1, name="prediction")
        act = rg.nn.Sigmoid()
        return [first(x), act(second(x)), F.sigmoid(x), second(x)]

    assert built(build) == (
        ["linear_0.w_0", "linear_0.b_0", "linear_1.w_0", "linear_1.b_0"],
        ["linear_2.tmp_1", "sigmoid_1.tmp_0", "sigmoid_2.tmp_0", "prediction.tmp_3"],
    )


def test_steps_on_the_way_take_no_numbers():
    def build(x):
        F.softplus(x)
        rg.var(x)
        rg.stack([x, x])
        rg.norm(x)
        return [x + 1, rg.scale(x, 2.0), rg.sum(x), rg.concat([x, x]), rg.square(x)]

    assert built(build)[1] == [
        "tmp_0", "scale_0.tmp_0", "sum_0.tmp_0", "concat_0.tmp_0", "square_0.tmp_0"
    ]


def test_named_calls():
    def build(x):
        return [
            rg.reshape(x, [-1, 2], name="foo"), rg.reshape(x, [-1, 2], name="foo"),
            rg.static.nn.fc(x, 2, activation="relu", name="wide"),
            rg.create_parameter([2], "float32", name="hello"),
            rg.create_parameter([2], "float32", attr=rg.ParamAttr(name="he")),
            rg.create_parameter([2], "float32", is_bias=True),
        ]

    assert built(build) == (
        ["wide.w_0", "wide.b_0", "hello", "he", "create_parameter_1.b_0"],
        ["foo.tmp_0", "foo.tmp_2", "wide.tmp_2", "hello", "he", "create_parameter_1.b_0"],
    )


def test_classes_become_words():
    from regatta.nn.layers import snake_case

    words = {
        "DNNLayer": "dnn_layer", "ReLU": "re_lu", "LeakyReLU": "leaky_re_lu",
        "MMoELayer": "m_mo_e_layer", "BatchNorm1D": "batch_norm1d", "Embedding": "embedding",
    }
    assert {name: snake_case(name) for name in words} == words

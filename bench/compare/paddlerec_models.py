"""The sixteen networks of PaddleRec as paddlerec_losses.py trains them: small sizes, which inputs
a batch has, and which of their parameters is which of Regatta's. The networks themselves are read
from a PaddleRec checkout.
"""
import types
from typing import Any, Callable, List, NamedTuple

import numpy as np


class Input(NamedTuple):
    name: str
    kind: str  # label, ids, dense or ragged
    width: int = 1
    below: int = 0  # ids are 1 .. below - 1

    def written(self) -> dict:
        return {key: value for key, value in self._asdict().items() if value or key == "width"}


class Parameter(NamedTuple):
    """One of Regatta's parameters; `put` and `get` know where PaddleRec's network has it."""

    name: str
    shape: List[int]
    scale: float
    put: Callable[[Any, np.ndarray], None]
    get: Callable[[Any], np.ndarray]
    padding: int = 0  # the first row stands for no id

    def written(self) -> dict:
        known = {"name": self.name, "shape": self.shape, "scale": self.scale}
        return dict(known, padding=1) if self.padding else known


def parameter(name, shape, scale, find, into=None, back=None, padding=0):
    """A parameter that is one tensor there, of the same numbers in the same order unless `into`
    and `back` say more."""
    def put(layer, value):
        tensor = find(layer)
        tensor.set_value((into(value) if into else value).reshape(tensor.shape))

    def get(layer):
        value = find(layer).numpy()
        return (back(value) if back else value).reshape(shape)

    return Parameter(name, list(shape), scale, put, get, padding)


def linear(index, sizes, find, bias=True):
    """The fully connected layer `fc_<index>`."""
    scale = 2.0 ** -round(np.log2(sizes[0]) / 2)
    made = [parameter("fc_%d.w_0" % index, sizes, scale, lambda l: find(l).weight)]
    if bias:
        made.append(parameter("fc_%d.b_0" % index, sizes[1:], 2.0**-4, lambda l: find(l).bias))
    return made


def linears(first, sizes, find):
    """Layers one after the other; `find` gives a list with activations between them."""
    made = []
    for i, pair in enumerate(zip(sizes, sizes[1:])):
        made += linear(first + i, list(pair), lambda l, i=i: weighted(find(l))[i])
    return made


def weighted(layers):
    normal = [layer for layer in layers if "Norm" not in type(layer).__name__]
    return [layer for layer in normal if hasattr(layer, "weight")]


class Model:
    def __init__(self, folder, hyper, inputs, parameters, rate=0.001, optimizer="Adam",
                 order=None, extra=None):
        self.folder, self.name = folder, folder.split("/")[1]
        self.hyper, self.inputs, self.parameters = hyper, inputs, parameters
        self.optimizer = {"class": optimizer, "learning_rate": rate}
        self.order = order or [spec.name for spec in inputs]
        self.extra = extra or {}

    def config(self):
        config = {"hyper_parameters." + key: value for key, value in self.hyper.items()}
        rate = self.optimizer["learning_rate"]
        config["hyper_parameters.optimizer.learning_rate"] = rate
        config["hyper_parameters.optimizer.learning_rate_base_lr"] = rate
        return dict(config, **{"hyper_parameters." + k: v for k, v in self.extra.items()})

    def batch(self, paddle, drawn):
        return [paddle.to_tensor(drawn[name]) for name in self.order]

    def make(self, root, load_network):
        import paddle

        dynamic = load_network(root, self.folder).dygraph_model.DygraphModel()
        config = self.config()
        with paddle.utils.unique_name.guard():
            layer = dynamic.create_model(config)
        layer.train()

        def loss(drawn):
            metrics, _ = dynamic.create_metrics()
            return dynamic.train_forward(layer, metrics, self.batch(paddle, drawn), config)[0]

        return types.SimpleNamespace(
            layer=layer, loss=loss, optimizer=lambda: dynamic.create_optimizer(layer, config))


SLOTS, ROWS, DIM, DENSE = 4, 61, 8, 5
WIDE = SLOTS * DIM + DENSE


def click_hyper(**more):
    return dict({"sparse_inputs_slots": SLOTS + 1, "sparse_feature_number": ROWS,
                 "sparse_feature_dim": DIM, "dense_input_dim": DENSE}, **more)


def click_inputs():
    slots = [Input(str(i + 1), "ids", below=ROWS) for i in range(SLOTS)]
    return [Input("label", "label"), *slots, Input("dense_input", "dense", DENSE)]


def table(find, name="SparseFeatFactors", rows=ROWS, dim=DIM, scale=0.25, padding=0):
    return parameter(name, [rows, dim], scale, lambda l: find(l).weight, padding=padding)


def factors(find, padding=0):
    """The weights and vectors of fm, deepfm and xdeepfm."""
    return [
        table(lambda l: find(l).embedding_one, "SparseFeatWeights", dim=1, padding=padding),
        table(lambda l: find(l).embedding, padding=padding),
        parameter("dense_w_one", [DENSE, 1], 0.5, lambda l: find(l).dense_w_one),
        parameter("dense_w", [DENSE, DIM], 0.5, lambda l: find(l).dense_w),
    ]


def click(name, hyper, parameters, **more):
    return Model("rank/" + name, hyper, click_inputs(), parameters, **more)


def dnn():
    sizes = [16, 8]
    return click("dnn", click_hyper(fc_sizes=sizes), [
        table(lambda l: l.embedding),
        *linears(0, [WIDE, *sizes, 2], lambda l: l._mlp_layers)])


def wide_deep():
    sizes = [16, 8]
    return click("wide_deep", click_hyper(fc_sizes=sizes), [
        *linear(0, [DENSE, 1], lambda l: l.wide_part),
        table(lambda l: l.embedding),
        *linears(1, [WIDE, *sizes, 1], lambda l: l._mlp_layers)])


def fm():
    return click("fm", click_hyper(), [
        *factors(lambda l: l.fm), parameter("fm.b_0", [1], 0.125, lambda l: l.bias)])


def deepfm():
    sizes = [16, 8]
    return click("deepfm", click_hyper(fc_sizes=sizes), [
        *factors(lambda l: l.fm, padding=1),
        *linears(0, [(SLOTS + DENSE) * DIM, *sizes, 1], lambda l: l.dnn._mlp_layers)])


def xdeepfm():
    dnn_sizes, cin_sizes, fields = [16, 8], [6, 4], SLOTS + DENSE
    mixed, last = [], fields
    for i, size in enumerate(cin_sizes):
        turn = np.transpose
        mixed.append(parameter(
            "fc_%d.w_0" % i, [fields * last, size], 0.125,
            lambda l, i=i: l.cin.cnn_layers[i].weight,
            turn, lambda v, n=size: v.reshape(n, -1).T))
        last = size
    return click("xdeepfm", click_hyper(layer_sizes_dnn=dnn_sizes, layer_sizes_cin=cin_sizes), [
        *factors(lambda l: l.fm), *mixed,
        *linear(2, [sum(cin_sizes), 1], lambda l: l.cin.cin_linear),
        *linears(3, [fields * DIM, *dnn_sizes, 1], lambda l: l.dnn._mlp_layers),
        parameter("xdeepfm.b_0", [1], 0.125, lambda l: l.bias)])


def dcn():
    sizes = [16, 8]
    return click("dcn", click_hyper(fc_sizes=sizes, cross_num=2), [
        table(lambda l: l.embedding, padding=1),
        parameter("cross.w_0", [WIDE], 0.125, lambda l: l.layer_w),
        parameter("cross.b_0", [WIDE], 0.125, lambda l: l.layer_b),
        *linears(0, [WIDE, *sizes], lambda l: l._mlp_layers),
        *linear(2, [sizes[-1] + WIDE, 1], lambda l: l.fc)])


def expert_weight(index, kind, layer, expert, shape):
    """One expert's part of a tensor of all experts; Regatta multiplies from the other side."""
    turned = kind != "V"

    def tensor(l):
        return getattr(l.DeepCrossLayer_.crossNet, kind + "_list")[layer]

    def put(l, value):
        whole = tensor(l).numpy().copy()
        whole[expert] = value.T if turned else value
        tensor(l).set_value(whole)

    def get(l):
        value = tensor(l).numpy()[expert]
        return value.T if turned else value

    return Parameter("fc_%d.w_0" % index, shape, 0.25, put, get)


def gate(name, shape, attribute):
    def gates(l):
        return [getattr(layer, attribute) for layer in l.DeepCrossLayer_.crossNet.gating]

    def put(l, value):
        for i, tensor in enumerate(gates(l)):
            tensor.set_value(value[..., i].reshape(tensor.shape))

    def get(l):
        return np.stack([tensor.numpy().reshape(shape[:-1]) for tensor in gates(l)], axis=-1)

    return Parameter(name, shape, 0.125, put, get)


def dcn_v2():
    sizes, layers, experts, rank = [16, 8], 2, 3, 4
    width = (SLOTS + DENSE) * DIM
    made, index = [], 1
    for layer in range(layers):
        made.append(parameter("cross_%d.b_0" % layer, [width], 0.125,
                              lambda l, i=layer: l.DeepCrossLayer_.crossNet.bias[i]))
        index += 1  # the gates
        for expert in range(experts):
            for kind, shape in (("V", [width, rank]), ("C", [rank, rank]), ("U", [rank, width])):
                made.append(expert_weight(index, kind, layer, expert, shape))
                index += 1
    hyper = click_hyper(fc_sizes=sizes, cross_num=layers, is_Stacked=True,
                        use_low_rank_mixture=True, low_rank=rank, num_experts=experts,
                        dropout_rate=0.0, clip_by_norm=0.05)
    return click("dcn_v2", hyper, [
        table(lambda l: l.embedding, padding=1),
        *linear(0, [DENSE, DENSE * DIM], lambda l: l.dense_emb),
        gate("gating.w_0", [width, experts], "weight"), gate("gating.b_0", [experts], "bias"),
        *made,
        *linears(index, [width, *sizes], lambda l: l.DNN_._mlp_layers),
        *linear(index + len(sizes), [sizes[-1], 1], lambda l: l.fc)],
        extra={"optimizer.clip_by_norm": 0.05})


def dlrm():
    bottom, top, fields = [12, DIM], [16, 8, 2], SLOTS + 1
    # The products of pairs, row by row: there above the diagonal, here below it.
    pairs = [(a, b) for a in range(fields) for b in range(a + 1, fields)]
    rows = list(range(DIM)) + [DIM + b * (b - 1) // 2 + a for a, b in pairs]
    width = DIM + len(pairs)
    first = parameter("fc_2.w_0", [width, top[0]], 0.25,
                      lambda l: weighted(l.top_mlp.mlp)[0].weight, lambda v: v[rows], lambda v: v[np.argsort(rows)])
    others = linears(2, [width, *top], lambda l: l.top_mlp.mlp)[1:]
    hyper = click_hyper(bot_layer_sizes=bottom, top_layer_sizes=top, num_field=SLOTS)
    return click("dlrm", hyper, [
        *linears(0, [DENSE, *bottom], lambda l: l.bot_mlp.mlp),
        table(lambda l: l.embedding), first, *others])


def logistic_regression():
    fields, rows = 6, 12
    return Model(
        "rank/logistic_regression",
        {"sparse_feature_number": rows, "num_field": fields, "feature_values": True, "reg": 0.001},
        [Input("label", "label"), Input("feat_idx", "ids", fields, rows + 1),
         Input("feat_value", "dense", fields)],
        [table(lambda l: l.embedding, "SparseFeatWeights", rows + 1, 1, padding=1),
         parameter("b_linear", [1], 0.125, lambda l: l.b_linear)])


class Din(Model):
    def batch(self, paddle, drawn):
        items, cats = drawn["hist_item_seq"], drawn["hist_cat_seq"]
        spread = np.ones_like(items)
        mask = np.where(items == 0, -10**9, 0).astype(np.int64)[:, :, None]
        target, cat = drawn["target_item"], drawn["target_cat"]
        arrays = [items, cats, target[:, 0], cat[:, 0], drawn["label"].astype(np.float32), mask,
                  target * spread, cat * spread]
        return [paddle.to_tensor(array) for array in arrays]


def din():
    items, cats, dim, length = 41, 11, 8, 5
    tables = []
    places = (("hist", "hist_%s"), ("target_seq", "target_%s_seq"), ("target", "target_%s"))
    for ours, theirs in places:
        for name, short, rows in (("item", "item", items), ("cat", "cat", cats)):
            attribute = theirs % short + "_emb_attr"
            tables.append(table(lambda l, a=attribute: getattr(l, a), "%s_%s_emb" % (ours, name),
                                rows, dim, padding=1))
    tables.append(table(lambda l: l.item_b_attr, "item_b", items, 1, padding=1))
    width, hidden = 2 * dim, [80, 40, 1]
    return Din(
        "rank/din",
        {"item_emb_size": dim, "cat_emb_size": dim, "item_count": items, "cat_count": cats,
         "max_len": length},
        [Input("label", "label"), Input("hist_item_seq", "ragged", length, items),
         Input("hist_cat_seq", "ragged", length, cats), Input("target_item", "ids", below=items),
         Input("target_cat", "ids", below=cats)],
        [*tables,
         *linears(0, [4 * width, *hidden], lambda l: l.attention_layer),
         *linear(3, [width, width], lambda l: l.con_layer[0]),
         *linears(4, [2 * width, *hidden], lambda l: l.con_layer[1:])],
        optimizer="SGD", rate=0.85)


def esmm():
    fields, sizes = 4, [16, 8]
    slots = [Input(str(i + 1), "ragged", 3, ROWS) for i in range(fields)]
    width = fields * DIM
    return Model(
        "multitask/esmm",
        {"sparse_feature_number": ROWS, "sparse_feature_dim": DIM, "num_field": fields,
         "ctr_fc_sizes": sizes, "cvr_fc_sizes": sizes},
        [*slots, Input("click", "label"), Input("conversion", "label")],
        [table(lambda l: l.embedding, padding=1),
         *linears(0, [width, *sizes, 2], lambda l: l._ctr_mlp_layers),
         *linears(3, [width, *sizes, 2], lambda l: l._cvr_mlp_layers)],
        extra={"max_len": 3})


def mmoe():
    features, experts, size, tower = 20, 3, 6, 4
    made = []
    for i in range(experts):
        made += linear(i, [features, size], lambda l, i=i: l._param_expert[i])
    for task in range(2):
        at = experts + 3 * task
        made += linear(at, [features, experts], lambda l, i=task: l._param_gate[i])
        made += linear(at + 1, [size, tower], lambda l, i=task: l._param_tower[i])
        made += linear(at + 2, [tower, 2], lambda l, i=task: l._param_tower_out[i])
    return Model(
        "multitask/mmoe",
        {"feature_size": features, "expert_num": experts, "expert_size": size, "gate_num": 2,
         "tower_size": tower},
        [Input("dense_input", "dense", features), Input("click", "label"),
         Input("conversion", "label")],
        made)


def dssm():
    width, sizes, wrong = 20, [16, 8], 2
    made = []
    for name, attribute in (("query", "_query_layers"), ("doc", "_doc_layers")):
        for layer in linears(0, [width, *sizes], lambda l, a=attribute: getattr(l, a)):
            made.append(layer._replace(name=layer.name.replace("fc", name)))
    names = ["query", "doc_pos"] + ["doc_neg_%d" % i for i in range(wrong)]
    return Model(
        "match/dssm",
        {"trigram_d": width, "neg_num": wrong, "fc_sizes": sizes, "fc_acts": ["relu", "relu"],
         "counts": True},
        [Input(name, "dense", width) for name in names], made, extra={"slice_end": 32})


def ncf():
    users, items, dim, layers = 6, 8, 8, [32, 16, 12, 4]
    tables = [table(lambda l, n=name: getattr(l, n), name, rows, width)
              for name, rows, width in (
                  ("MF_Embedding_User", users, dim), ("MF_Embedding_Item", items, dim),
                  ("MLP_Embedding_User", users, layers[0] // 2),
                  ("MLP_Embedding_Item", items, layers[0] // 2))]

    # Every row is met in every batch: its tables are dense there.
    return Model(
        "recall/ncf",
        {"num_users": users, "num_items": items, "mf_dim": dim, "mode": "NCF_NeuMF",
         "fc_layers": layers},
        [Input("user_input", "ids", below=users), Input("item_input", "ids", below=items),
         Input("label", "label")],
        [*tables, *linears(0, layers, lambda l: l.MLP_fc),
         *linear(3, [dim + layers[-1], 1], lambda l: l.prediction)])


def word2vec():
    words, dim, others = 50, 16, 3
    return Model(
        "recall/word2vec",
        {"sparse_feature_number": words, "sparse_feature_dim": dim, "neg_num": others},
        [Input("input_word", "ids", below=words), Input("true_label", "ids", below=words),
         Input("neg_label", "ids", others, words)],
        [table(lambda l: l.embedding, "emb", words, dim),
         table(lambda l: l.embedding_w, "emb_w", words, dim),
         table(lambda l: l.embedding_b, "emb_b", words, 1)],
        optimizer="SGD", rate=1.0)


class Stepped(float):
    """The loss of a step whose update is done."""

    def backward(self):
        pass


class SlotDnn(Model):
    """There is a static form only, made for servers; here its table is in the program."""

    def make(self, root, load_network):
        import paddle

        net = load_network(root, self.folder).net
        static, h = paddle.static, self.hyper
        paddle.enable_static()
        main, startup, scope = static.Program(), static.Program(), static.Scope()
        # A table of servers; in this process a table of the program takes its place.
        static.nn.sparse_embedding = lambda input, size, padding_idx, entry, param_attr: (
            static.nn.embedding(input, size, is_sparse=True, padding_idx=padding_idx,
                                param_attr=param_attr))
        with static.program_guard(main, startup), paddle.utils.unique_name.guard():
            def ids(name):
                return static.data(name, [None, 1], "int64", lod_level=1)

            show, click = ids("show"), ids("click")
            slots = [static.data(str(i + 2), [None], "int64", lod_level=1)
                     for i in range(h["slot_num"])]
            sizes = [h[key] for key in ("dict_dim", "emb_dim", "slot_num", "layer_sizes")]
            layer = net.BenchmarkDNNLayer(*sizes)
            predict = layer.forward(show, click, slots)
            cost = paddle.nn.functional.log_loss(predict, paddle.cast(click, "float32"))
            loss = paddle.mean(cost)
            paddle.optimizer.Adam(self.optimizer["learning_rate"], lazy_mode=True).minimize(loss)
        executor = static.Executor(paddle.CPUPlace())
        executor.run(startup, scope=scope)
        # The powers of the table's Adam as random_off.py has them.
        for var in main.global_block().vars:
            if var.startswith("embedding_") and "pow_acc" in var:
                scope.find_var(var).get_tensor().set(np.ones([1], "float32"), paddle.CPUPlace())
        paddle.disable_static()

        def run(drawn):
            def lod(rows, shape=(-1, 1)):
                lengths = [[len(row) for row in rows]]
                flat = np.concatenate(rows).astype(np.int64).reshape(shape)
                return paddle.base.create_lod_tensor(flat, lengths, paddle.CPUPlace())

            labels = list(drawn["label"])
            feed = {"click": lod(labels), "show": lod([np.ones(1)] * len(labels))}
            for i in range(h["slot_num"]):
                feed[str(i + 2)] = lod([row[row > 0] for row in drawn[str(i + 1)]], -1)
            paddle.enable_static()
            value = executor.run(main, feed=feed, fetch_list=[loss], scope=scope)[0]
            paddle.disable_static()
            return Stepped(value)

        idle = types.SimpleNamespace(step=lambda: None, clear_grad=lambda: None)
        return types.SimpleNamespace(layer=scope, loss=run, optimizer=lambda: idle)


def in_scope(name, shape, scale, var, padding=0):
    def tensor(scope):
        return scope.find_var(var).get_tensor()

    def put(scope, value):
        import paddle

        tensor(scope).set(value, paddle.CPUPlace())

    return Parameter(name, shape, scale, put, lambda scope: np.array(tensor(scope)), padding)


def slot_dnn():
    slots, sizes = 4, [16, 8]
    widths = [slots * DIM, *sizes, 1]
    layers = []
    for i, pair in enumerate(zip(widths, widths[1:])):
        layers.append(in_scope("fc_%d.w_0" % i, list(pair), 0.25, "linear_%d.w_0" % i))
        layers.append(in_scope("fc_%d.b_0" % i, [pair[1]], 0.0625, "linear_%d.b_0" % i))
    return SlotDnn(
        "rank/slot_dnn",
        {"dict_dim": ROWS, "emb_dim": DIM, "slot_num": slots, "layer_sizes": sizes},
        [Input("label", "label")] + [Input(str(i + 1), "ragged", 3, ROWS) for i in range(slots)],
        [in_scope("SparseFeatFactors", [ROWS, DIM], 0.25, "embedding", padding=1), *layers])


def all_models():
    return [dcn(), dcn_v2(), deepfm(), din(), dlrm(), dnn(), dssm(), esmm(), fm(),
            logistic_regression(), mmoe(), ncf(), slot_dnn(), wide_deep(), word2vec(), xdeepfm()]

"""Arrays on their way in and out: any order in memory, any type, any owner."""
import numpy as np
import pytest

import regatta as rg
from regatta import _core, static

VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)

# The same values, in other orders in memory.
LAYOUTS = {
    "rows": VALUES,
    "columns": np.asfortranarray(VALUES),
    "transposed": np.ascontiguousarray(VALUES.T).T,
    "reversed": np.ascontiguousarray(VALUES[::-1])[::-1],
    "every second": np.repeat(VALUES, 2, axis=0)[::2],
    "other byte order": VALUES.astype(">f4"),
    "read only": np.frombuffer(VALUES.tobytes(), np.float32).reshape(4, 3),
    "doubles in columns": np.asfortranarray(VALUES.astype(np.float64)),
}


@pytest.fixture
def program():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), rg.unique_name.guard():
        yield main


@pytest.mark.parametrize("layout", LAYOUTS)
def test_feeds_are_read_by_index(program, layout):
    x = static.data("x", [-1, 3], "float32")
    out = rg.scale(x, 1.0)
    exe = static.Executor()
    # Twice: a second feed of the same shape goes into the memory of the first.
    for _ in range(2):
        got, = exe.run(program, feed={"x": LAYOUTS[layout]}, fetch_list=[out])
        np.testing.assert_array_equal(got, VALUES)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "bool", "uint8"])
def test_integers_in_columns_are_read_by_index(program, dtype):
    values = (np.arange(6).reshape(3, 2) % 2).astype(dtype)
    x = static.data("x", [-1, 2], "int64")
    out = rg.cast(x, "float32")
    exe = static.Executor()
    for _ in range(2):
        got, = exe.run(program, feed={"x": np.asfortranarray(values).astype("int64", order="K")},
                       fetch_list=[out])
        np.testing.assert_array_equal(got, values.astype(np.float32))
    scope = _core.Scope()
    scope.set("x", np.asfortranarray(values))
    np.testing.assert_array_equal(scope.get("x"), values.astype(scope.get("x").dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_a_scope_are_set_by_index(layout):
    scope = static.Scope()
    tensor = scope.var("w").get_tensor()
    tensor.set(LAYOUTS[layout], rg.CPUPlace())
    np.testing.assert_array_equal(np.array(scope.find_var("w").get_tensor()), VALUES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_models_read_by_index(program, layout, tmp_path):
    x = static.data("x", [-1, 3], "float32")
    out = rg.scale(x, 2.0)
    static.save_inference_model(str(tmp_path / "m"), [x], [out], static.Executor(), program=program)
    model = rg.Model.open(str(tmp_path / "m"))
    got, = model.predict({"x": LAYOUTS[layout]}, return_list=True)
    np.testing.assert_array_equal(got, 2 * VALUES)
    got, = model._core.predict({"x": LAYOUTS[layout]})
    np.testing.assert_array_equal(got, 2 * VALUES)


def test_ranks_exchange_by_index():
    group = _core.Group.join()
    for layout in ("rows", "columns", "transposed", "reversed", "every second"):
        array = LAYOUTS[layout].copy(order="K")
        group.all_reduce(array)
        np.testing.assert_array_equal(array, VALUES)
        group.broadcast(array, 0)
        np.testing.assert_array_equal(array, VALUES)
        np.testing.assert_array_equal(group.all_gather(LAYOUTS[layout]), VALUES[None])
    with pytest.raises(ValueError, match="read-only|not writeable"):
        group.all_reduce(LAYOUTS["read only"])
    with pytest.raises(ValueError, match="float32"):
        group.all_gather(np.arange(3))
    with pytest.raises(ValueError, match="float32"):
        group.all_reduce(np.arange(3.0))


def test_offsets_are_positions(program):
    rows = static.data("ids", [-1, 1], "int64", lod_level=1)
    out = static.nn.embedding(rows, [10, 2])
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for offsets in ([0, -1, 2], [0, 2**40, 2]):
        with pytest.raises(ValueError, match="'ids': offsets are positions"):
            exe.run(program, feed={"ids": (np.array([1, 2]), np.array(offsets))}, fetch_list=[out])


def test_values_are_shared_by_dlpack(program):
    x = static.data("x", [-1, 3], "float32")
    out = static.nn.fc(x, 2)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    got, = exe.run(program, feed={"x": LAYOUTS["columns"]}, fetch_list=[out])
    np.testing.assert_array_equal(np.from_dlpack(got), got)
    weight = static.global_scope().find_var(program.all_parameters()[0].name).get_tensor()
    np.testing.assert_array_equal(np.from_dlpack(weight), np.array(weight))

    class Foreign:
        """An array of a library that only speaks DLPack."""

        def __dlpack__(self, **options):
            return VALUES.__dlpack__(**options)

        def __dlpack_device__(self):
            return VALUES.__dlpack_device__()

    again, = exe.run(program, feed={"x": Foreign()}, fetch_list=[out])
    np.testing.assert_array_equal(again, got)


def test_tensors_are_shared_by_dlpack():
    tensor = rg.to_tensor(VALUES)
    capsule = rg.utils.dlpack.to_dlpack(tensor)
    np.testing.assert_array_equal(rg.utils.dlpack.from_dlpack(capsule).numpy(), VALUES)
    np.testing.assert_array_equal(rg.utils.dlpack.from_dlpack(LAYOUTS["columns"]).numpy(), VALUES)


def test_tensors_of_the_native_module_are_fed(program):
    x = static.data("x", [-1, 3], "float32")
    out = rg.scale(x, 1.0)
    for module in (rg.base.core, rg.fluid.core, rg.core):
        tensor = module.LoDTensor()
        tensor.set(LAYOUTS["columns"], rg.CPUPlace())
        got, = static.Executor().run(program, feed={"x": tensor}, fetch_list=[out])
        np.testing.assert_array_equal(got, VALUES)

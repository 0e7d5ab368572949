"""Readers that a dataset starts as its pipe command: lines of users in, MultiSlot text out.

A dataset starts one process per file, so nothing heavy is imported here.
"""
import sys

from ...._missing import missing

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

__getattr__ = missing(__name__)


class DataGenerator:
    """A reader. Derive from one of the classes below and write :meth:`generate_sample`.

        class Reader(fleet.MultiSlotDataGenerator):
            def generate_sample(self, line):
                def read():
                    words = line.split()
                    yield [("label", [int(words[0])]), ("ids", [int(w) for w in words[1:]])]
                return read

        Reader().run_from_stdin()
    """

    def __init__(self):
        self.batch_size_ = 32

    def set_batch(self, batch_size):
        """How many samples :meth:`generate_batch` gets at a time."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size should be an integer of at least 1, not {batch_size!r}")
        self.batch_size_ = batch_size

    def generate_sample(self, line):
        """An iterator, or a function that returns one, over the samples of a line. A sample is a
        list of ``(name of a slot, [values])``; None leaves a line out. ``line`` is None in
        :meth:`run_from_memory`."""
        raise NotImplementedError(
            f"{type(self).__name__} should have generate_sample(self, line), which returns samples "
            "such as [('words', [1926, 8, 17]), ('label', [1])]"
        )

    def generate_batch(self, samples):
        """An iterator, or a function that returns one, over what is written for the samples of a
        batch: the samples themselves, if it is not overridden."""
        return iter(samples)

    def run_from_stdin(self):
        """Reads lines from standard input and writes samples to standard output."""
        self._run(sys.stdin)

    def run_from_memory(self):
        """Writes the samples that :meth:`generate_sample` makes without a line."""
        self._run([None])

    def run_from_files(self, filelist):
        """Reads files one after the other and writes samples to standard output."""
        for name in filelist:
            with open(name) as file:
                self._run(file)

    def _run(self, lines):
        write = sys.stdout.write
        try:
            batch = []
            for line in lines:
                for sample in _iterate(self.generate_sample(line)):
                    if sample is None:
                        continue
                    batch.append(sample)
                    if len(batch) == self.batch_size_:
                        self._write(batch, write)
                        batch = []
            if batch:
                self._write(batch, write)
            sys.stdout.flush()
        except BrokenPipeError:
            # The dataset has what it needs. Nobody reads the rest, nor what Python would flush.
            import os

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _write(self, batch, write):
        for sample in _iterate(self.generate_batch(batch)):
            write(self._gen_str(sample))

    def _gen_str(self, line):
        """A sample as a line of text."""
        raise NotImplementedError(
            "a DataGenerator has no format of its own: derive from MultiSlotDataGenerator or "
            "MultiSlotStringDataGenerator"
        )


class MultiSlotDataGenerator(DataGenerator):
    """A reader whose slots hold integers or floats. All samples have the same slots in the same
    order, and a slot has values of one type."""

    def __init__(self):
        super().__init__()
        self._proto_info = None

    def _gen_str(self, line):
        """``count value value ...`` for every slot.

        >>> MultiSlotDataGenerator()._gen_str([("words", [1926, 8]), ("label", [1])])
        '2 1926 8 1 1\\n'
        """
        line = _slots(line)
        kinds = self._proto_info
        if kinds is None:
            kinds = self._proto_info = [(_name(name), "uint64") for name, _ in line]
        elif len(line) != len(kinds):
            raise ValueError(f"this sample has {len(line)} slots, but earlier ones {len(kinds)}")
        out = []
        for at, (name, values) in enumerate(line):
            slot, kind = kinds[at]
            if name != slot:
                raise ValueError(f"slot {at} is called '{name}', but '{slot}' in earlier samples")
            _check_values(name, values)
            out.append(str(len(values)))
            for value in values:
                if value.__class__ is not int and value.__class__ is not float:
                    value = _number(name, value)
                if kind != "float" and value.__class__ is float:
                    kind = "float"
                    kinds[at] = (slot, kind)
                out.append(str(value))
        return " ".join(out) + "\n"


class MultiSlotStringDataGenerator(DataGenerator):
    """A reader whose values are texts already; they are written as they are, which is faster."""

    def _gen_str(self, line):
        """``count value value ...`` for every slot.

        >>> MultiSlotStringDataGenerator()._gen_str([("words", ["1926", "8"]), ("label", ["1"])])
        '2 1926 8 1 1\\n'
        """
        out = []
        for name, values in _slots(line):
            _check_values(name, values)
            out.append(str(len(values)))
            out.extend(values)
        try:
            return " ".join(out) + "\n"
        except TypeError:
            raise TypeError("values should be texts; MultiSlotDataGenerator has numbers") from None


def _iterate(made):
    """Samples, from an iterable or from a function that returns one."""
    if made is None:
        return ()
    return made() if callable(made) else made


def _slots(line):
    if hasattr(line, "__next__") or isinstance(line, zip):
        line = list(line)
    if not isinstance(line, (list, tuple)):
        raise ValueError(
            f"a sample should be a list such as [('words', [1926, 8]), ('label', [1])], but is "
            f"{line!r}"
        )
    return line


def _name(name):
    if not isinstance(name, str):
        raise ValueError(f"the name of a slot should be a text, but is {name!r}")
    return name


def _check_values(name, values):
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"slot '{name}' should hold a list, but holds {values!r}")
    if not values:
        raise ValueError(
            f"slot '{name}' is empty: put in a padding value, such as 0 for an id that stands for "
            "nothing"
        )


def _number(name, value):
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise ValueError(f"slot '{name}' should hold integers or floats, but holds {value!r}")
    return plain

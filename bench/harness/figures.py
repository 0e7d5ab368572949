"""Medians, spreads and ratios of repeated measurements."""
import statistics


class Spread:
    """Median, smallest and largest of some measurements."""

    def __init__(self, values):
        values = [v for v in values if v is not None]
        if not values:
            raise ValueError("no measurements")
        self.median, self.low, self.high = statistics.median(values), min(values), max(values)
        self.count = len(values)

    def as_json(self):
        return {"median": self.median, "low": self.low, "high": self.high, "count": self.count}


def spread(values):
    """The spread of the values that are there; None if there are none."""
    values = [v for v in values if v is not None]
    return Spread(values) if values else None


def ratio(mine, theirs):
    """How many times `theirs` goes into `mine`: the ratios within each round, so that both have met the same
    disturbances. Rounds in which one of the two is missing do not count."""
    pairs = zip(mine, theirs)
    return spread([x / y for x, y in pairs if x is not None and y])


def short(value, digits=3):
    """A number as people write it: 12.3 k, 4.56 M, 0.0123."""
    if value is None:
        return "-"
    for limit, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            unit = 1e3 if name == " k" else limit
            return "%s%s" % (significant(value / unit, digits), name)
    return significant(value, digits)


def significant(value, digits):
    text = "%.*g" % (digits, value)
    if "e" in text:
        text = "%f" % float(text)
        text = text.rstrip("0").rstrip(".") if abs(value) < 1 else text.split(".")[0]
    return text


def with_range(s, digits=3):
    """`12.3 k (11.9 k-12.6 k)`, or the number alone if it was measured once."""
    if s is None:
        return "-"
    if s.count == 1:
        return short(s.median, digits)
    return "%s (%s-%s)" % tuple(short(v, digits) for v in (s.median, s.low, s.high))

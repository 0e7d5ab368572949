"""Bar and line charts as SVG, without libraries."""
import math
from xml.sax.saxutils import escape

COLOURS = ["#1f6f8b", "#e07a3f", "#7a9e3a", "#8a5a9e", "#b03a48", "#6b6b6b", "#c2a02e", "#3a6fc2"]
FONT = 'font-family="sans-serif" font-size="12"'


def bars(title, groups, unit, note=None):
    """Groups of horizontal bars: [(group, [(label, median, low, high, text or None)])]. A median of None
    stands for something that does not work, and `text` says why. Labels keep their colour in all groups."""
    labels = []
    for _, entries in groups:
        labels += [e[0] for e in entries if e[0] not in labels]
    top = max([e[3] or e[1] for _, es in groups for e in es if e[1] is not None] or [1.0])
    width, left, right, row = 860, 190, 120, 20
    scale = (width - left - right) / top
    out, y = [], 34
    for group, entries in groups:
        y += 10
        out.append(text(8, y + 14, group, weight="bold"))
        for label, median, low, high, remark in entries:
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            out.append(text(left - 6, y + 14, label, anchor="end"))
            if median is None:
                out.append(text(left + 4, y + 14, remark or "does not work", colour="#b03a48"))
            else:
                out.append('<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>' % (
                    left, y + 3, max(median * scale, 0.5), row - 6, colour))
                if low is not None and high is not None and high > low:
                    out.append(line(left + low * scale, y + row / 2, left + high * scale,
                                    y + row / 2, "#222222"))
                end = left + max(median, high or 0) * scale
                out.append(text(end + 6, y + 14, remark or number(median)))
            y += row
    y += 22
    out.append(text(left, y, unit + ("; " + note if note else ""), colour="#555555"))
    return page(width, y + 12, title, out)


def lines(title, series, x_label, y_label, log_x=True, log_y=True):
    """Lines through points: {name: [(x, y)]}. Axes are logarithmic unless told otherwise."""
    points = [p for values in series.values() for p in values]
    if not points:
        raise ValueError("a chart needs points")
    width, height, left, right, top, bottom = 860, 420, 80, 190, 40, 50
    x_axis = Axis([p[0] for p in points], left, width - right, log_x)
    y_axis = Axis([p[1] for p in points], height - bottom, top, log_y)
    out = []
    for value in x_axis.ticks():
        x = x_axis.at(value)
        out.append(line(x, top, x, height - bottom, "#e4e4e4"))
        out.append(text(x, height - bottom + 18, number(value), anchor="middle"))
    for value in y_axis.ticks():
        y = y_axis.at(value)
        out.append(line(left, y, width - right, y, "#e4e4e4"))
        out.append(text(left - 6, y + 4, number(value), anchor="end"))
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join("%.1f,%.1f" % (x_axis.at(x), y_axis.at(y)) for x, y in sorted(values))
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>' % (
            path, colour))
        for x, y in values:
            out.append('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (
                x_axis.at(x), y_axis.at(y), colour))
        out.append(text(width - right + 12, top + 18 * (i + 1), name, colour=colour))
    out.append(text((left + width - right) / 2, height - 8, x_label, anchor="middle"))
    out.append(text(8, top - 8, y_label))
    return page(width, height, title, out)


class Axis:
    """Maps values to places between `start` and `end`."""

    def __init__(self, values, start, end, log):
        self.log = log and min(values) > 0
        low, high = min(values), max(values)
        if not self.log:
            low = min(low, 0.0)
        if low == high:
            low, high = (low / 2, high * 2) if self.log else (low, high + 1)
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value):
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self):
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 2 else (1,)
            all_ticks = [s * 10.0 ** e for e in range(first, last + 1) for s in steps]
            inside = [t for t in all_ticks if self.low <= t <= self.high * 1.0001]
            return inside if len(inside) > 1 else [self.low, self.high]
        step = 10.0 ** math.floor(math.log10(self.high - self.low))
        if (self.high - self.low) / step < 3:
            step /= 2
        count = int((self.high - self.low) / step) + 1
        return [self.low + i * step for i in range(count)]


def number(value):
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return "%.3g%s" % (value / limit, name)
    return "%.3g" % value


def text(x, y, words, anchor="start", weight="normal", colour="#222222"):
    return '<text x="%.1f" y="%.1f" text-anchor="%s" font-weight="%s" fill="%s">%s</text>' % (
        x, y, anchor, weight, colour, escape(words))


def line(x1, y1, x2, y2, colour):
    return '<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>' % (x1, y1, x2, y2, colour)


def page(width, height, title, elements):
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" %s>\n'
            '<rect width="100%%" height="100%%" fill="white"/>\n'
            '<text x="8" y="20" font-size="15" font-weight="bold">%s</text>\n%s\n</svg>\n' % (
                width, height, width, height, FONT, escape(title), "\n".join(elements)))

"""Digits that are drawn, for tests and first steps without files."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

from ...io.dataset import Dataset

# Digits of 7 rows of 5 dots, a row as the bits of a number.
_FONT = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


class GeneratedDigits(Dataset):
    """Images of 28 x 28 bytes of digits, moved, scaled, slanted and noisy, with labels ``[1]`` of
    type int64. The same number and seed give the same image. ``transform`` gets the image as an
    array of bytes; without it the image is an array ``[1, 28, 28]`` of floats from -1 to 1.

    >>> image, label = GeneratedDigits(10)[3]
    >>> image.shape, label.shape, image.dtype.name
    ((1, 28, 28), (1,), 'float32')
    """

    def __init__(
        self, size: int = 2000, mode: str = "train",
        transform: Optional[Callable[[Any], Any]] = None, seed: int = 0, noise: float = 0.15,
    ) -> None:
        super().__init__()
        if mode not in ("train", "test"):
            raise ValueError(f"GeneratedDigits: mode should be 'train' or 'test', not {mode!r}")
        self.size, self.mode, self.transform = int(size), mode, transform
        self.seed, self.noise = int(seed), float(noise)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> Tuple[Any, Any]:
        import numpy as np

        at = idx + self.size if idx < 0 else idx
        if not 0 <= at < self.size:
            raise IndexError(f"example {idx} of {self.size}")
        draw = np.random.RandomState([self.seed, self.mode == "test", at])
        digit = draw.randint(10)
        image = self._draw(draw, digit)
        label = np.array([digit], "int64")
        if self.transform is not None:
            return self.transform(image), label
        return (image.astype("float32") / 127.5 - 1)[None], label

    def _draw(self, draw: Any, digit: int) -> Any:
        import numpy as np

        glyph = np.zeros((9, 7), "float32")  # a dark border round the dots
        glyph[1:8, 1:6] = (np.array(_FONT[digit])[:, None] >> np.arange(4, -1, -1)) & 1
        scale, slant = draw.uniform(0.26, 0.42), draw.uniform(-0.25, 0.25)
        move = draw.uniform(-3, 3, 2)
        y, x = np.mgrid[0:28, 0:28] - 13.5
        rows = (y - move[0]) * scale + 4
        columns = (x - move[1] + slant * y) * scale + 3
        bright = _sampled(glyph, rows, columns) * draw.uniform(0.6, 1.0)
        bright += draw.normal(0, self.noise, (28, 28))
        return np.clip(bright * 255, 0, 255).astype("uint8")


def _sampled(image: Any, rows: Any, columns: Any) -> Any:
    """Values of an image at positions between its pixels; 0 outside."""
    import numpy as np

    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    total = np.zeros(rows.shape)
    for down in (0, 1):
        for right in (0, 1):
            at, to = top + down, left + right
            inside = (at >= 0) & (at < image.shape[0]) & (to >= 0) & (to < image.shape[1])
            share = (1 - abs(rows - at)) * (1 - abs(columns - to))
            values = image[np.clip(at, 0, image.shape[0] - 1), np.clip(to, 0, image.shape[1] - 1)]
            total += np.where(inside, share * values, 0)
    return total

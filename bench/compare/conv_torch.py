"""Convolutions of PyTorch on the shapes of `cargo bench -p regatta-kernels --bench conv`, one thread, CPU time."""

import os
import time

import torch

# Images, channels, maps, pixels of a side, window, stride, pad; how many layers have it.
SHAPES = [
    (64, 1, 6, 28, 3, 1, 1, 1),
    (64, 6, 16, 14, 5, 1, 0, 1),
    (32, 3, 64, 32, 7, 2, 3, 1),
    (32, 64, 64, 8, 3, 1, 1, 4),
    (32, 64, 128, 8, 3, 2, 1, 1),
    (32, 128, 128, 4, 3, 1, 1, 3),
    (32, 64, 128, 8, 1, 2, 0, 1),
    (32, 128, 256, 4, 3, 2, 1, 1),
    (32, 256, 256, 2, 3, 1, 1, 3),
    (32, 128, 256, 4, 1, 2, 0, 1),
    (32, 256, 512, 2, 3, 2, 1, 1),
    (32, 512, 512, 1, 3, 1, 1, 3),
    (32, 256, 512, 2, 1, 2, 0, 1),
    (32, 3, 64, 32, 3, 1, 1, 0),
    (32, 64, 64, 32, 3, 1, 1, 0),
]


def median_ms(call, rounds):
    times = []
    for _ in range(rounds + 2):
        start = time.thread_time_ns()
        call()
        times.append((time.thread_time_ns() - start) / 1e6)
    return sorted(times[2:])[rounds // 2]


def main():
    torch.set_num_threads(1)
    rounds = int(os.environ.get("ROUNDS", "21"))
    print(f"torch {torch.__version__}")
    total = 0.0
    for images, channels, maps, side, window, stride, pad, layers in SHAPES:
        x, w = torch.randn(images, channels, side, side), torch.randn(maps, channels, window, window)
        d = torch.randn_like(torch.nn.functional.conv2d(x, w, stride=stride, padding=pad))

        def backward(*mask):
            return torch.ops.aten.convolution_backward(
                d, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
            )

        y = median_ms(lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad), rounds)
        dx = median_ms(lambda: backward(True, False, False), rounds)
        dw = median_ms(lambda: backward(False, True, False), rounds)
        name = f"{images} x {channels}->{maps} @{side} k{window} s{stride}"
        flops = 2e-6 * d.numel() * channels * window * window
        a, b, c = flops / y, flops / dx, flops / dw
        print(f"{name:26} y {y:7.3f} dx {dx:7.3f} dw {dw:7.3f} ms ({a:4.0f} {b:4.0f} {c:4.0f} GFLOP/s)")
        total += layers * (y + dw + (dx if channels > 3 else 0.0))
    print(f"one step of all layers {total:.3f} ms")


if __name__ == "__main__":
    main()

// Rows of a table in an arena on the device. A row is at `slot * stride` floats, its weights first.
// One item per float that moves; arenas may have more than 2^32 floats, what moves at once may not.

// Packed rows of `width` floats into their slots.
KERNEL void rows_in(GLOBAL const float *packed, GLOBAL float *arena, ulong stride,
                    GLOBAL const uint *slots, uint rows, uint width)
{
    const uint i = (uint)GLOBAL_X;
    if (i < rows * width) {
        const uint row = i / width;
        arena[slots[row] * stride + (i - row * width)] = packed[i];
    }
}

// The first `width` floats of rows out of their slots.
KERNEL void rows_out(GLOBAL const float *arena, GLOBAL float *packed, ulong stride,
                     GLOBAL const uint *slots, uint rows, uint width)
{
    const uint i = (uint)GLOBAL_X;
    if (i < rows * width) {
        const uint row = i / width;
        packed[i] = arena[slots[row] * stride + (i - row * width)];
    }
}

// Gradients of rows, added up: row r is the sum of the packed vectors that `positions` names from
// `starts[r]` to `starts[r + 1]`, in that order.
KERNEL void segment_sum(GLOBAL const float *packed, GLOBAL const uint *positions,
                        GLOBAL const uint *starts, GLOBAL float *out, uint rows, uint dim)
{
    const uint i = (uint)GLOBAL_X;
    if (i < rows * dim) {
        const uint row = i / dim, at = i - row * dim;
        float sum = 0.0f;
        for (uint p = starts[row]; p < starts[row + 1]; p++) {
            sum += packed[(ulong)positions[p] * dim + at];
        }
        out[i] = sum;
    }
}

// Vectors of slots, pooled: segment s takes the rows `slots[starts[s]..starts[s + 1]]`; `pool` is
// 0: sum, 1: mean, 2: sum / sqrt(n). An empty segment is 0.
KERNEL void gather_pool(GLOBAL const float *arena, ulong stride, GLOBAL const uint *slots,
                        GLOBAL const uint *starts, GLOBAL float *out, uint segments, uint dim,
                        int pool)
{
    const uint i = (uint)GLOBAL_X;
    if (i < segments * dim) {
        const uint segment = i / dim, at = i - segment * dim;
        const uint from = starts[segment], to = starts[segment + 1];
        float sum = 0.0f;
        for (uint p = from; p < to; p++) {
            sum += arena[slots[p] * stride + at];
        }
        const float n = from < to ? (float)(to - from) : 1.0f;
        out[i] = pool == 0 ? sum : sum * (pool == 1 ? 1.0f / n : 1.0f / sqrt(n));
    }
}

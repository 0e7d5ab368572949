// Rows of a table by slot. A row is `stride` words of an arena; its weights come first.
//
// A segment is the vector of one slot of one example. It pools the rows that `ids` names from
// `starts[segment]` to `starts[segment + 1]`, or the single one at `segment` if it is not ragged.
// `NO_ROW` pads. Pools are 0: sum, 1: mean, 2: 1 / sqrt(n), 3: max.
#define NO_ROW 0xffffffffu

DEVICE uint segment_from(int ragged, GLOBAL const uint *starts, uint segment)
{
    return ragged ? starts[segment] : segment;
}

DEVICE float pool_factor(int pool, GLOBAL const uint *ids, uint from, uint to)
{
    float n = 0.0f;
    for (uint k = from; k < to; k++) {
        n += ids[k] == NO_ROW ? 0.0f : 1.0f;
    }
    n = n < 1.0f ? 1.0f : n;
    return pool == 1 ? 1.0f / n : 1.0f / sqrt(n);
}

// One item for each float of `segments` vectors; those of an example lie in one row of `out`.
KERNEL void lookup(int pool, int ragged, uint segments, uint vectors, uint dim, uint out_stride,
                   GLOBAL const float *arena, ulong stride, GLOBAL const uint *ids,
                   GLOBAL const uint *starts, GLOBAL float *out)
{
    ulong i = GLOBAL_X;
    if (i < (ulong)segments * dim) {
        uint segment = (uint)(i / dim), at = (uint)(i % dim);
        uint from = segment_from(ragged, starts, segment);
        uint to = segment_from(ragged, starts, segment + 1);
        float sum = 0.0f;
        int found = 0;
        for (uint k = from; k < to; k++) {
            uint row = ids[k];
            if (row != NO_ROW) {
                float w = arena[row * stride + at];
                sum = pool == 3 && found ? fmax(sum, w) : sum + w;
                found = 1;
            }
        }
        if (pool == 1 || pool == 2) {
            sum *= pool_factor(pool, ids, from, to);
        }
        out[(ulong)(segment / vectors) * out_stride + segment % vectors * dim + at] = sum;
    }
}

// The gradient of each distinct row, one item for each of its floats: the sum over the segments
// that `positions` names from `row_starts[row]` to `row_starts[row + 1]`, in that order.
KERNEL void lookup_grad(int pool, int ragged, uint rows, uint vectors, uint dim, uint d_stride,
                        GLOBAL const uint *row_starts, GLOBAL const uint *positions,
                        GLOBAL const float *d, GLOBAL const float *arena, ulong stride,
                        GLOBAL const uint *slots, GLOBAL const uint *ids,
                        GLOBAL const uint *starts, GLOBAL float *out)
{
    ulong i = GLOBAL_X;
    if (i < (ulong)rows * dim) {
        uint row = (uint)(i / dim), at = (uint)(i % dim);
        float sum = 0.0f;
        for (uint k = row_starts[row]; k < row_starts[row + 1]; k++) {
            uint segment = positions[k];
            ulong from_d = (ulong)(segment / vectors) * d_stride + segment % vectors * dim + at;
            float g = d[from_d];
            if (ragged && pool != 0) {
                uint from = starts[segment], to = starts[segment + 1];
                if (pool == 3) {
                    float own = arena[slots[row] * stride + at];
                    for (uint other = from; other < to; other++) {
                        if (ids[other] != NO_ROW && arena[ids[other] * stride + at] > own) {
                            g = 0.0f;
                        }
                    }
                } else {
                    g *= pool_factor(pool, ids, from, to);
                }
            }
            sum += g;
        }
        out[i] = sum;
    }
}

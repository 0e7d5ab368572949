// Values that move, and sums over dimensions.

// Rows of `width` floats from one array to another.
KERNEL void copy_rows(uint rows, uint width, GLOBAL const float *x, uint x_first, uint x_stride,
                        GLOBAL float *out, uint out_first, uint out_stride)
{
    uint i = (uint)GLOBAL_X;
    if (i < rows * width) {
        uint row = i / width, at = i % width;
        out[out_first + row * out_stride + at] = x[x_first + row * x_stride + at];
    }
}

// The same into rows that are 0 elsewhere.
KERNEL void place_rows(uint rows, uint width, uint first, uint total, GLOBAL const float *d,
                         GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < rows * total) {
        uint row = i / total, at = i % total;
        int inside = at >= first && at < first + width;
        out[i] = inside ? d[row * width + (at - first)] : 0.0f;
    }
}

// `shape` holds the number of dimensions, and for each its size in the result and its stride in x.
KERNEL void permute(uint n, GLOBAL const uint *shape, GLOBAL const float *x,
                      GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        uint rest = i, from = 0;
        for (int k = (int)shape[0] - 1; k >= 0; k--) {
            uint at = rest % shape[1 + 2 * k];
            rest /= shape[1 + 2 * k];
            from += at * shape[2 + 2 * k];
        }
        out[i] = x[from];
    }
}

// `[outer, r, c]` to `[outer, c]`.
KERNEL void sum_middle(uint outer, uint r, uint c, float factor, GLOBAL const float *x,
                         GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < outer * c) {
        uint from = i / c * r * c + i % c;
        float sum = 0.0f;
        for (uint k = 0; k < r; k++) {
            sum += x[from + k * c];
        }
        out[i] = sum * factor;
    }
}

// `[outer, c]` to `[outer, r, c]`.
KERNEL void repeat_middle(uint outer, uint r, uint c, float factor, GLOBAL const float *d,
                            GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < outer * r * c) {
        out[i] = d[i / (r * c) * c + i % c] * factor;
    }
}

// One group of 128 items for each row: the sum of its floats, always in the same order.
KERNEL_SIZED(128, 1) void row_sums(uint width, float factor, GLOBAL const float *x,
                                   GLOBAL float *out)
{
    LOCAL float part[128];
    uint row = GROUP_X, item = LOCAL_X;
    float sum = 0.0f;
    for (uint k = item; k < width; k += 128) {
        sum += x[row * width + k];
    }
    part[item] = sum;
    BARRIER();
    for (uint half_of = 64; half_of > 0; half_of /= 2) {
        if (item < half_of) {
            part[item] += part[item + half_of];
        }
        BARRIER();
    }
    if (item == 0) {
        out[row] = part[0] * factor;
    }
}

// The entries below the diagonal of `n` x `n` matrices, row by row.
KERNEL void lower_triangle(uint matrices, uint n, GLOBAL const float *x, GLOBAL float *out)
{
    uint pairs = n * (n - 1) / 2, i = (uint)GLOBAL_X;
    if (i < matrices * n * n) {
        uint matrix = i / (n * n), row = i / n % n, col = i % n;
        if (col < row) {
            out[matrix * pairs + row * (row - 1) / 2 + col] = x[i];
        }
    }
}

KERNEL void lower_triangle_grad(uint matrices, uint n, GLOBAL const float *d,
                                  GLOBAL float *dx)
{
    uint pairs = n * (n - 1) / 2, i = (uint)GLOBAL_X;
    if (i < matrices * n * n) {
        uint matrix = i / (n * n), row = i / n % n, col = i % n;
        dx[i] = col < row ? d[matrix * pairs + row * (row - 1) / 2 + col] : 0.0f;
    }
}

// Small products: matrix `g` of the result is the sum over pairs `starts[g]..starts[g + 1]`, each
// of which names a matrix of `a` and one of `b`.
KERNEL void products(uint count, uint m, uint n, uint k, int trans_a, int trans_b,
                       GLOBAL const uint *pairs, GLOBAL const float *a,
                       GLOBAL const float *b, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < count * m * n) {
        uint group = i / (m * n), row = i / n % m, col = i % n;
        uint a_step = trans_a ? m : 1, a_first = trans_a ? row : row * k;
        uint b_step = trans_b ? 1 : n, b_first = trans_b ? col * k : col;
        float sum = 0.0f;
        for (uint pair = pairs[group]; pair < pairs[group + 1]; pair++) {
            GLOBAL const float *x = a + pairs[count + 1 + 2 * pair] * m * k + a_first;
            GLOBAL const float *y = b + pairs[count + 2 + 2 * pair] * k * n + b_first;
            for (uint at = 0; at < k; at++) {
                sum += x[at * a_step] * y[at * b_step];
            }
        }
        out[i] = sum;
    }
}

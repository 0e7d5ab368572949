// Update rules of rows only (regatta-optim's TableRule), for gradients of one impression. Weights
// stay within `low` and `high`. Rules with states per row, which stand behind those per weight,
// have one item per row; the others one per weight. No contraction.

// A weight that is not a number stays so, to be seen.
DEVICE float bounded(float w, float low, float high)
{
    w = w < low ? low : w;
    return w > high ? high : w;
}

// One rounding step less than a plain sum: what additions lose is kept beside it.
DEVICE void add_kept(float *sum, float *lost, float x)
{
    const float t = *sum + x, part = t - *sum;
    *lost += (*sum - (t - part)) + (x - part);
    *sum = t;
}

// The mean of squares, or of the values themselves.
DEVICE float row_mean(GLOBAL const float *g, uint dim, int squares)
{
    float sum = 0.0f, lost = 0.0f;
    for (uint k = 0; k < dim; k++) {
        const float x = g[k], term = squares ? x * x : x;
        lost += squares ? fma(x, x, -term) : 0.0f;
        add_kept(&sum, &lost, term);
    }
    return (sum + lost) / (float)dim;
}

KERNEL void naive_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                       GLOBAL const float *g, uint rows, uint dim, float lr, float low, float high)
{
    const uint i = (uint)GLOBAL_X;
    if (i < rows * dim) {
        const uint row = i / dim;
        GLOBAL float *w = arena + slots[row] * stride + (i - row * dim);
        w[0] = bounded(w[0] - lr * g[i], low, high);
    }
}

KERNEL void std_adagrad_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                             GLOBAL const float *g, uint rows, uint dim, float lr, float first,
                             float low, float high)
{
    const uint i = (uint)GLOBAL_X;
    if (i < rows * dim) {
        const uint row = i / dim;
        GLOBAL float *w = arena + slots[row] * stride + (i - row * dim);
        const float q = g[i], sum = w[dim];
        w[0] = bounded(w[0] - lr * q * sqrt(first / (first + sum)), low, high);
        w[dim] = sum + q * q;
    }
}

// `after` says whether the sum is read after it has grown (adagrad_v2).
KERNEL void row_adagrad_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                             GLOBAL const float *g, uint rows, uint dim, float lr, float first,
                             float low, float high, int after)
{
    const uint row = (uint)GLOBAL_X;
    if (row < rows) {
        GLOBAL float *w = arena + slots[row] * stride;
        GLOBAL const float *d = g + (ulong)row * dim;
        const float before = w[dim], sum = before + row_mean(d, dim, 1);
        const float step = after ? lr / (sqrt(sum) + 1e-8f) : lr * sqrt(first / (first + before));
        for (uint k = 0; k < dim; k++) {
            w[k] = bounded(w[k] - step * d[k], low, high);
        }
        w[dim] = sum;
    }
}

// Powers of the betas, one pair per row. Below the normal range they are 0, as on the CPU.
DEVICE float row_correction(GLOBAL float *powers, float beta1, float beta2)
{
    const float correction = sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
    const float next1 = powers[0] * beta1, next2 = powers[1] * beta2;
    powers[0] = next1 < 1.17549435e-38f ? 0.0f : next1;
    powers[1] = next2 < 1.17549435e-38f ? 0.0f : next2;
    return correction;
}

KERNEL void row_adam_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                          GLOBAL const float *g, uint rows, uint dim, float lr, float beta1,
                          float beta2, float epsilon, float low, float high)
{
    const uint row = (uint)GLOBAL_X;
    if (row < rows) {
        GLOBAL float *w = arena + slots[row] * stride;
        GLOBAL const float *d = g + (ulong)row * dim;
        const float step = lr * row_correction(w + 3 * dim, beta1, beta2);
        for (uint k = 0; k < dim; k++) {
            const float m = beta1 * w[dim + k] + (1.0f - beta1) * d[k];
            const float v = beta2 * w[2 * dim + k] + (1.0f - beta2) * d[k] * d[k];
            w[k] = bounded(w[k] - step * m / (sqrt(v) + epsilon), low, high);
            w[dim + k] = m;
            w[2 * dim + k] = v;
        }
    }
}

// One pair of moments for the row.
KERNEL void shared_adam_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                             GLOBAL const float *g, uint rows, uint dim, float lr, float beta1,
                             float beta2, float epsilon, float low, float high)
{
    const uint row = (uint)GLOBAL_X;
    if (row < rows) {
        GLOBAL float *w = arena + slots[row] * stride;
        GLOBAL const float *d = g + (ulong)row * dim;
        const float step = lr * row_correction(w + dim + 2, beta1, beta2);
        const float m_0 = w[dim], v_0 = w[dim + 1];
        for (uint k = 0; k < dim; k++) {
            const float m = beta1 * m_0 + (1.0f - beta1) * d[k];
            const float v = beta2 * v_0 + (1.0f - beta2) * d[k] * d[k];
            w[k] = bounded(w[k] - step * m / (sqrt(v) + epsilon), low, high);
        }
        w[dim] = beta1 * m_0 + (1.0f - beta1) * row_mean(d, dim, 0);
        w[dim + 1] = beta2 * v_0 + (1.0f - beta2) * row_mean(d, dim, 1);
    }
}

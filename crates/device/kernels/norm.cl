// Gradients before they are applied: norms, limits, penalties.

// The sum of squares of `n` floats by one group of 256 items, always in the same order.
// Compensated: the norm of a large gradient would lose digits.
#define SQUARE_SUM(n, x, part)                                                                     \
    float sum = 0.0f, lost = 0.0f;                                                                 \
    for (uint k = LOCAL_X; k < n; k += 256) {                                                      \
        float term = x[k] * x[k] - lost, next = sum + term;                                        \
        lost = (next - sum) - term;                                                                \
        sum = next;                                                                                \
    }                                                                                              \
    part[LOCAL_X] = sum;                                                                           \
    BARRIER();                                                                                     \
    for (uint half_of = 128; half_of > 0; half_of /= 2) {                                          \
        if (LOCAL_X < half_of) {                                                                   \
            part[LOCAL_X] += part[LOCAL_X + half_of];                                              \
        }                                                                                          \
        BARRIER();                                                                                 \
    }

// One group.
KERNEL_SIZED(256, 1) void clip_by_norm(uint n, float max_norm, GLOBAL const float *x,
                                       GLOBAL float *out)
{
    LOCAL float part[256];
    SQUARE_SUM(n, x, part)
    float norm = sqrt(part[0]);
    float factor = norm > max_norm ? max_norm / norm : 1.0f;
    for (uint k = LOCAL_X; k < n; k += 256) {
        out[k] = x[k] * factor;
    }
}

// One group; writes one of several sums.
KERNEL_SIZED(256, 1) void square_sums(uint n, uint at, GLOBAL const float *x, GLOBAL float *sums)
{
    LOCAL float part[256];
    SQUARE_SUM(n, x, part)
    if (LOCAL_X == 0) {
        sums[at] = part[0];
    }
}

// One item.
KERNEL void norm_factor(uint n, float max_norm, GLOBAL const float *sums, GLOBAL float *out)
{
    if ((uint)GLOBAL_X == 0) {
        float sum = 0.0f;
        for (uint k = 0; k < n; k++) {
            sum += sums[k];
        }
        float norm = sqrt(sum);
        out[0] = norm > max_norm ? max_norm / norm : 1.0f;
    }
}

KERNEL void scale_by(uint n, GLOBAL const float *x, GLOBAL const float *factor,
                       GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = x[i] * factor[0];
    }
}

// `out = x + coeff * w`, or with the sign of `w`.
KERNEL void decay(int l1, uint n, float coeff, GLOBAL const float *x, GLOBAL const float *w,
                    GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        float sign_of = w[i] > 0.0f ? 1.0f : (w[i] < 0.0f ? -1.0f : 0.0f);
        out[i] = x[i] + coeff * (l1 ? sign_of : w[i]);
    }
}

// The same for rows whose weights lie in an arena of rows of `stride` words.
KERNEL void decay_rows(int l1, uint n, uint dim, float coeff, GLOBAL const float *x,
                         GLOBAL const float *arena, ulong stride, GLOBAL const uint *slots,
                         GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        float w = arena[slots[i / dim] * stride + i % dim];
        float sign_of = w > 0.0f ? 1.0f : (w < 0.0f ? -1.0f : 0.0f);
        out[i] = x[i] + coeff * (l1 ? sign_of : w);
    }
}

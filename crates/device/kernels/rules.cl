// Update rules that treat every weight alone, as regatta-optim writes them: the same order of the
// same operations, no contraction. Each rule has a dense kernel, whose states are buffers of their
// own, and one for rows of an arena, `[weights | state | state ..]` at `slot * stride` floats.

// Runs `step` on weight `x`, gradient `d` and states `s` of one element.
#define DENSE(states, step)                                                                        \
    const ulong i = GLOBAL_X;                                                                      \
    if (i < n) {                                                                                   \
        float x = w[i];                                                                            \
        const float d = g[i];                                                                      \
        float s[3];                                                                                \
        states(LOAD_DENSE) step;                                                                   \
        w[i] = x;                                                                                  \
        states(STORE_DENSE)                                                                        \
    }
#define ROWS(n_states, step)                                                                       \
    const uint i = (uint)GLOBAL_X;                                                                 \
    if (i < rows * dim) {                                                                          \
        const uint row = i / dim;                                                                  \
        GLOBAL float *w = arena + slots[row] * stride + (i - row * dim);                           \
        float x = w[0];                                                                            \
        const float d = g[i];                                                                      \
        float s[3];                                                                                \
        for (uint k = 0; k < n_states; k++) s[k] = w[(ulong)(k + 1) * dim];                        \
        step;                                                                                      \
        w[0] = x;                                                                                  \
        for (uint k = 0; k < n_states; k++) w[(ulong)(k + 1) * dim] = s[k];                        \
    }
#define STATES_0(each)
#define STATES_1(each) each(0, s_0)
#define STATES_2(each) each(0, s_0) each(1, s_1)
#define STATES_3(each) each(0, s_0) each(1, s_1) each(2, s_2)
#define LOAD_DENSE(k, state) s[k] = state[i];
#define STORE_DENSE(k, state) state[i] = s[k];

// lr * g is taken off.
DEVICE void sgd_step(float *w, float g, float lr)
{
    *w = *w - lr * g;
}

KERNEL void sgd_dense(GLOBAL float *w, GLOBAL const float *g, ulong n, float lr)
{
    DENSE(STATES_0, sgd_step(&x, d, lr))
}

KERNEL void sgd_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                     GLOBAL const float *g, uint rows, uint dim, float lr)
{
    ROWS(0, sgd_step(&x, d, lr))
}

// g is a finished delta.
DEVICE void sum_step(float *w, float g)
{
    *w = *w + g;
}

KERNEL void sum_dense(GLOBAL float *w, GLOBAL const float *g, ulong n)
{
    DENSE(STATES_0, sum_step(&x, d))
}

KERNEL void sum_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                     GLOBAL const float *g, uint rows, uint dim)
{
    ROWS(0, sum_step(&x, d))
}

// A sum that forgets.
DEVICE void summary_step(float *w, float g, float decay)
{
    *w = *w * decay + g;
}

KERNEL void summary_dense(GLOBAL float *w, GLOBAL const float *g, ulong n, float decay)
{
    DENSE(STATES_0, summary_step(&x, d, decay))
}

KERNEL void summary_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                         GLOBAL const float *g, uint rows, uint dim, float decay)
{
    ROWS(0, summary_step(&x, d, decay))
}

// Plain, or ahead along the velocity.
DEVICE void momentum_step(float *w, float g, float *s, float lr, float mu, int nesterov)
{
    s[0] = mu * s[0] + g;
    *w = *w - lr * (nesterov ? g + mu * s[0] : s[0]);
}

KERNEL void momentum_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0, ulong n,
                           float lr, float mu, int nesterov)
{
    DENSE(STATES_1, momentum_step(&x, d, s, lr, mu, nesterov))
}

KERNEL void momentum_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                          GLOBAL const float *g, uint rows, uint dim, float lr, float mu,
                          int nesterov)
{
    ROWS(1, momentum_step(&x, d, s, lr, mu, nesterov))
}

// Steps shrink with the sum of squares.
DEVICE void adagrad_step(float *w, float g, float *s, float lr, float epsilon)
{
    s[0] = s[0] + g * g;
    *w = *w - lr * g / (sqrt(s[0]) + epsilon);
}

KERNEL void adagrad_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0, ulong n,
                          float lr, float epsilon)
{
    DENSE(STATES_1, adagrad_step(&x, d, s, lr, epsilon))
}

KERNEL void adagrad_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                         GLOBAL const float *g, uint rows, uint dim, float lr, float epsilon)
{
    ROWS(1, adagrad_step(&x, d, s, lr, epsilon))
}

// Adam and AdamW, with the corrections of the step in `lr` and `epsilon`.
DEVICE void adam_step(float *w, float g, float *s, float lr, float epsilon, float keep, float beta1,
                      float beta2)
{
    s[0] = beta1 * s[0] + (1.0f - beta1) * g;
    s[1] = beta2 * s[1] + (1.0f - beta2) * g * g;
    *w = keep * *w - lr * s[0] / (sqrt(s[1]) + epsilon);
}

KERNEL void adam_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0, GLOBAL float *s_1,
                       ulong n, float lr, float epsilon, float keep, float beta1, float beta2)
{
    DENSE(STATES_2, adam_step(&x, d, s, lr, epsilon, keep, beta1, beta2))
}

KERNEL void adam_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                      GLOBAL const float *g, uint rows, uint dim, float lr, float epsilon,
                      float keep, float beta1, float beta2)
{
    ROWS(2, adam_step(&x, d, s, lr, epsilon, keep, beta1, beta2))
}

// Centered or not; states are the step, the mean square and the mean.
DEVICE void rmsprop_step(float *w, float g, float *s, float lr, float rho, float epsilon, float mu,
                         int centered)
{
    s[1] = rho * s[1] + (1.0f - rho) * g * g;
    const float mean = rho * s[2] + (1.0f - rho) * g;
    s[2] = centered ? mean : s[2];
    const float variance = centered ? fmax(s[1] - mean * mean, 0.0f) : s[1];
    s[0] = mu * s[0] + lr * g / sqrt(variance + epsilon);
    *w = *w - s[0];
}

KERNEL void rmsprop_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0,
                          GLOBAL float *s_1, GLOBAL float *s_2, ulong n, float lr, float rho,
                          float epsilon, float mu, int centered)
{
    DENSE(STATES_3, rmsprop_step(&x, d, s, lr, rho, epsilon, mu, centered))
}

KERNEL void rmsprop_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                         GLOBAL const float *g, uint rows, uint dim, float lr, float rho,
                         float epsilon, float mu, int centered)
{
    ROWS(3, rmsprop_step(&x, d, s, lr, rho, epsilon, mu, centered))
}

// Steps in the units of the weights.
DEVICE void adadelta_step(float *w, float g, float *s, float lr, float rho, float epsilon)
{
    s[0] = rho * s[0] + (1.0f - rho) * g * g;
    const float d = g * sqrt((s[1] + epsilon) / (s[0] + epsilon));
    s[1] = rho * s[1] + (1.0f - rho) * d * d;
    *w = *w - lr * d;
}

KERNEL void adadelta_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0,
                           GLOBAL float *s_1, ulong n, float lr, float rho, float epsilon)
{
    DENSE(STATES_2, adadelta_step(&x, d, s, lr, rho, epsilon))
}

KERNEL void adadelta_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                          GLOBAL const float *g, uint rows, uint dim, float lr, float rho,
                          float epsilon)
{
    ROWS(2, adadelta_step(&x, d, s, lr, rho, epsilon))
}

// The weight follows from both sums. Powers of 0.5 are roots, as on the CPU.
DEVICE void ftrl_step(float *w, float g, float *s, float lr, float l1, float l2, float power)
{
    const float n = s[0] + g * g;
    const float pull = power == 0.5f ? sqrt(n) : pow(n, power);
    const float before = power == 0.5f ? sqrt(s[0]) : pow(s[0], power);
    const float z = s[1] + (g - (pull - before) / lr * *w);
    const float free = (copysign(l1, z) - z) / (pull / lr + 2.0f * l2);
    *w = fabs(z) > l1 ? free : 0.0f;
    s[0] = n;
    s[1] = z;
}

KERNEL void ftrl_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0, GLOBAL float *s_1,
                       ulong n, float lr, float l1, float l2, float power)
{
    DENSE(STATES_2, ftrl_step(&x, d, s, lr, l1, l2, power))
}

KERNEL void ftrl_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                      GLOBAL const float *g, uint rows, uint dim, float lr, float l1, float l2,
                      float power)
{
    ROWS(2, ftrl_step(&x, d, s, lr, l1, l2, power))
}

// Paddle's dense rule of click models.
DEVICE void adam_d2sum_step(float *w, float g, float *s, float lr, float moment_decay,
                            float ada_decay, float epsilon)
{
    s[0] = s[0] * ada_decay + 1.0f;
    s[1] = s[1] * ada_decay + g * g;
    const float scale = sqrt((s[0] + s[0] * epsilon) / (s[1] + s[0] * epsilon));
    s[2] = (s[2] + g) * moment_decay - g;
    *w = *w + lr * s[2] * scale;
}

KERNEL void adam_d2sum_dense(GLOBAL float *w, GLOBAL const float *g, GLOBAL float *s_0,
                             GLOBAL float *s_1, GLOBAL float *s_2, ulong n, float lr,
                             float moment_decay, float ada_decay, float epsilon)
{
    DENSE(STATES_3, adam_d2sum_step(&x, d, s, lr, moment_decay, ada_decay, epsilon))
}

KERNEL void adam_d2sum_rows(GLOBAL float *arena, ulong stride, GLOBAL const uint *slots,
                            GLOBAL const float *g, uint rows, uint dim, float lr,
                            float moment_decay, float ada_decay, float epsilon)
{
    ROWS(3, adam_d2sum_step(&x, d, s, lr, moment_decay, ada_decay, epsilon))
}

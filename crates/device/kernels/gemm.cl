// Matrix products, row-major: C = act(op(A) op(B) + bias), C += ... and the like.
//
// Sums run over the depth in order, with one rounding per term, so that equal calls give equal
// bits. A group of 16 x 16 items computes a tile of 64 x 64: 16 elements for each item.
#define GEMM_TILE 64
#define GEMM_DEPTH 16
#define GEMM_PITCH (GEMM_TILE + 1)
#define GEMM_PART (GEMM_DEPTH * GEMM_PITCH)

// Bits of `flags`; the bits from GEMM_ACT on are 0: nothing, 1: relu, 2: tanh, 3: sigmoid.
#define GEMM_BIAS 1
#define GEMM_OPEN 2
#define GEMM_ADD 4
#define GEMM_ACT 4

DEVICE float gemm_act(int act, float x)
{
    switch (act) {
    // Written so that NaN passes through.
    case 1: return x < 0.0f ? 0.0f : x;
    case 2: return tanh(x);
    case 3: return 1.0f / (1.0f + exp(-x));
    default: return x;
    }
}

// What lies outside of a matrix counts as 0.
DEVICE float gemm_load(GLOBAL const float *x, uint row, uint rows, uint col, uint cols, uint pitch)
{
    return row < rows && col < cols ? x[(ulong)row * pitch + col] : 0.0f;
}

DEVICE void gemm_tile(LOCAL_PTR float *as, LOCAL_PTR float *bs, GLOBAL const float *a,
                      GLOBAL const float *b, GLOBAL float *c, GLOBAL const float *bias,
                      GLOBAL const float *open, uint m, uint n, uint k, uint lda, uint ldb,
                      uint ldc, int flags, const int trans_a, const int trans_b)
{
    const uint x = LOCAL_X, y = LOCAL_Y, item = y * 16 + x;
    const uint row_0 = GROUP_Y * GEMM_TILE, col_0 = GROUP_X * GEMM_TILE;
    float acc[4][4];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            acc[i][j] = 0.0f;
        }
    }
    for (uint k_0 = 0; k_0 < k; k_0 += GEMM_DEPTH) {
        for (uint e = item; e < GEMM_TILE * GEMM_DEPTH; e += 256) {
            if (trans_a) {
                const uint r = e % GEMM_TILE, q = e / GEMM_TILE;
                as[q * GEMM_PITCH + r] = gemm_load(a, k_0 + q, k, row_0 + r, m, lda);
            } else {
                const uint r = e / GEMM_DEPTH, q = e % GEMM_DEPTH;
                as[q * GEMM_PITCH + r] = gemm_load(a, row_0 + r, m, k_0 + q, k, lda);
            }
            if (trans_b) {
                const uint r = e / GEMM_DEPTH, q = e % GEMM_DEPTH;
                bs[q * GEMM_PITCH + r] = gemm_load(b, col_0 + r, n, k_0 + q, k, ldb);
            } else {
                const uint r = e % GEMM_TILE, q = e / GEMM_TILE;
                bs[q * GEMM_PITCH + r] = gemm_load(b, k_0 + q, k, col_0 + r, n, ldb);
            }
        }
        BARRIER();
        for (uint q = 0; q < GEMM_DEPTH; q++) {
            float u[4], v[4];
            for (int i = 0; i < 4; i++) {
                u[i] = as[q * GEMM_PITCH + y * 4 + i];
                v[i] = bs[q * GEMM_PITCH + i * 16 + x];
            }
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++) {
                    acc[i][j] = fma(u[i], v[j], acc[i][j]);
                }
            }
        }
        BARRIER();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            const uint row = row_0 + y * 4 + i, col = col_0 + j * 16 + x;
            if (row < m && col < n) {
                const ulong at = (ulong)row * ldc + col;
                float sum = acc[i][j];
                sum = flags & GEMM_ADD ? c[at] + sum : sum;
                sum = flags & GEMM_BIAS ? sum + bias[col] : sum;
                sum = gemm_act(flags >> GEMM_ACT, sum);
                c[at] = flags & GEMM_OPEN && !(open[at] > 0.0f) ? 0.0f : sum;
            }
        }
    }
}

// `a_step`, `b_step` and `c_step` lead from one product of a batch to the next (groups along z).
// Without a bias or an open relu any buffer may stand in their places.
KERNEL_SIZED(16, 16) void gemm_nn(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c,
                                  GLOBAL const float *bias, GLOBAL const float *open, uint m,
                                  uint n, uint k, uint lda, uint ldb, uint ldc, ulong a_step,
                                  ulong b_step, ulong c_step, int flags)
{
    LOCAL float as[GEMM_PART];
    LOCAL float bs[GEMM_PART];
    gemm_tile(as, bs, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias, open,
              m, n, k, lda, ldb, ldc, flags, 0, 0);
}

// B is stored n x k.
KERNEL_SIZED(16, 16) void gemm_nt(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c,
                                  GLOBAL const float *bias, GLOBAL const float *open, uint m,
                                  uint n, uint k, uint lda, uint ldb, uint ldc, ulong a_step,
                                  ulong b_step, ulong c_step, int flags)
{
    LOCAL float as[GEMM_PART];
    LOCAL float bs[GEMM_PART];
    gemm_tile(as, bs, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias, open,
              m, n, k, lda, ldb, ldc, flags, 0, 1);
}

// A is stored k x m.
KERNEL_SIZED(16, 16) void gemm_tn(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c,
                                  GLOBAL const float *bias, GLOBAL const float *open, uint m,
                                  uint n, uint k, uint lda, uint ldb, uint ldc, ulong a_step,
                                  ulong b_step, ulong c_step, int flags)
{
    LOCAL float as[GEMM_PART];
    LOCAL float bs[GEMM_PART];
    gemm_tile(as, bs, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias, open,
              m, n, k, lda, ldb, ldc, flags, 1, 0);
}

// Both are stored the other way round.
KERNEL_SIZED(16, 16) void gemm_tt(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c,
                                  GLOBAL const float *bias, GLOBAL const float *open, uint m,
                                  uint n, uint k, uint lda, uint ldb, uint ldc, ulong a_step,
                                  ulong b_step, ulong c_step, int flags)
{
    LOCAL float as[GEMM_PART];
    LOCAL float bs[GEMM_PART];
    gemm_tile(as, bs, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias, open,
              m, n, k, lda, ldb, ldc, flags, 1, 1);
}

// The sums of the columns of `rows` x `n`, each in the same order. A group has 32 columns.
KERNEL_SIZED(32, 8) void column_sums(GLOBAL const float *x, GLOBAL float *out, uint rows, uint n)
{
    LOCAL float part[8 * 32];
    const uint col = GROUP_X * 32 + LOCAL_X;
    float sum = 0.0f;
    if (col < n) {
        for (uint row = LOCAL_Y; row < rows; row += 8) {
            sum += x[(ulong)row * n + col];
        }
    }
    part[LOCAL_Y * 32 + LOCAL_X] = sum;
    BARRIER();
    if (LOCAL_Y == 0 && col < n) {
        for (uint y = 1; y < 8; y++) {
            sum += part[y * 32 + LOCAL_X];
        }
        out[col] = sum;
    }
}

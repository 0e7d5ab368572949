// The products of gemm.cl for devices that are processors: the same parameters, the same bits.
//
// An item is a group of its own and computes a tile of C of CPU_ROWS x CPU_COLS. It packs a panel
// of B, CPU_DEPTH deep, and runs over it with 6 rows of A at a time, whose sums stay in registers.
// PoCL 3.1 on two busy cores of Zen 4, 512 x 400 x 400: 156 GFLOP/s, 3 by the tiles of gemm.cl,
// whose sums PoCL keeps in memory between barriers (`cargo bench -p regatta-device`).
#define CPU_ROWS 96
#define CPU_COLS (2 * VEC_FLOATS)
#define CPU_DEPTH 192
#define CPU_BLOCK 6

#define CPU_BIAS 1
#define CPU_OPEN 2
#define CPU_ADD 4
#define CPU_ACT 4

DEVICE float cpu_act(int act, float x)
{
    switch (act) {
    // Written so that NaN passes through.
    case 1: return x < 0.0f ? 0.0f : x;
    case 2: return tanh(x);
    case 3: return 1.0f / (1.0f + exp(-x));
    default: return x;
    }
}

// Rows q_0.. of op(B) for the columns of the tile; columns beyond the last are 0.
DEVICE void cpu_pack(LOCAL_PTR float *panel, GLOBAL const float *b, uint q_0, uint depth,
                     uint col_0, uint n, uint ldb, const int trans_b)
{
    const uint cols = n - col_0 < CPU_COLS ? n - col_0 : CPU_COLS;
    if (trans_b) {
        for (uint j = 0; j < CPU_COLS; j++) {
            GLOBAL const float *from = b + (ulong)(col_0 + (j < cols ? j : 0)) * ldb + q_0;
            for (uint q = 0; q < depth; q++) {
                panel[q * CPU_COLS + j] = j < cols ? from[q] : 0.0f;
            }
        }
    } else if (cols == CPU_COLS) {
        for (uint q = 0; q < depth; q++) {
            GLOBAL const float *from = b + (ulong)(q_0 + q) * ldb + col_0;
            VEC_STORE(VEC_LOAD(from), panel + q * CPU_COLS);
            VEC_STORE(VEC_LOAD(from + VEC_FLOATS), panel + q * CPU_COLS + VEC_FLOATS);
        }
    } else {
        for (uint q = 0; q < depth; q++) {
            for (uint j = 0; j < CPU_COLS; j++) {
                const float x = j < cols ? b[(ulong)(q_0 + q) * ldb + col_0 + j] : 0.0f;
                panel[q * CPU_COLS + j] = x;
            }
        }
    }
}

#define CPU_ROW(i)                                                                                 \
    {                                                                                              \
        const float x = a[at_##i + q * step];                                                      \
        sum_##i = VEC_FMA(x, v_0, sum_##i);                                                        \
        more_##i = VEC_FMA(x, v_1, more_##i);                                                      \
    }
#define CPU_BEGIN(i)                                                                               \
    const ulong row_##i = row + i < m ? row + i : m - 1;                                           \
    const ulong at_##i = trans_a ? row_##i + (ulong)q_0 * lda : row_##i * lda + q_0;               \
    vec sum_##i = VEC_LOAD(sums + i * CPU_COLS);                                                   \
    vec more_##i = VEC_LOAD(sums + i * CPU_COLS + VEC_FLOATS);
#define CPU_END(i)                                                                                 \
    VEC_STORE(sum_##i, sums + i * CPU_COLS);                                                       \
    VEC_STORE(more_##i, sums + i * CPU_COLS + VEC_FLOATS);

// Adds `depth` terms to the sums of 6 rows of the tile. Rows beyond the last repeat it.
DEVICE void cpu_block(LOCAL_PTR float *sums, LOCAL_PTR float *panel, GLOBAL const float *a,
                      uint row, uint m, uint q_0, uint depth, uint lda, const int trans_a)
{
    const ulong step = trans_a ? lda : 1;
    CPU_BEGIN(0) CPU_BEGIN(1) CPU_BEGIN(2) CPU_BEGIN(3) CPU_BEGIN(4) CPU_BEGIN(5)
    for (uint q = 0; q < depth; q++) {
        const vec v_0 = VEC_LOAD(panel + q * CPU_COLS);
        const vec v_1 = VEC_LOAD(panel + q * CPU_COLS + VEC_FLOATS);
        CPU_ROW(0) CPU_ROW(1) CPU_ROW(2) CPU_ROW(3) CPU_ROW(4) CPU_ROW(5)
    }
    CPU_END(0) CPU_END(1) CPU_END(2) CPU_END(3) CPU_END(4) CPU_END(5)
}

DEVICE void cpu_finish(LOCAL_PTR float *sums, GLOBAL float *c, GLOBAL const float *bias,
                       GLOBAL const float *open, uint row, uint col_0, uint n, uint ldc, int flags)
{
    const uint cols = n - col_0 < CPU_COLS ? n - col_0 : CPU_COLS;
    const ulong at = (ulong)row * ldc + col_0;
    for (uint j = 0; j < cols; j++) {
        float sum = sums[j];
        sum = flags & CPU_ADD ? c[at + j] + sum : sum;
        sum = flags & CPU_BIAS ? sum + bias[col_0 + j] : sum;
        sum = cpu_act(flags >> CPU_ACT, sum);
        c[at + j] = flags & CPU_OPEN && !(open[at + j] > 0.0f) ? 0.0f : sum;
    }
}

DEVICE void cpu_tile(LOCAL_PTR float *sums, LOCAL_PTR float *panel, GLOBAL const float *a,
                     GLOBAL const float *b, GLOBAL float *c, GLOBAL const float *bias,
                     GLOBAL const float *open, uint m, uint n, uint k, uint lda, uint ldb,
                     uint ldc, int flags, const int trans_a, const int trans_b)
{
    const uint row_0 = GROUP_Y * CPU_ROWS, col_0 = GROUP_X * CPU_COLS;
    const uint rows = m - row_0 < CPU_ROWS ? m - row_0 : CPU_ROWS;
    for (uint i = 0; i < CPU_ROWS * CPU_COLS; i++) {
        sums[i] = 0.0f;
    }
    for (uint q_0 = 0; q_0 < k; q_0 += CPU_DEPTH) {
        const uint depth = k - q_0 < CPU_DEPTH ? k - q_0 : CPU_DEPTH;
        cpu_pack(panel, b, q_0, depth, col_0, n, ldb, trans_b);
        for (uint row = 0; row < rows; row += CPU_BLOCK) {
            cpu_block(sums + row * CPU_COLS, panel, a, row_0 + row, m, q_0, depth, lda, trans_a);
        }
    }
    for (uint row = 0; row < rows; row++) {
        cpu_finish(sums + row * CPU_COLS, c, bias, open, row_0 + row, col_0, n, ldc, flags);
    }
}

KERNEL_SIZED(1, 1) void gemm_cpu_nn(GLOBAL const float *a, GLOBAL const float *b,
                                    GLOBAL float *c, GLOBAL const float *bias,
                                    GLOBAL const float *open, uint m, uint n, uint k, uint lda,
                                    uint ldb, uint ldc, ulong a_step, ulong b_step, ulong c_step,
                                    int flags)
{
    LOCAL float sums[CPU_ROWS * CPU_COLS];
    LOCAL float panel[CPU_DEPTH * CPU_COLS];
    cpu_tile(sums, panel, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias,
             open, m, n, k, lda, ldb, ldc, flags, 0, 0);
}

KERNEL_SIZED(1, 1) void gemm_cpu_nt(GLOBAL const float *a, GLOBAL const float *b,
                                    GLOBAL float *c, GLOBAL const float *bias,
                                    GLOBAL const float *open, uint m, uint n, uint k, uint lda,
                                    uint ldb, uint ldc, ulong a_step, ulong b_step, ulong c_step,
                                    int flags)
{
    LOCAL float sums[CPU_ROWS * CPU_COLS];
    LOCAL float panel[CPU_DEPTH * CPU_COLS];
    cpu_tile(sums, panel, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias,
             open, m, n, k, lda, ldb, ldc, flags, 0, 1);
}

KERNEL_SIZED(1, 1) void gemm_cpu_tn(GLOBAL const float *a, GLOBAL const float *b,
                                    GLOBAL float *c, GLOBAL const float *bias,
                                    GLOBAL const float *open, uint m, uint n, uint k, uint lda,
                                    uint ldb, uint ldc, ulong a_step, ulong b_step, ulong c_step,
                                    int flags)
{
    LOCAL float sums[CPU_ROWS * CPU_COLS];
    LOCAL float panel[CPU_DEPTH * CPU_COLS];
    cpu_tile(sums, panel, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias,
             open, m, n, k, lda, ldb, ldc, flags, 1, 0);
}

KERNEL_SIZED(1, 1) void gemm_cpu_tt(GLOBAL const float *a, GLOBAL const float *b,
                                    GLOBAL float *c, GLOBAL const float *bias,
                                    GLOBAL const float *open, uint m, uint n, uint k, uint lda,
                                    uint ldb, uint ldc, ulong a_step, ulong b_step, ulong c_step,
                                    int flags)
{
    LOCAL float sums[CPU_ROWS * CPU_COLS];
    LOCAL float panel[CPU_DEPTH * CPU_COLS];
    cpu_tile(sums, panel, a + GROUP_Z * a_step, b + GROUP_Z * b_step, c + GROUP_Z * c_step, bias,
             open, m, n, k, lda, ldb, ldc, flags, 1, 1);
}

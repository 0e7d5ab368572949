// Floats that are filled and copied; one work item per float.

KERNEL void fill(GLOBAL float *y, const float value, const ulong n) {
    const ulong i = GLOBAL_X;
    if (i < n) y[i] = value;
}

KERNEL void copy(GLOBAL const float *x, GLOBAL float *y, const ulong n) {
    const ulong i = GLOBAL_X;
    if (i < n) y[i] = x[i];
}

// Functions of one or two elements. Codes are those of exec/src/device/codes.rs.

DEVICE float unary_value(int code, float x, float p, float q)
{
    switch (code) {
    case 0: return x;
    case 1: return x > 0.0f ? x : (x == x ? 0.0f : x);
    case 2: return tanh(x);
    case 3: return 1.0f / (1.0f + exp(-x));
    case 4: return p * x + q;
    case 5: return x * x;
    case 6: return fabs(x);
    case 7: return exp(x);
    case 8: return log(x);
    case 9: return sqrt(x);
    // Written so that NaN passes through.
    case 10: return x < p ? p : (x > q ? q : x);
    case 11: return x > 0.0f ? x : p * x;
    case 12: return pow(x, p);
    case 13: return 1.0f / sqrt(x);
    case 14: return log1p(x);
    case 15: return p * x > q ? x : (fmax(p * x, 0.0f) + log1p(exp(-fabs(p * x)))) / p;
    default: return x / (1.0f + exp(-x));
    }
}

// The gradient of the input, from what the forward function kept: its input or its result.
DEVICE float unary_slope(int code, float kept, float d, float p, float q)
{
    float s;
    switch (code) {
    case 1: return kept > 0.0f ? d : 0.0f;
    case 2: return d * (1.0f - kept * kept);
    case 3: return d * kept * (1.0f - kept);
    case 5: return d * 2.0f * kept;
    case 6: return kept > 0.0f ? d : (kept < 0.0f ? -d : 0.0f);
    case 7: return d * kept;
    case 8: return d / kept;
    case 9: return d * 0.5f / kept;
    case 10: return kept <= p || kept >= q ? 0.0f : d;
    case 11: return kept > 0.0f ? d : p * d;
    case 12: return d * p * pow(kept, p - 1.0f);
    case 13: return d * -0.5f * kept * kept * kept;
    case 14: return d / (1.0f + kept);
    case 15: return p * kept > q ? d : d / (1.0f + exp(-p * kept));
    default:
        s = 1.0f / (1.0f + exp(-kept));
        return d * s * (1.0f + kept * (1.0f - s));
    }
}

DEVICE float binary_value(int code, float x, float y)
{
    switch (code) {
    case 0: return x + y;
    case 1: return x - y;
    case 2: return x * y;
    case 3: return x / y;
    // A NaN on either side is the result.
    case 4: return x > y || x != x ? x : y;
    case 5: return x < y || x != x ? x : y;
    default: return pow(x, y);
    }
}

DEVICE float binary_slope(int code, int of_x, float x, float y, float d)
{
    switch (code) {
    case 0: return d;
    case 1: return of_x ? d : -d;
    case 2: return d * (of_x ? y : x);
    case 3: return of_x ? d / y : -d * x / (y * y);
    // Where both sides are equal, the gradient goes to Y.
    case 4: return (x > y) == (of_x != 0) ? d : 0.0f;
    case 5: return (x < y) == (of_x != 0) ? d : 0.0f;
    default: return of_x ? d * y * pow(x, y - 1.0f) : d * pow(x, y) * log(x);
    }
}

KERNEL void unary(int code, uint n, GLOBAL const float *x, GLOBAL float *out, float p, float q)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = unary_value(code, x[i], p, q);
    }
}

KERNEL void unary_grad(int code, uint n, GLOBAL const float *kept, GLOBAL const float *d,
                         GLOBAL float *dx, float p, float q)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        dx[i] = unary_slope(code, kept[i], d[i], p, q);
    }
}

// `shape` holds the number of dimensions, and for each its size and the strides of both inputs.
KERNEL void binary(int code, uint n, GLOBAL const uint *shape, GLOBAL const float *x,
                     GLOBAL const float *y, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        uint rest = i, at_x = 0, at_y = 0;
        for (int k = (int)shape[0] - 1; k >= 0; k--) {
            GLOBAL const uint *dim = shape + 1 + 3 * k;
            uint at = rest % dim[0];
            rest /= dim[0];
            at_x += at * dim[1];
            at_y += at * dim[2];
        }
        out[i] = binary_value(code, x[at_x], y[at_y]);
    }
}

// One item for each element of the gradient, which adds up where that element was repeated.
// `shape` holds the numbers of kept and of repeated dimensions, and for each its size and the
// strides of the result and of both inputs.
KERNEL void binary_grad(int code, int of_x, uint n, uint repeats, GLOBAL const uint *shape,
                          GLOBAL const float *x, GLOBAL const float *y,
                          GLOBAL const float *d, GLOBAL float *grad)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        int kept = (int)shape[0], repeated = (int)shape[1];
        uint rest = i, at_d = 0, at_x = 0, at_y = 0;
        for (int k = kept - 1; k >= 0; k--) {
            GLOBAL const uint *dim = shape + 2 + 4 * k;
            uint at = rest % dim[0];
            rest /= dim[0];
            at_d += at * dim[1];
            at_x += at * dim[2];
            at_y += at * dim[3];
        }
        float sum = 0.0f;
        for (uint r = 0; r < repeats; r++) {
            uint left = r, of_d = at_d, in_x = at_x, in_y = at_y;
            for (int k = kept + repeated - 1; k >= kept; k--) {
                GLOBAL const uint *dim = shape + 2 + 4 * k;
                uint at = left % dim[0];
                left /= dim[0];
                of_d += at * dim[1];
                in_x += at * dim[2];
                in_y += at * dim[3];
            }
            sum += binary_slope(code, of_x, x[in_x], y[in_y], d[of_d]);
        }
        grad[i] = sum;
    }
}

// The sum of the first `count` of four arrays.
KERNEL void sum_arrays(int count, uint n, GLOBAL const float *a, GLOBAL const float *b,
                         GLOBAL const float *c, GLOBAL const float *d, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        float sum = a[i];
        if (count > 1) {
            sum += b[i];
        }
        if (count > 2) {
            sum += c[i];
        }
        if (count > 3) {
            sum += d[i];
        }
        out[i] = sum;
    }
}

KERNEL void fill_floats(uint n, float value, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = value;
    }
}

// `out[i] = factor * x[0]`.
KERNEL void spread_one(uint n, float factor, GLOBAL const float *x, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = x[0] * factor;
    }
}

KERNEL void cast_signed(uint n, GLOBAL const long *x, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = (float)x[i];
    }
}

KERNEL void cast_unsigned(uint n, GLOBAL const ulong *x, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = (float)x[i];
    }
}

// One step of a chain: `v` is what the chain has so far, `o` its operand. Hundreds of `code` say
// what to do: 0: a function of v, 1: of v and o, 2: of o and v, 3: the gradient v through a
// function that kept o, 4: the gradient o through one that kept v, 5: v + p * o.
DEVICE float chain_step(int code, float v, float o, float p, float q)
{
    switch (code / 100) {
    case 0: return unary_value(code, v, p, q);
    case 1: return binary_value(code - 100, v, o);
    case 2: return binary_value(code - 200, o, v);
    case 3: return unary_slope(code - 300, o, v, p, q);
    case 4: return unary_slope(code - 400, v, o, p, q);
    default: return v + p * o;
    }
}

DEVICE float chain_load(GLOBAL const uint *from, uint i, GLOBAL const float *a,
                        GLOBAL const float *b, GLOBAL const float *c, GLOBAL const float *d,
                        GLOBAL const float *e)
{
    uint at = i / from[1] * from[2] + i % from[3];
    switch (from[0]) {
    case 0: return a[at];
    case 1: return b[at];
    case 2: return c[at];
    case 3: return d[at];
    default: return e[at];
    }
}

// Several functions of one element after the other. An operand is an array and three numbers:
// element i of the chain meets element i / x * y + i % z of the array. `steps` has the first
// operand, and for each step its code and its operand; `params` two floats for each step.
KERNEL void chain(uint n, uint count, GLOBAL const uint *steps, GLOBAL const float *params,
                  GLOBAL const float *a, GLOBAL const float *b, GLOBAL const float *c,
                  GLOBAL const float *d, GLOBAL const float *e, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        float v = chain_load(steps, i, a, b, c, d, e);
        for (uint k = 0; k < count; k++) {
            GLOBAL const uint *step = steps + 4 + 5 * k;
            float o = step[0] < 100 ? 0.0f : chain_load(step + 1, i, a, b, c, d, e);
            v = chain_step((int)step[0], v, o, params[2 * k], params[2 * k + 1]);
        }
        out[i] = v;
    }
}

// Losses and what leads to them. Codes are those of exec/src/device/codes.rs.

DEVICE float pair_loss_value(int code, float x, float label, float p)
{
    float r;
    switch (code) {
    // The logarithm of a sigmoid, which neither overflows nor loses what is small.
    case 0: return (x < 0.0f ? 0.0f : x) - x * label + log1p(exp(-fabs(x)));
    case 1: return -label * log(x + p) - (1.0f - label) * log(1.0f - x + p);
    case 2:
        r = fabs(x - label);
        return r > p ? p * (r - 0.5f * p) : 0.5f * r * r;
    case 3:
        r = 1.0f - (2.0f * label - 1.0f) * x;
        return r < 0.0f ? 0.0f : r;
    default: return (x - label) * (x - label);
    }
}

DEVICE float pair_loss_slope(int code, int of_x, float x, float label, float p)
{
    float r;
    switch (code) {
    case 0: return of_x ? 1.0f / (1.0f + exp(-x)) - label : -x;
    case 1:
        return of_x ? (1.0f - label) / (1.0f - x + p) - label / (x + p)
                    : log(1.0f - x + p) - log(x + p);
    case 2:
        r = x - label;
        r = r > p ? p : (r < -p ? -p : r);
        return of_x ? r : -r;
    case 3:
        r = 1.0f - (2.0f * label - 1.0f) * x;
        return r > 0.0f ? (of_x ? 1.0f - 2.0f * label : -2.0f * x) : 0.0f;
    default: return of_x ? 2.0f * (x - label) : -2.0f * (x - label);
    }
}

KERNEL void pair_loss(int code, uint n, GLOBAL const float *x, GLOBAL const float *label,
                        GLOBAL float *out, float p)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = pair_loss_value(code, x[i], label[i], p);
    }
}

KERNEL void pair_loss_grad(int code, int of_x, uint n, GLOBAL const float *x,
                             GLOBAL const float *label, GLOBAL const float *d,
                             GLOBAL float *out, float p)
{
    uint i = (uint)GLOBAL_X;
    if (i < n) {
        out[i] = d[i] * pair_loss_slope(code, of_x, x[i], label[i], p);
    }
}

// Over `n` numbers that are `step` apart.
KERNEL void softmax(uint count, uint n, uint step, GLOBAL const float *x, GLOBAL float *out)
{
    uint i = (uint)GLOBAL_X;
    if (i < count) {
        uint from = i / step * n * step + i % step;
        float top = x[from], sum = 0.0f;
        for (uint k = 1; k < n; k++) {
            top = fmax(top, x[from + k * step]);
        }
        for (uint k = 0; k < n; k++) {
            float e = exp(x[from + k * step] - top);
            out[from + k * step] = e;
            sum += e;
        }
        for (uint k = 0; k < n; k++) {
            out[from + k * step] /= sum;
        }
    }
}

KERNEL void softmax_grad(uint count, uint n, uint step, GLOBAL const float *y,
                           GLOBAL const float *d, GLOBAL float *dx)
{
    uint i = (uint)GLOBAL_X;
    if (i < count) {
        uint from = i / step * n * step + i % step;
        float dot_of = 0.0f;
        for (uint k = 0; k < n; k++) {
            dot_of += y[from + k * step] * d[from + k * step];
        }
        for (uint k = 0; k < n; k++) {
            dx[from + k * step] = y[from + k * step] * (d[from + k * step] - dot_of);
        }
    }
}

// A label that is no class gives NaN; those that are fed are checked before.
KERNEL void softmax_cross_entropy(uint rows, uint n, int ignored, GLOBAL const float *x,
                                    GLOBAL const long *label, GLOBAL float *loss,
                                    GLOBAL float *softmax)
{
    uint row = (uint)GLOBAL_X;
    if (row < rows) {
        GLOBAL const float *logits = x + row * n;
        float top = logits[0], sum = 0.0f;
        for (uint k = 1; k < n; k++) {
            top = fmax(top, logits[k]);
        }
        for (uint k = 0; k < n; k++) {
            float e = exp(logits[k] - top);
            softmax[row * n + k] = e;
            sum += e;
        }
        for (uint k = 0; k < n; k++) {
            softmax[row * n + k] /= sum;
        }
        long class_of = label[row];
        if (class_of == ignored) {
            loss[row] = 0.0f;
        } else if (class_of < 0 || class_of >= (long)n) {
            loss[row] = 0.0f * (sum / 0.0f);
        } else {
            loss[row] = log(sum) + top - logits[class_of];
        }
    }
}

KERNEL void softmax_cross_entropy_soft(uint rows, uint n, GLOBAL const float *x,
                                         GLOBAL const float *label, GLOBAL float *loss,
                                         GLOBAL float *softmax)
{
    uint row = (uint)GLOBAL_X;
    if (row < rows) {
        GLOBAL const float *logits = x + row * n;
        float top = logits[0], sum = 0.0f, total = 0.0f;
        for (uint k = 1; k < n; k++) {
            top = fmax(top, logits[k]);
        }
        for (uint k = 0; k < n; k++) {
            float e = exp(logits[k] - top);
            softmax[row * n + k] = e;
            sum += e;
        }
        for (uint k = 0; k < n; k++) {
            softmax[row * n + k] /= sum;
            total += label[row * n + k] * (log(sum) + top - logits[k]);
        }
        loss[row] = total;
    }
}

KERNEL void softmax_cross_entropy_grad(uint rows, uint n, int ignored,
                                         GLOBAL const float *softmax, GLOBAL const long *label,
                                         GLOBAL const float *d, GLOBAL float *dx)
{
    uint i = (uint)GLOBAL_X;
    if (i < rows * n) {
        uint row = i / n;
        long class_of = label[row];
        float hit = class_of == (long)(i % n) ? d[row] : 0.0f;
        dx[i] = class_of == ignored ? 0.0f : d[row] * softmax[i] - hit;
    }
}

KERNEL void softmax_cross_entropy_soft_grad(uint rows, uint n, GLOBAL const float *softmax,
                                              GLOBAL const float *label, GLOBAL const float *d,
                                              GLOBAL float *dx)
{
    uint i = (uint)GLOBAL_X;
    if (i < rows * n) {
        uint row = i / n;
        float sum = 0.0f;
        for (uint k = 0; k < n; k++) {
            sum += label[row * n + k];
        }
        dx[i] = d[row] * (softmax[i] * sum - label[i]);
    }
}

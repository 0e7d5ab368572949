// The words of kernel texts in CUDA C++. prelude_opencl.cl has the same for OpenCL.
typedef unsigned int uint;
typedef unsigned long long ulong;
#define KERNEL extern "C" __global__
#define KERNEL_SIZED(x, y) extern "C" __global__ __launch_bounds__((x) * (y))
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define LOCAL __shared__
#define LOCAL_PTR
#define RESTRICT __restrict__
#define BARRIER() __syncthreads()
#define GROUP_X (blockIdx.x)
#define GROUP_Y (blockIdx.y)
#define GROUP_Z (blockIdx.z)
#define LOCAL_X (threadIdx.x)
#define LOCAL_Y (threadIdx.y)
#define SIZE_X (blockDim.x)
#define SIZE_Y (blockDim.y)
#define GLOBAL_X ((ulong)blockIdx.x * blockDim.x + threadIdx.x)
#define GLOBAL_Y ((ulong)blockIdx.y * blockDim.y + threadIdx.y)
#define GLOBAL_Z ((ulong)blockIdx.z * blockDim.z + threadIdx.z)
// Floats that one item computes together.
typedef float4 vec;
#define VEC_FLOATS 4
#define VEC_OF(x) make_float4(x, x, x, x)
#define VEC_LOAD(p) make_float4((p)[0], (p)[1], (p)[2], (p)[3])
#define VEC_STORE(v, p) ((p)[0] = v.x, (p)[1] = v.y, (p)[2] = v.z, (p)[3] = v.w)
#define VEC_FMA(x, v, sum)                                                                         \
    make_float4(fma(x, v.x, sum.x), fma(x, v.y, sum.y), fma(x, v.z, sum.z), fma(x, v.w, sum.w))

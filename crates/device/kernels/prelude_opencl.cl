// The words of kernel texts in OpenCL C. prelude_cuda.cu has the same for CUDA.
#pragma OPENCL FP_CONTRACT OFF
#define KERNEL __kernel
#define KERNEL_SIZED(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1)))
#define DEVICE static inline
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_PTR __local
#define RESTRICT restrict
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define GROUP_X ((uint)get_group_id(0))
#define GROUP_Y ((uint)get_group_id(1))
#define GROUP_Z ((uint)get_group_id(2))
#define LOCAL_X ((uint)get_local_id(0))
#define LOCAL_Y ((uint)get_local_id(1))
#define SIZE_X ((uint)get_local_size(0))
#define SIZE_Y ((uint)get_local_size(1))
#define GLOBAL_X ((ulong)get_global_id(0))
#define GLOBAL_Y ((ulong)get_global_id(1))
#define GLOBAL_Z ((ulong)get_global_id(2))
// Floats that one item computes together.
typedef float16 vec;
#define VEC_FLOATS 16
#define VEC_OF(x) ((vec)(x))
#define VEC_LOAD(p) vload16(0, p)
#define VEC_STORE(v, p) vstore16(v, 0, p)
#define VEC_FMA(x, v, sum) fma((vec)(x), v, sum)

//! Run-time choice between a baseline and an AVX2+FMA build of the same loop.

/// Whether this CPU has AVX2 and FMA. The standard library caches the answer.
#[inline]
pub fn has_avx2_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether this CPU has AVX-512 (F, BW, DQ and VL) beside AVX2 and FMA.
#[inline]
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        has_avx2_fma()
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Defines a function whose body is compiled twice: for the baseline target and for AVX2+FMA,
/// chosen at run time. Write plain loops over slices; the compiler vectorises both.
///
/// ```
/// regatta_kernels::simd! {
///     /// Adds `x` to `y`.
///     pub fn add_to(y: &mut [f32], x: &[f32]) {
///         for (y, x) in y.iter_mut().zip(x) { *y += x; }
///     }
/// }
/// let mut y = [1.0, 2.0];
/// add_to(&mut y, &[10.0, 20.0]);
/// assert_eq!(y, [11.0, 22.0]);
/// ```
#[macro_export]
macro_rules! simd {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                if $crate::has_avx2_fma() {
                    #[expect(unsafe_code, reason = "calls a function built for the CPU that was just detected")]
                    // SAFETY: `wide` needs AVX2 and FMA, and both were detected.
                    return unsafe { wide($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}

/// Like [`simd!`], built for AVX-512 too: for loops over many elements, which fill its vectors.
///
/// ```
/// regatta_kernels::simd_long! {
///     fn double(x: &mut [f32]) {
///         for x in x { *x *= 2.0; }
///     }
/// }
/// let mut x = [1.0; 100];
/// double(&mut x);
/// assert_eq!(x, [2.0; 100]);
/// ```
#[macro_export]
macro_rules! simd_long {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
                fn widest($($arg: $ty),*) $(-> $ret)? $body
                if $crate::has_avx512() {
                    #[expect(unsafe_code, reason = "calls a function built for the CPU that was just detected")]
                    // SAFETY: `widest` needs AVX-512, which was detected.
                    return unsafe { widest($($arg),*) };
                }
            }
            $crate::simd! { fn narrower($($arg: $ty),*) $(-> $ret)? $body }
            narrower($($arg),*)
        }
    };
}

/// Like [`simd!`], for a body that needs multiply-adds: the generic parameter is
/// [`Fused`](crate::math::Fused) in the wide build and [`Separate`](crate::math::Separate) in the
/// other.
macro_rules! simd_mul_add {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$m:ident>($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?
        $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$m: $crate::math::MulAdd>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $ty),*) $(-> $ret)? { body::<$crate::math::Fused>($($arg),*) }
                if $crate::has_avx2_fma() {
                    // SAFETY: `wide` needs AVX2 and FMA, and both were detected.
                    return unsafe { wide($($arg),*) };
                }
            }
            body::<$crate::math::Separate>($($arg),*)
        }
    };
}
pub(crate) use simd_mul_add;

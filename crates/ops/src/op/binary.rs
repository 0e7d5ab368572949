//! Functions of two elements with their derivatives, for `elementwise.rs`.

/// `f(x, y)`, `df/dx` and `df/dy`, the latter two as functions of `(x, y, dout)`.
pub(super) trait Binary: 'static {
    /// The same on integers, if it takes them.
    const INTS: Option<fn(i64, i64) -> i64>;
    /// Whether an integer 0 as Y has no result.
    const DIVIDES: bool;
    fn f(x: f32, y: f32) -> f32;
    fn dx(x: f32, y: f32, d: f32) -> f32;
    fn dy(x: f32, y: f32, d: f32) -> f32;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident($x:ident, $y:ident, $d:ident) {
        $f:expr; dx $dx:expr; dy $dy:expr; ints $ints:expr $(; divides $divides:literal)?
    })*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl Binary for $name {
            const INTS: Option<fn(i64, i64) -> i64> = $ints;
            const DIVIDES: bool = false $(|| $divides)?;
            #[inline(always)]
            fn f($x: f32, $y: f32) -> f32 {
                $f
            }
            #[inline(always)]
            #[allow(unused_variables, reason = "some derivatives need neither operand")]
            fn dx($x: f32, $y: f32, $d: f32) -> f32 {
                $dx
            }
            #[inline(always)]
            #[allow(unused_variables, reason = "some derivatives need neither operand")]
            fn dy($x: f32, $y: f32, $d: f32) -> f32 {
                $dy
            }
        }
    )*};
}

binary! {
    Add(x, y, d) { x + y; dx d; dy d; ints Some(i64::wrapping_add) }
    Sub(x, y, d) { x - y; dx d; dy -d; ints Some(i64::wrapping_sub) }
    Mul(x, y, d) { x * y; dx d * y; dy d * x; ints Some(i64::wrapping_mul) }
    /// Of integers, towards zero.
    Div(x, y, d) {
        x / y; dx d / y; dy -d * x / (y * y); ints Some(i64::wrapping_div); divides true
    }
    Max(x, y, d) {
        if x > y || x.is_nan() { x } else { y };
        dx if x > y { d } else { 0.0 };
        dy if x > y { 0.0 } else { d };
        ints Some(Ord::max)
    }
    Min(x, y, d) {
        if x < y || x.is_nan() { x } else { y };
        dx if x < y { d } else { 0.0 };
        dy if x < y { 0.0 } else { d };
        ints Some(Ord::min)
    }
    Pow(x, y, d) {
        x.powf(y);
        dx d * y * x.powf(y - 1.0);
        // Towards 0 the power goes faster to 0 than the logarithm to infinity.
        dy if x == 0.0 && y > 0.0 { 0.0 } else { d * x.powf(y) * x.ln() };
        ints Some(int_pow)
    }
    /// The remainder has the sign of Y.
    Mod(x, y, d) {
        x - y * (x / y).floor(); dx d; dy -d * (x / y).floor();
        ints Some(int_mod); divides true
    }
    FloorDiv(x, y, d) {
        (x / y).floor(); dx 0.0; dy 0.0; ints Some(int_floor_div); divides true
    }
    /// X where it is positive, else the share Y of it.
    Prelu(x, y, d) {
        if x > 0.0 { x } else { x * y };
        dx if x > 0.0 { d } else { d * y };
        dy if x > 0.0 { 0.0 } else { d * x };
        ints None
    }
}

/// Of a negative exponent, the power of floats without its fraction.
fn int_pow(x: i64, y: i64) -> i64 {
    match u32::try_from(y) {
        Ok(y) => x.wrapping_pow(y),
        Err(_) => (x as f64).powf(y as f64) as i64,
    }
}

fn int_floor_div(x: i64, y: i64) -> i64 {
    let down = x.wrapping_rem(y) != 0 && (x < 0) != (y < 0);
    x.wrapping_div(y) - i64::from(down)
}

fn int_mod(x: i64, y: i64) -> i64 {
    let rest = x.wrapping_rem(y);
    if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_divide_downwards() {
        let pairs = [(-7, 2), (7, -2), (-7, -2), (7, 2), (6, -3), (i64::MIN, -1)];
        let quotients = pairs.map(|(x, y)| int_floor_div(x, y));
        assert_eq!(quotients, [-4, -4, 3, 3, -2, i64::MIN]);
        assert_eq!(pairs.map(|(x, y)| int_mod(x, y)), [1, -1, -1, 1, 0, 0]);
        assert_eq!([Mod::f(-7.0, 2.0), Mod::f(7.0, -2.0)], [1.0, -1.0]);
    }

    #[test]
    fn integer_powers() {
        let powers = [(2, 10), (-3, 3), (5, 0), (2, -1), (1, -4)].map(|(x, y)| int_pow(x, y));
        assert_eq!(powers, [1024, -27, 1, 0, 1]);
    }
}

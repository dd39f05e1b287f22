//! Loops as people write them, each as a plain loop, on the processor, on software Vulkan and on both: the results are the
//! same. `with_vulkan` tests are ignored where there is no Vulkan device.
#![allow(
    clippy::all,
    clippy::expect_used,
    clippy::unwrap_used,
    missing_docs,
    dead_code,
    unused_braces,
    clippy::print_stdout
)]

extern crate evener_parallel as evener;

use std::fmt::Debug;

use evener::{Pool, parallel};
use evener_device::{Api, Device, Inventory};

/// The same function twice: for devices, and as it is.
macro_rules! both {
    ($name:ident, $plain:ident, $arguments:tt, [$($value:tt)*], $body:tt) => {
        #[parallel]
        fn $name $arguments $($value)* $body
        fn $plain $arguments $($value)* $body
    };
}

const SCALE: f32 = 1.5;
const WEIGHTS: [f32; 3] = [0.25, 0.5, 0.25];

#[parallel::function]
fn cdf(x: f32) -> f32 {
    let k = 1.0 / (1.0 + 0.2316419 * x.abs());
    let poly =
        k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))));
    let tail = 0.3989423 * (-0.5 * x * x).exp() * poly;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[parallel::function]
fn mix(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

both!(black_scholes, plain_black_scholes, (spot: &[f32], strike: &[f32], years: f32, call: &mut [f32]), [], {
    for i in 0..spot.len() {
        let d1 = ((spot[i] / strike[i]).ln() + (0.02 + 0.3 * 0.3 / 2.0) * years) / (0.3 * years.sqrt());
        call[i] = spot[i] * cdf(d1) - strike[i] * (-0.02 * years).exp() * cdf(d1 - 0.3 * years.sqrt());
    }
});
both!(saxpy, plain_saxpy, (a: f32, x: &[f32], y: &mut [f32]), [], {
    for i in 0..x.len() {
        y[i] = a * x[i] + y[i];
    }
});
both!(scale, plain_scale, (x: &[f32], y: &mut [f32]), [], {
    for i in 0..x.len() {
        y[i] = x[i] * SCALE + 1.0;
    }
});
both!(stencil, plain_stencil, (x: &[f32], y: &mut [f32]), [], {
    for i in 1..x.len() - 1 {
        y[i] = WEIGHTS[0] * x[i - 1] + WEIGHTS[1] * x[i] + WEIGHTS[2] * x[i + 1];
    }
});
both!(zipped, plain_zipped, (a: &[f32], b: &[f32], out: &mut [f32]), [], {
    for ((o, x), y) in out.iter_mut().zip(a.iter()).zip(b) {
        *o = x * y - x / (y + 2.0);
    }
});
both!(enumerated, plain_enumerated, (out: &mut [u32]), [], {
    for (i, o) in out.iter_mut().enumerate() {
        *o = mix(i as u32);
    }
});
both!(collected, plain_collected, (x: &[i32]), [-> Vec<i32>], {
    (0..x.len()).map(|i| x[i].wrapping_mul(3) ^ 5).collect()
});
both!(mandelbrot, plain_mandelbrot, (width: usize, height: usize, out: &mut [u32]), [], {
    for i in 0..width * height {
        let x = (i % width) as f32 / width as f32 * 3.0 - 2.0;
        let y = (i / width) as f32 / height as f32 * 2.0 - 1.0;
        let mut a = 0.0f32;
        let mut b = 0.0f32;
        let mut n = 0;
        while n < 50 && a * a + b * b < 4.0 {
            let t = a * a - b * b + x;
            b = 2.0 * a * b + y;
            a = t;
            n += 1;
        }
        out[i] = n;
    }
});
both!(forces, plain_forces, (x: &[f32], y: &[f32], fx: &mut [f32], fy: &mut [f32]), [], {
    for i in 0..x.len() {
        let mut ax = 0.0;
        let mut ay = 0.0;
        for j in 0..x.len() {
            let dx = x[j] - x[i];
            let dy = y[j] - y[i];
            let d = dx * dx + dy * dy + 0.01;
            let inv = 1.0 / (d * d.sqrt());
            ax += dx * inv;
            ay += dy * inv;
        }
        fx[i] = ax;
        fy[i] = ay;
    }
});
both!(matrix, plain_matrix, (n: usize, a: &[i32], b: &[i32], c: &mut [i32]), [], {
    for row in 0..n {
        for column in 0..n {
            let mut sum = 0;
            for k in 0..n {
                sum += a[row * n + k] * b[k * n + column];
            }
            c[row * n + column] = sum;
        }
    }
});
both!(particles, plain_particles, (dt: f32, px: &mut [f32], py: &mut [f32], vx: &mut [f32], vy: &mut [f32]), [], {
    for i in 0..px.len() {
        vy[i] -= 9.81 * dt;
        px[i] += vx[i] * dt;
        py[i] += vy[i] * dt;
        if py[i] < 0.0 {
            py[i] = -py[i];
            vy[i] = -vy[i] * 0.9;
        }
    }
});
both!(sum_f32, plain_sum_f32, (x: &[f32]), [-> f32], {
    let mut sum = 0.0f32;
    for i in 0..x.len() {
        sum += x[i] * x[i];
    }
    sum
});
both!(sum_i64, plain_sum_i64, (x: &[i32]), [-> i64], {
    let mut sum: i64 = 0;
    for v in x.iter() {
        sum += *v as i64;
    }
    sum
});
both!(smallest, plain_smallest, (x: &[i32]), [-> i32], {
    let mut best: i32 = i32::MAX;
    for i in 0..x.len() {
        best = best.min(x[i]);
    }
    best
});
both!(largest, plain_largest, (x: &[f32]), [-> f32], {
    let mut best: f32 = -1.0e30;
    for i in 0..x.len() {
        if x[i] > best {
            best = x[i];
        }
    }
    best
});
both!(bits, plain_bits, (x: &[u32]), [-> (u32, u32, u32)], {
    let mut all = u32::MAX;
    let mut any = 0u32;
    let mut odd = 0u32;
    for i in 0..x.len() {
        all &= x[i] | 1;
        any |= x[i];
        odd ^= x[i];
    }
    (all, any, odd)
});
both!(counted, plain_counted, (x: &[i32], limit: i32), [-> usize], {
    let mut count: usize = 0;
    for i in 0..x.len() {
        if x[i] > limit {
            count += 1;
        }
    }
    count
});
both!(pushed, plain_pushed, (x: &[i32]), [-> Vec<i32>], {
    let mut found = Vec::new();
    for i in 0..x.len() {
        if x[i] % 7 == 3 {
            found.push(x[i] * 2);
        }
    }
    found
});
both!(product, plain_product, (x: &[f32]), [-> f32], {
    let mut product = 1.0f32;
    for i in 0..x.len() {
        product *= 1.0 + x[i] * 1.0e-4;
    }
    product
});
both!(rgb, plain_rgb, (grey: &[u32], out: &mut [u32]), [], {
    for i in 0..grey.len() {
        out[3 * i] = grey[i];
        out[3 * i + 1] = grey[i] / 2;
        out[3 * i + 2] = 255 - grey[i] % 256;
    }
});
both!(rows_of_image, plain_rows_of_image, (width: usize, height: usize, image: &[u32], out: &mut [u32]), [], {
    for y in 0..height {
        for x in 0..width {
            let left = if x > 0 { image[y * width + x - 1] } else { 0 };
            out[y * width + x] = image[y * width + x].wrapping_sub(left);
        }
    }
});
both!(matched, plain_matched, (x: &[i32], out: &mut [i32]), [], {
    for i in 0..x.len() {
        out[i] = match x[i] % 5 {
            0 => 10,
            1 | 2 => x[i] * 2,
            3..=4 => -x[i],
            other => other,
        };
    }
});
both!(casts, plain_casts, (x: &[f32], out: &mut [i32], wide: &mut [u64]), [], {
    for i in 0..x.len() {
        out[i] = (x[i] * 1.0e9) as i32;
        wide[i] = (x[i] as i64 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
    }
});
both!(saturating, plain_saturating, (x: &[i32], y: &[i32], out: &mut [i32]), [], {
    for i in 0..x.len() {
        let a = x[i].wrapping_mul(100_003);
        let b = y[i].wrapping_mul(200_003);
        out[i] = a.saturating_add(b) ^ a.saturating_sub(b) ^ a.saturating_mul(b) ^ a.rotate_left(5) ^ (a >> 3);
    }
});
both!(two_loops, plain_two_loops, (x: &[i32], a: &mut [i32], b: &mut [i32]), [], {
    for i in 0..x.len() {
        a[i] = x[i] + 1;
    }
    for i in 0..x.len() {
        b[i] = a[i] * 2;
    }
});
both!(steps, plain_steps, (count: usize, now: &mut Vec<f32>, next: &mut Vec<f32>), [], {
    for _ in 0..count {
        for i in 1..now.len() - 1 {
            next[i] = 0.5 * now[i] + 0.25 * (now[i - 1] + now[i + 1]);
        }
        std::mem::swap(now, next);
    }
});
both!(collatz, plain_collatz, (x: &[u32], out: &mut [u32]), [], {
    for i in 0..x.len() {
        let mut n = x[i] as u64;
        let mut steps = 0;
        while n > 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
            if steps > 500 {
                break;
            }
        }
        out[i] = steps;
    }
});
both!(local_array, plain_local_array, (x: &[i32], out: &mut [i32]), [], {
    for i in 0..x.len() {
        let mut digits = [0; 8];
        let mut rest = x[i].abs();
        for d in 0..8 {
            digits[d] = rest % 10;
            rest /= 10;
        }
        let mut sum = 0;
        for d in 0..8 {
            sum += digits[7 - d] * (d as i32 + 1);
        }
        out[i] = sum;
    }
});
both!(waves, plain_waves, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].sin() + (2.0 * x[i]).cos();
    }
});
both!(gather, plain_gather, (at: &[u32], x: &[f32], out: &mut [f32]), [], {
    for i in 0..at.len() {
        out[i] = x[at[i] as usize];
    }
});
both!(divide, plain_divide, (x: &[i32], y: &[i32], out: &mut [i32]), [], {
    for i in 0..x.len() {
        out[i] = x[i] / y[i] + x[i] % y[i];
    }
});
both!(overflow, plain_overflow, (x: &[i32], out: &mut [i32]), [], {
    for i in 0..x.len() {
        out[i] = x[i] * 1_000;
    }
});

both!(exp_of, plain_exp_of, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].exp();
    }
});
both!(ln_of, plain_ln_of, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].ln();
    }
});
both!(sin_of, plain_sin_of, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].sin();
    }
});
both!(cos_of, plain_cos_of, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].cos();
    }
});
both!(sqrt_of, plain_sqrt_of, (x: &[f32], out: &mut [f32]), [], {
    for i in 0..x.len() {
        out[i] = x[i].sqrt();
    }
});

#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Star {
    position: [f32; 3],
    mass: f32,
    visits: u32,
}

#[parallel::function]
fn heavier(star: Star, by: f32) -> Star {
    Star { position: star.position, mass: star.mass + by, visits: star.visits + 1 }
}

both!(stars, plain_stars, (dt: f32, stars: &mut [Star]), [], {
    for i in 0..stars.len() {
        stars[i].position[1] -= dt;
        stars[i].mass *= 0.5;
        let next = heavier(stars[i], 2.0);
        stars[i] = next;
    }
});
both!(total, plain_total, (x: &[f32], sum: &mut f32), [], {
    for i in 0..x.len() {
        *sum += x[i];
    }
});
both!(inclusive, plain_inclusive, (out: &mut [i32]), [], {
    for i in 0..=99i32 {
        out[i as usize] = i * i;
    }
});
both!(shifted, plain_shifted, (x: &[f32], out: &mut [f32]), [], {
    for i in 1..x.len() {
        out[i - 1] = x[i] - 1.0;
    }
});
both!(doubles, plain_doubles, (x: &[f64], out: &mut [f64]), [], {
    for i in 0..x.len() {
        out[i] = x[i] * 2.5 + 1.0;
    }
});
both!(untyped, plain_untyped, (x: &[i64]), [-> i64], {
    let mut sum = 0;
    for i in 0..x.len() {
        sum += x[i];
    }
    sum
});

const COUNT: usize = 5_003;

fn ints() -> Vec<i32> {
    (0..COUNT as i32).map(|i| (i.wrapping_mul(7919)) % 2003 - 1001).collect()
}
fn floats() -> Vec<f32> {
    ints().iter().map(|i| *i as f32 / 64.0).collect()
}
fn words() -> Vec<u32> {
    ints().iter().map(|i| (*i as u32).wrapping_mul(2654435761)).collect()
}

/// Calls a function with no pool, as the plain loop, and then with a pool: the results must be equal.
fn same<T: PartialEq + Debug>(pool: &Pool, name: &str, call: impl Fn(Option<&Pool>) -> T) {
    let (plain, found) = (call(None), call(Some(pool)));
    assert!(
        plain == found,
        "{name} differs: plain {:.300?} found {:.300?}",
        format!("{plain:?}"),
        format!("{found:?}")
    );
}

/// Calls the function for devices if there is a pool, and checks where it ran.
macro_rules! call {
    ($pool:expr, $name:ident, $plain:ident, ($($argument:expr),*)) => {
        match $pool {
            None => $plain($($argument),*),
            Some(pool) => {
                let run = $name::on(pool).run($($argument),*);
                let wants = if pool.devices().iter().all(|device| device.describe().api == Api::Cpu) { "processor" } else { "devices" };
                assert!(!run.loops.is_empty());
                for report in &run.loops {
                    assert_eq!(report.place, wants, "{}: {report}", stringify!($name));
                }
                run.value
            }
        }
    };
}

fn bits_of(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn exact(pool: &Pool) {
    let (x, f, w) = (ints(), floats(), words());
    let zeros = || vec![0.0f32; COUNT];
    same(pool, "saxpy", |p| {
        let mut y = f.clone();
        call!(p, saxpy, plain_saxpy, (2.5, &f, &mut y));
        bits_of(&y)
    });
    same(pool, "scale", |p| {
        let mut y = zeros();
        call!(p, scale, plain_scale, (&f, &mut y));
        bits_of(&y)
    });
    same(pool, "stencil", |p| {
        let mut y = f.clone();
        call!(p, stencil, plain_stencil, (&f, &mut y));
        bits_of(&y)
    });
    same(pool, "zipped", |p| {
        let mut y = zeros();
        call!(p, zipped, plain_zipped, (&f, &f[..4000], &mut y));
        bits_of(&y)
    });
    same(pool, "enumerated", |p| {
        let mut y = vec![0; COUNT];
        call!(p, enumerated, plain_enumerated, (&mut y));
        y
    });
    same(pool, "collected", |p| call!(p, collected, plain_collected, (&x)));
    same(pool, "mandelbrot", |p| {
        let mut y = vec![0; 64 * 48];
        call!(p, mandelbrot, plain_mandelbrot, (64, 48, &mut y));
        y
    });
    same(pool, "forces", |p| {
        let (mut fx, mut fy) = (vec![0.0; 300], vec![0.0; 300]);
        call!(p, forces, plain_forces, (&f[..300], &f[300..600], &mut fx, &mut fy));
        (bits_of(&fx), bits_of(&fy))
    });
    same(pool, "matrix", |p| {
        let mut c = vec![0; 900];
        call!(p, matrix, plain_matrix, (30, &x, &x[900..], &mut c));
        c
    });
    same(pool, "particles", |p| {
        let (mut a, mut b, mut c, mut d) = (f.clone(), f.clone(), f.clone(), f.clone());
        call!(p, particles, plain_particles, (0.01, &mut a, &mut b, &mut c, &mut d));
        [a, b, c, d].map(|x| bits_of(&x))
    });
    same(pool, "sum_f32", |p| call!(p, sum_f32, plain_sum_f32, (&f)).to_bits());
    same(pool, "sum_i64", |p| call!(p, sum_i64, plain_sum_i64, (&x)));
    same(pool, "smallest", |p| call!(p, smallest, plain_smallest, (&x)));
    same(pool, "largest", |p| call!(p, largest, plain_largest, (&f)).to_bits());
    same(pool, "bits", |p| call!(p, bits, plain_bits, (&w)));
    same(pool, "counted", |p| call!(p, counted, plain_counted, (&x, 17)));
    same(pool, "pushed", |p| call!(p, pushed, plain_pushed, (&x)));
    same(pool, "product", |p| call!(p, product, plain_product, (&f)).to_bits());
    same(pool, "rgb", |p| {
        let mut y = vec![0; 3 * COUNT];
        call!(p, rgb, plain_rgb, (&w, &mut y));
        y
    });
    same(pool, "rows_of_image", |p| {
        let mut y = vec![0; 4800];
        call!(p, rows_of_image, plain_rows_of_image, (80, 60, &w, &mut y));
        y
    });
    same(pool, "matched", |p| {
        let mut y = vec![0; COUNT];
        call!(p, matched, plain_matched, (&x, &mut y));
        y
    });
    same(pool, "casts", |p| {
        let (mut y, mut z) = (vec![0; COUNT], vec![0; COUNT]);
        call!(p, casts, plain_casts, (&f, &mut y, &mut z));
        (y, z)
    });
    same(pool, "saturating", |p| {
        let mut y = vec![0; COUNT];
        call!(
            p,
            saturating,
            plain_saturating,
            (&x, &x[1..].iter().chain(&x[..1]).copied().collect::<Vec<_>>(), &mut y)
        );
        y
    });
    same(pool, "two_loops", |p| {
        let (mut a, mut b) = (vec![0; COUNT], vec![0; COUNT]);
        call!(p, two_loops, plain_two_loops, (&x, &mut a, &mut b));
        (a, b)
    });
    same(pool, "steps", |p| {
        let (mut a, mut b) = (f.clone(), f.clone());
        call!(p, steps, plain_steps, (3, &mut a, &mut b));
        (bits_of(&a), bits_of(&b))
    });
    same(pool, "collatz", |p| {
        let s: Vec<u32> = (1..2000).collect();
        let mut y = vec![0; s.len()];
        call!(p, collatz, plain_collatz, (&s, &mut y));
        y
    });
    same(pool, "local_array", |p| {
        let mut y = vec![0; COUNT];
        call!(p, local_array, plain_local_array, (&x, &mut y));
        y
    });
    same(pool, "stars", |p| {
        let star = |i: usize| Star { position: [i as f32, 1.0, 2.0], mass: i as f32, visits: i as u32 };
        let mut all: Vec<Star> = (0..1000).map(star).collect();
        call!(p, stars, plain_stars, (0.1, &mut all));
        all
    });
    same(pool, "total", |p| {
        let mut sum = 1.0;
        call!(p, total, plain_total, (&f, &mut sum));
        sum.to_bits()
    });
    same(pool, "inclusive", |p| {
        let mut y = vec![0; 100];
        call!(p, inclusive, plain_inclusive, (&mut y));
        y
    });
    same(pool, "shifted", |p| {
        let mut y = zeros();
        call!(p, shifted, plain_shifted, (&f, &mut y));
        bits_of(&y)
    });
    same(pool, "doubles", |p| {
        let d: Vec<f64> = f.iter().map(|f| *f as f64 / 3.0).collect();
        let mut y = vec![0.0; COUNT];
        call!(p, doubles, plain_doubles, (&d, &mut y));
        y
    });
    same(pool, "untyped", |p| {
        let d: Vec<i64> = x.iter().map(|x| *x as i64 * 1_000_000_007).collect();
        call!(p, untyped, plain_untyped, (&d))
    });
    same(pool, "gather", |p| {
        let at: Vec<u32> = w.iter().map(|w| w % COUNT as u32).collect();
        let mut y = zeros();
        call!(p, gather, plain_gather, (&at, &f, &mut y));
        bits_of(&y)
    });
}

fn close(pool: &Pool) {
    let n = 4000;
    let spot: Vec<f32> = (0..n).map(|i| 80.0 + (i % 41) as f32).collect();
    let strike: Vec<f32> = (0..n).map(|i| 90.0 + (i % 23) as f32).collect();
    let (mut a, mut b) = (vec![0.0; n], vec![0.0; n]);
    plain_black_scholes(&spot, &strike, 1.5, &mut a);
    let _ = black_scholes::on(pool).run(&spot, &strike, 1.5, &mut b);
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 2e-5 * a.abs().max(1.0)), "black_scholes");
    let x: Vec<f32> = (0..n).map(|i| (i as f32 - 2000.0) * 0.37).collect();
    plain_waves(&x, &mut a);
    let _ = waves::on(pool).run(&x, &mut b);
    // Two functions of up to 2 units each, and their sum may cancel.
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 6e-7), "waves");
}

/// Maths functions differ from the exact result by at most 2 units in the last place.
fn maths(pool: &Pool) {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 40) as f32 / (1u64 << 24) as f32
    };
    let count = 200_000;
    let wide: Vec<f32> =
        (0..count).map(|i| (random() - 0.5) * [1.0f32, 10.0, 170.0, 8000.0][i % 4]).collect();
    let positive: Vec<f32> =
        (0..count).map(|i| random() * [1.0e-30f32, 1.0, 2.0, 1.0e30][i % 4] + 1.0e-35).collect();
    let mut out = vec![0.0; count];
    let mut check = |name: &str, x: &[f32], run: &dyn Fn(&mut [f32]), exact: fn(f64) -> f64| {
        run(&mut out);
        let mut worst = (0.0, 0.0);
        for (x, found) in x.iter().zip(&out) {
            let exact = exact(f64::from(*x));
            // Results below the normal numbers may become zero on devices.
            if exact.abs() < f64::from(f32::MIN_POSITIVE) || exact.abs() > f64::from(f32::MAX) {
                continue;
            }
            let bits = (exact.abs() as f32).to_bits();
            let unit = f64::from(f32::from_bits(bits + 1)) - f64::from(f32::from_bits(bits));
            let error = (f64::from(*found) - exact).abs() / unit;
            if !(error <= worst.0) {
                worst = (error, *x);
            }
        }
        println!("{name}: at most {:.2} units in the last place, at {}", worst.0, worst.1);
        assert!(worst.0 <= 2.0, "{name}({}) is {} units off", worst.1, worst.0);
    };
    check("exp", &wide, &|out| drop(exp_of::on(pool).run(&wide, out)), f64::exp);
    check("ln", &positive, &|out| drop(ln_of::on(pool).run(&positive, out)), f64::ln);
    check("sqrt", &positive, &|out| drop(sqrt_of::on(pool).run(&positive, out)), f64::sqrt);
    check("sin", &wide, &|out| drop(sin_of::on(pool).run(&wide, out)), f64::sin);
    check("cos", &wide, &|out| drop(cos_of::on(pool).run(&wide, out)), f64::cos);
}

/// The message of a panic.
fn panic_of(call: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("it panics");
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()))
        .unwrap_or_default()
}

fn panics(pool: &Pool) {
    let x = ints();
    let mut at: Vec<u32> = (0..COUNT as u32).collect();
    (at[3000], at[4000]) = (70_000, 80_000);
    let f = floats();
    let mut out = vec![0.0; COUNT];
    assert_eq!(
        panic_of(|| plain_gather(&at, &f, &mut out.clone())),
        panic_of(|| drop(gather::on(pool).run(&at, &f, &mut out)))
    );
    let mut out = vec![0; COUNT];
    let mut y = vec![3; COUNT];
    y[4001] = 0;
    assert_eq!(
        panic_of(|| plain_divide(&x, &y, &mut out.clone())),
        panic_of(|| drop(divide::on(pool).run(&x, &y, &mut out)))
    );
    let (mut x, mut y) = (x, vec![1; COUNT]);
    (x[77], y[77]) = (i32::MIN, -1);
    assert_eq!(
        panic_of(|| plain_divide(&x, &y, &mut out.clone())),
        panic_of(|| drop(divide::on(pool).run(&x, &y, &mut out)))
    );
    assert_eq!(
        panic_of(|| plain_overflow(&x, &mut out.clone())),
        panic_of(|| drop(overflow::on(pool).run(&x, &mut out)))
    );
    let mut short = vec![0; COUNT - 5];
    assert_eq!(
        panic_of(|| plain_overflow(&x[100..], &mut short.clone()[..COUNT - 200])),
        panic_of(|| drop(overflow::on(pool).run(&x[100..], &mut short[..COUNT - 200])))
    );
}

fn vulkan() -> Vec<Device> {
    let found: Vec<Device> = Inventory::discover().select("all").unwrap_or_default();
    found.into_iter().filter(|device| device.describe().api == Api::Vulkan).collect()
}

#[test]
fn the_processor_gives_what_the_plain_loops_give() {
    let pool = Pool::new([Device::cpu()]).unwrap();
    exact(&pool);
    close(&pool);
    panics(&pool);
}

#[test]
fn a_plain_call_gives_what_the_plain_loop_gives() {
    let f = floats();
    for count in [0, 1, 10, 1000, COUNT] {
        for _ in 0..20 {
            let (mut a, mut b) = (f[..count].to_vec(), f[..count].to_vec());
            saxpy(0.5, &f[..count], &mut a);
            plain_saxpy(0.5, &f[..count], &mut b);
            assert_eq!(a, b);
        }
    }
}

mod with_vulkan {
    use super::*;

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn vulkan_gives_what_the_plain_loops_give() {
        let pool = Pool::new(&vulkan()[..1]).unwrap();
        exact(&pool);
        close(&pool);
        maths(&pool);
        panics(&pool);
    }

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn both_together_give_what_the_plain_loops_give() {
        let pool = Pool::new(vulkan().into_iter().take(1).chain([Device::cpu()])).unwrap();
        exact(&pool);
        close(&pool);
        panics(&pool);
    }
}

/// The loops of this file as a plain file: what is in `both!` as functions, and the items around them.
fn plain_file() -> String {
    use quote::ToTokens;
    let file = syn::parse_file(include_str!("gallery.rs")).unwrap();
    let mut text = String::new();
    for item in &file.items {
        match item {
            syn::Item::Macro(call) if call.mac.path.is_ident("both") => {
                let parts: Vec<String> =
                    call.mac.tokens.clone().into_iter().map(|token| token.to_string()).collect();
                // name, plain, (arguments), [value], { body }
                let value = parts[6].trim_start_matches('[').trim_end_matches(']');
                text.push_str(&format!("fn {}{} {value} {}\n", parts[0], parts[4], parts[8]));
            }
            syn::Item::Const(_) | syn::Item::Struct(_) => {
                text.push_str(&format!("{}\n", item.to_token_stream()))
            }
            syn::Item::Fn(function) if !function.attrs.is_empty() => {
                text.push_str(&format!("{}\n", item.to_token_stream()))
            }
            _ => {}
        }
    }
    text
}

mod with_nvrtc {
    use evener_loops::{emit::Language, explain::explain};

    #[test]
    #[ignore = "needs NVRTC"]
    fn every_loop_of_the_gallery_compiles_as_cuda() {
        let mut compiled = 0;
        for found in explain(&super::plain_file()).unwrap() {
            let Some((_, source)) = found.sources.iter().find(|(language, _)| *language == Language::Cuda)
            else {
                continue;
            };
            let binary = evener_device::cuda::compile_for("sm_90", &found.function, &source.text);
            assert!(binary.is_ok(), "{}: {:?}\n{}", found.function, binary.err(), source.text);
            compiled += 1;
        }
        assert!(compiled >= 35, "{compiled} loops were compiled");
    }
}

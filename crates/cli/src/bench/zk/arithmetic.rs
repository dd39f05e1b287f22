//! Products, multi-scalar multiplications and transforms.

use std::{hint::black_box, time::Duration};

use anyhow::{Context, Result, bail};
use ark_bn254::Fr;
use ark_ff::{AdditiveGroup, Field};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{Device, DeviceKind, Direction, SharedBuffer, Stream, load_rates, measure};
use evener_zk::{
    curve::Group,
    field::{Emitter, Limbs},
    msm::{MsmBases, MsmGroup, MsmWorkspace},
    ntt::{Ntt, Root, Scale},
};
use rayon::prelude::*;

use super::{
    Bench,
    section::{Row, Section},
    timing::{median_of, timed},
};
use crate::{options::is_gpu, output::format_time};

/// 32-bit multiplies in a product: two rows of eight words for each word, with both halves of each result.
const MULTIPLIES_PER_PRODUCT: f64 = 2.0 * 2.0 * 64.0 + 8.0;

/// Products that each thread of the host computes in a round.
const PRODUCTS_PER_THREAD: u64 = 2_000_000;

/// Transforms that are queued in a row, so that they share the wait for the last one.
const TRANSFORMS_IN_A_ROW: u32 = 4;

impl Bench<'_> {
    /// Measures products in the scalar field, with every generator of field arithmetic.
    pub(super) fn field(&mut self) -> Result<()> {
        let mut section = Section::new("field_products", None, "Products in the scalar field".into());
        for device in self.devices.iter().filter(|device| is_gpu(device)) {
            self.progress.step(format!("products on {}", device.id()));
            section.add(device, self.field_on(device));
        }
        self.progress.step("products on all cores");
        let threads = rayon::current_num_threads() as u64;
        let multiply = |thread: u64| {
            let (mut product, factor) = (Fr::from(thread + 3), Fr::from(thread + 5).pow([1 << 40]));
            (0..PRODUCTS_PER_THREAD).for_each(|_| product *= factor);
            product
        };
        let took = median_of(self.rounds(), || {
            let (sum, took) = timed(|| (0..threads).into_par_iter().map(multiply).sum::<Fr>());
            black_box(sum);
            Ok(took)
        })?;
        let mut row = Row::of_peer("arkworks");
        row.per_s = Some((threads * PRODUCTS_PER_THREAD) as f64 / took.as_secs_f64());
        section.rows.push(row);
        self.add(section)
    }

    fn field_on(&self, device: &Device) -> Result<Vec<Row>> {
        let rates = load_rates(device).map_or_else(|| measure(device), Ok)?;
        let chosen = Emitter::for_device(device)?;
        let row = |&emitter: &Emitter| {
            let per_giga = median_of(self.rounds(), || {
                Ok(Duration::from_secs_f64(1e9 / emitter.products_per_s(device)?))
            })?;
            let per_s = 1e9 / per_giga.as_secs_f64();
            let mut row = Row::of(device);
            row.by = format!("{} {emitter:?}", row.by);
            match emitter == chosen {
                true => row.by += ", used",
                false => row = row.not_compared(),
            }
            row.per_s = Some(per_s);
            row.ceiling_share = share(device, per_s * MULTIPLIES_PER_PRODUCT / rates.int32_multiplies_per_s);
            Ok(row)
        };
        Emitter::candidates(device)?.iter().map(row).collect()
    }

    /// Measures multi-scalar multiplications in a group. The scalars are copied to the device in the measured time.
    pub(super) fn msm<P: MsmGroup>(&mut self, name: &'static str, group: &str) -> Result<()> {
        let log = self.sizes.msm;
        let title = format!("{group} MSM of 2^{log} points, with the copy of the scalars");
        let mut section = Section::new(name, Some(log), title);
        self.progress.step(format!("points for {group} MSM"));
        let (points, scalars) = (points::<P>(1 << log)?, random(1 << log));
        self.progress.step(format!("{group} MSM on all cores"));
        let expected = P::msm_on_host(&points, &scalars);
        let host = median_of(self.rounds(), || {
            let (sum, took) = timed(|| P::msm_on_host(&points, &scalars));
            black_box(sum);
            Ok(took)
        })?;
        for device in self.devices.iter().filter(|device| is_gpu(device)) {
            self.progress.step(format!("{group} MSM on {}", device.id()));
            let measured = self.msm_on(device, &points, &scalars, &expected, &mut section.notes);
            section.add(device, measured.map(|row| vec![row]));
        }
        section.rows.push(Row::of_peer("arkworks").median(host));
        self.add(section)
    }

    fn msm_on<P: MsmGroup>(
        &self,
        device: &Device,
        points: &[P::Affine],
        scalars: &[Fr],
        expected: &P,
        notes: &mut Vec<String>,
    ) -> Result<Row> {
        let products = Emitter::for_device(device)?.products_per_s(device)?;
        let (bases, loading) = timed(|| MsmBases::<P>::upload(device, points));
        let bases = bases?;
        let took = self.time_msm(&bases, scalars, expected, "random")?;
        let (bits, windows, has_tables) = bases.windows().context("no points")?;
        let least = points.len() as f64 * f64::from(windows) * products_per_addition(P::GROUP) / products;
        let mut row = Row::of(device).median(took);
        row.ceiling_share = share(device, least / took.as_secs_f64());
        let (id, loading) = (device.id(), format_time(loading.as_secs_f64()));
        let tables = if has_tables { " from tables" } else { "" };
        notes.push(format!(
            "{id}: {windows} windows of {bits} bits{tables}; loading the points took {loading}"
        ));
        let mut slowest = (0.0, "");
        for (what, scalars) in skewed(scalars) {
            let expected = P::msm_on_host(points, &scalars);
            let skewed = self.time_msm(&bases, &scalars, &expected, what)?;
            let ratio = skewed.as_secs_f64() / took.as_secs_f64();
            if ratio > slowest.0 {
                slowest = (ratio, what);
            }
        }
        let (ratio, what) = slowest;
        notes.push(format!("{id}: skewed scalars take at most {ratio:.2} times as long ({what})"));
        Ok(row)
    }

    fn time_msm<P: MsmGroup>(
        &self,
        bases: &MsmBases<P>,
        scalars: &[Fr],
        expected: &P,
        what: &str,
    ) -> Result<Duration> {
        let shared = pinned(bases.device(), scalars)?;
        let mut workspace = MsmWorkspace::new(bases.device())?;
        let mut run = || -> Result<P> { Ok(bases.queue_shared(&mut workspace, &shared)?.wait()?) };
        let check = |found: P| match found == *expected {
            true => Ok(()),
            false => bail!("the sum with {what} scalars differs from arkworks'"),
        };
        check(run()?)?;
        median_of(self.rounds(), || {
            let (found, took) = timed(&mut run);
            check(found?)?;
            Ok(took)
        })
    }

    /// Measures transforms of elements that are on the device.
    pub(super) fn ntt(&mut self) -> Result<()> {
        let log = self.sizes.ntt;
        let len = 1usize << log;
        let mut section = Section::new("ntt", Some(log), format!("NTT of 2^{log} elements on the device"));
        let elements: Vec<Fr> =
            (0..len as u64).into_par_iter().map(|index| -Fr::from(index * index + 1)).collect();
        let domain = Radix2EvaluationDomain::<Fr>::new(len).context("the domain is too large")?;
        self.progress.step("NTT on all cores");
        let expected = domain.fft(&elements);
        let mut values = elements.clone();
        let host = median_of(self.rounds(), || Ok(timed(|| domain.fft_in_place(&mut values)).1))?;
        drop(values);
        let limbs: Vec<Limbs> = elements.par_iter().map(|element| Limbs::from(*element)).collect();
        for device in self.devices.iter().filter(|device| is_gpu(device)) {
            self.progress.step(format!("NTT on {}", device.id()));
            section.add(device, self.ntt_on(device, log, &limbs, &expected));
        }
        section.rows.push(Row::of_peer("arkworks").median(host));
        self.add(section)
    }

    fn ntt_on(&self, device: &Device, log: u32, elements: &[Limbs], expected: &[Fr]) -> Result<Vec<Row>> {
        let ntt = Ntt::new(device, log)?;
        let (mut stream, data) = (device.stream()?, device.buffer_from(elements)?);
        ntt.ntt(&mut stream, &data)?;
        let found = stream.download(&data)?.wait()?;
        if found.par_iter().zip(expected).any(|(found, expected)| *found != Limbs::from(*expected)) {
            bail!("the transform differs from arkworks'");
        }
        type Transform<'a> = &'a dyn Fn(&mut Stream) -> evener_device::Result<()>;
        let orders: [(&'static str, Transform<'_>); 2] = [
            ("natural order", &|stream| ntt.ntt(stream, &data)),
            ("bit-reversed output", &|stream| ntt.to_bit_reversed(stream, &data, Root::Forward, Scale::None)),
        ];
        let least = (elements.len() / 2) as f64 * f64::from(log)
            / Emitter::for_device(device)?.products_per_s(device)?;
        let mut rows = Vec::new();
        for (order, transform) in orders {
            let took = median_of(self.rounds(), || {
                stream.wait()?;
                let (result, took) = timed(|| -> Result<()> {
                    for _ in 0..TRANSFORMS_IN_A_ROW {
                        transform(&mut stream)?;
                    }
                    Ok(stream.wait()?)
                });
                result.map(|()| took / TRANSFORMS_IN_A_ROW)
            })?;
            let mut row = Row::of(device).median(took).variant(order);
            row.ceiling_share = share(device, least / took.as_secs_f64());
            rows.push(row);
        }
        Ok(rows)
    }
}

/// Returns the share of a ceiling. Software devices have none: they multiply 64-bit words, as the host does.
fn share(device: &Device, share: f64) -> Option<f64> {
    (device.describe().kind != DeviceKind::Software).then_some(share)
}

/// Products of the addition of an affine point in XYZZ coordinates: ten, in the second group of three each, where two are
/// squares of two each.
fn products_per_addition(group: Group) -> f64 {
    match group {
        Group::G1 => 10.0,
        Group::G2 => 28.0,
    }
}

/// Returns different points: multiples of the generator in arithmetic progression.
fn points<P: MsmGroup>(count: usize) -> Result<Vec<P::Affine>> {
    const BLOCK: usize = 1024;
    let step = P::generator() * Fr::from(7).inverse().context("7 has no inverse")?;
    let block = |first: usize| {
        let start = P::generator() + step * Fr::from(first as u64);
        let all: Vec<P> = std::iter::successors(Some(start), |last| Some(*last + step))
            .take(BLOCK.min(count - first))
            .collect();
        P::normalize_batch(&all)
    };
    Ok((0..count).into_par_iter().step_by(BLOCK).flat_map_iter(block).collect())
}

/// Returns scalars that fill all bits.
fn random(count: usize) -> Vec<Fr> {
    let at = |index: usize| Fr::from(index as u64 + 3).pow([0x9E37_79B9_7F4A_7C15, index as u64, 77]);
    (0..count).into_par_iter().map(at).collect()
}

/// Returns scalars that are distributed unevenly, as those of real circuits.
fn skewed(random: &[Fr]) -> Vec<(&'static str, Vec<Fr>)> {
    let count = random.len();
    let (any, half) = (random[count / 2], count / 2);
    let map = |value: &dyn Fn(usize, Fr) -> Fr| {
        random.iter().enumerate().map(|(index, scalar)| value(index, *scalar)).collect()
    };
    vec![
        ("zeros", vec![Fr::ZERO; count]),
        ("ones", vec![Fr::ONE; count]),
        ("all equal", vec![any; count]),
        ("r − 1", vec![-Fr::ONE; count]),
        ("90 % zero", map(&|index, scalar| if index % 10 == 0 { scalar } else { Fr::ZERO })),
        ("half bits", map(&|index, scalar| if index < half { scalar } else { Fr::from(index as u64 % 2) })),
        ("one bucket", vec![Fr::from(3); count]),
        ("two values", map(&|index, _| if index % 2 == 0 { any } else { -any })),
    ]
}

/// Copies scalars to memory from which the device copies at the full rate of the bus.
fn pinned(device: &Device, scalars: &[Fr]) -> Result<SharedBuffer<Limbs>> {
    let mut host = device.host_buffer::<Limbs>(scalars.len(), Direction::Upload)?;
    host.as_mut_slice().par_iter_mut().zip(scalars).for_each(|(to, from)| *to = (*from).into());
    Ok(host.share())
}

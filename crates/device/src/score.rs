//! Static scores: a device's estimated speed from its description alone, for use before its rates are measured.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    describe::{Api, Description, DeviceKind},
    error::{Error, Result, SharedError},
};

const GIB: f64 = (1u64 << 30) as f64;

/// A device's static score, from 0 to 100 with the default table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The weighted mean of the known points.
    pub points: f64,
    /// Whether a weighted property is unknown, so that the score rests on the others.
    pub estimate: bool,
}

/// The weights and points of the static score. In a JSON file, values that are left out keep their defaults.
///
/// ```
/// # use evener_device::ScoreTable;
/// let table = ScoreTable::from_json(r#"{ "weights": { "memory": 0.6 } }"#)?;
/// assert_eq!(table.weights.kind, 0.4);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreTable {
    /// The weight of each property.
    pub weights: Weights,
    /// Points for the kind of hardware.
    pub kind: KindPoints,
    /// Points for the API.
    pub api: ApiPoints,
    /// Points for the memory and the compute units.
    pub size: SizePoints,
}

/// The weight of each property. Only the proportions matter: they need not add up to one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// The kind of hardware.
    pub kind: f64,
    /// The API.
    pub api: f64,
    /// The memory.
    pub memory: f64,
    /// The compute units.
    pub units: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { kind: 0.4, api: 0.2, memory: 0.2, units: 0.2 }
    }
}

/// Points for the kind of hardware.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct KindPoints {
    pub discrete: f64,
    pub integrated: f64,
    pub r#virtual: f64,
    pub software: f64,
    pub cpu: f64,
}

impl Default for KindPoints {
    fn default() -> Self {
        KindPoints { discrete: 100.0, integrated: 50.0, r#virtual: 30.0, software: 10.0, cpu: 10.0 }
    }
}

/// Points for the API.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ApiPoints {
    pub cuda: f64,
    pub dx12: f64,
    pub vulkan: f64,
    pub metal: f64,
    /// Any other: OpenGL, and the processor's own threads.
    pub other: f64,
}

impl Default for ApiPoints {
    fn default() -> Self {
        ApiPoints { cuda: 100.0, dx12: 100.0, vulkan: 90.0, metal: 85.0, other: 50.0 }
    }
}

/// Points for the memory and the compute units, which are proportional to them up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizePoints {
    /// Points per GiB of memory.
    pub per_gib: f64,
    /// Number of compute units per point.
    pub units_per_point: f64,
    /// Maximum points of each.
    #[serde(alias = "most")]
    pub max: f64,
}

impl Default for SizePoints {
    fn default() -> Self {
        SizePoints { per_gib: 10.0, units_per_point: 20.0, max: 100.0 }
    }
}

impl ScoreTable {
    /// Reads a table from JSON. Fails with a message if the text is not JSON, has an unknown name, or has numbers that
    /// make no score.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let table: ScoreTable = serde_json::from_str(text).map_err(|why| why.to_string())?;
        table.check()?;
        Ok(table)
    }

    /// Reads a table from a JSON file. Fails if the file cannot be read or is not a score table.
    pub fn from_file(path: &Path) -> Result<Self> {
        let fail = |detail, source| Error::File { path: path.display().to_string(), detail, source };
        let text = std::fs::read_to_string(path)
            .map_err(|why| fail(why.to_string(), Some(SharedError::new(why))))?;
        ScoreTable::from_json(&text).map_err(|why| fail(format!("not a score table: {why}"), None))
    }

    /// Returns a device's score. Unknown properties are left out, and the score is then an estimate; it is 0 if no
    /// weighted property is known.
    pub fn score(&self, device: &Description) -> Score {
        let Weights { kind, api, memory, units } = self.weights;
        let capped = |points: f64| points.min(self.size.max);
        let parts = [
            (kind, Some(self.kind_points(device.kind))),
            (api, Some(self.api_points(device.api))),
            (memory, device.memory_bytes.map(|bytes| capped(bytes as f64 / GIB * self.size.per_gib))),
            (units, device.compute_units.map(|count| capped(f64::from(count) / self.size.units_per_point))),
        ];
        let (mut sum, mut weight_known, mut estimate) = (0.0, 0.0, false);
        for (weight, points) in parts {
            match points {
                Some(points) => {
                    sum += weight * points;
                    weight_known += weight;
                }
                None => estimate |= weight > 0.0,
            }
        }
        Score { points: if weight_known > 0.0 { sum / weight_known } else { 0.0 }, estimate }
    }

    fn kind_points(&self, kind: DeviceKind) -> f64 {
        match kind {
            DeviceKind::Discrete => self.kind.discrete,
            DeviceKind::Integrated => self.kind.integrated,
            DeviceKind::Virtual => self.kind.r#virtual,
            DeviceKind::Software => self.kind.software,
            DeviceKind::Cpu => self.kind.cpu,
        }
    }

    fn api_points(&self, api: Api) -> f64 {
        match api {
            Api::Cuda => self.api.cuda,
            Api::Dx12 => self.api.dx12,
            Api::Vulkan => self.api.vulkan,
            Api::Metal => self.api.metal,
            Api::Gl | Api::Cpu => self.api.other,
        }
    }

    /// Checks that the numbers make a score: a device's share of work follows it, so it must be finite and not negative.
    fn check(&self) -> Result<(), String> {
        let Weights { kind, api, memory, units } = self.weights;
        let KindPoints { discrete, integrated, r#virtual, software, cpu } = self.kind;
        let ApiPoints { cuda, dx12, vulkan, metal, other } = self.api;
        let SizePoints { per_gib, units_per_point, max } = self.size;
        let numbers = [
            ("weights.kind", kind),
            ("weights.api", api),
            ("weights.memory", memory),
            ("weights.units", units),
            ("kind.discrete", discrete),
            ("kind.integrated", integrated),
            ("kind.virtual", r#virtual),
            ("kind.software", software),
            ("kind.cpu", cpu),
            ("api.cuda", cuda),
            ("api.dx12", dx12),
            ("api.vulkan", vulkan),
            ("api.metal", metal),
            ("api.other", other),
            ("size.per_gib", per_gib),
            ("size.units_per_point", units_per_point),
            ("size.max", max),
        ];
        if let Some((name, number)) = numbers.into_iter().find(|(_, n)| !n.is_finite() || *n < 0.0) {
            return Err(format!("{name} is {number}: it must be 0 or more"));
        }
        if units_per_point == 0.0 {
            return Err("size.units_per_point is 0: it must be above 0".into());
        }
        if kind + api + memory + units == 0.0 {
            return Err("every weight is 0: at least one must be above 0".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fake;

    fn device(kind: DeviceKind, api: Api, gib: Option<u64>, units: Option<u32>) -> Description {
        Description {
            kind,
            api,
            memory_bytes: gib.map(|gib| gib << 30),
            compute_units: units,
            ..fake::description("any:0")
        }
    }

    fn check(kind: DeviceKind, api: Api, gib: Option<u64>, units: Option<u32>, points: f64, estimate: bool) {
        let score = ScoreTable::default().score(&device(kind, api, gib, units));
        assert!((score.points - points).abs() < 1e-9, "{score:?}, not {points}");
        assert_eq!(score.estimate, estimate);
    }

    #[test]
    fn scores_are_those_worked_out_by_hand() {
        check(DeviceKind::Discrete, Api::Cuda, Some(139), Some(132), 40.0 + 20.0 + 20.0 + 0.2 * 6.6, false);
        check(DeviceKind::Discrete, Api::Dx12, Some(8), Some(2000), 40.0 + 20.0 + 16.0 + 20.0, false);
        check(DeviceKind::Discrete, Api::Vulkan, Some(10), Some(4000), 40.0 + 18.0 + 20.0 + 20.0, false);
        check(DeviceKind::Integrated, Api::Metal, Some(4), Some(40), 20.0 + 17.0 + 8.0 + 0.4, false);
        check(DeviceKind::Virtual, Api::Gl, Some(0), Some(20), 12.0 + 10.0 + 0.0 + 0.2, false);
        check(DeviceKind::Software, Api::Vulkan, Some(2), Some(2), 4.0 + 18.0 + 4.0 + 0.02, false);
        check(DeviceKind::Cpu, Api::Cpu, Some(16), Some(16), 4.0 + 10.0 + 20.0 + 0.16, false);
    }

    #[test]
    fn unknown_properties_are_left_out_and_the_score_is_an_estimate() {
        check(DeviceKind::Discrete, Api::Vulkan, Some(5), None, (40.0 + 18.0 + 10.0) / 0.8, true);
        check(DeviceKind::Discrete, Api::Vulkan, None, Some(100), (40.0 + 18.0 + 1.0) / 0.8, true);
        check(DeviceKind::Integrated, Api::Vulkan, None, None, (20.0 + 18.0) / 0.6, true);
    }

    #[test]
    fn a_table_can_be_replaced_in_part() {
        let table = ScoreTable::from_json(
            r#"{ "weights": { "kind": 0, "api": 0, "memory": 0, "units": 3 }, "size": { "units_per_point": 2 } }"#,
        )
        .unwrap();
        let score = table.score(&device(DeviceKind::Cpu, Api::Cpu, None, Some(50)));
        assert_eq!(score, Score { points: 25.0, estimate: false });
        let unknown = table.score(&device(DeviceKind::Cpu, Api::Cpu, None, None));
        assert_eq!(unknown, Score { points: 0.0, estimate: true });
    }

    #[test]
    fn a_table_survives_a_round_trip_through_json() {
        let text = serde_json::to_string(&ScoreTable::default()).unwrap();
        assert_eq!(ScoreTable::from_json(&text).unwrap(), ScoreTable::default());
    }

    #[test]
    fn a_table_that_makes_no_score_is_refused() {
        for (text, says) in [
            (r#"{ "wieghts": {} }"#, "wieghts"),
            (r#"{ "weights": { "kind": -1 } }"#, "weights.kind is -1"),
            (r#"{ "size": { "units_per_point": 0 } }"#, "units_per_point"),
            (r#"{ "weights": { "kind": 0, "api": 0, "memory": 0, "units": 0 } }"#, "every weight"),
            ("40", "expected struct"),
        ] {
            let why = ScoreTable::from_json(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        let why = ScoreTable::from_file(Path::new("/no/such/table.json")).unwrap_err().to_string();
        assert!(why.starts_with("/no/such/table.json: "), "{why}");
    }
}

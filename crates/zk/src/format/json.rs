//! The JSON of verification keys, proofs and public inputs, as snarkjs reads and writes it.
//!
//! Numbers are decimal strings. A point has three coordinates, the last of which is 1, or 0 for the point at infinity.

use ark_bn254::{Bn254, Fq, Fq2, Fr, G1Affine, G2Affine};
use ark_ec::AffineRepr;
use ark_ff::{BigInt, Field, One, PrimeField, Zero};
use ark_groth16::VerifyingKey as ArkVerifyingKey;
use serde_json::{Map, Value, json};

use super::numbers::NOT_REDUCED;
use crate::{
    error::{Error, Result},
    groth16::{Proof, VerifyingKey},
};

const PROTOCOL: &str = "groth16";
/// snarkjs' name of BN254.
const CURVE: &str = "bn128";

impl VerifyingKey {
    /// Reads snarkjs' `verification_key.json`. Errors call it `name`. Fails if gamma equals delta, unless `allow_unsafe`:
    /// anyone can forge proofs for such a key.
    pub fn from_json(name: &str, json: &[u8], allow_unsafe: bool) -> Result<VerifyingKey> {
        let object = Object::parse(name, json)?;
        object.check_kind()?;
        let points = object.list("IC")?;
        let ic: Result<Vec<G1Affine>> = points
            .iter()
            .enumerate()
            .map(|(index, point)| {
                g1(point).map_err(|flaw| object.error("IC", flaw.of(&format!("point {index}"))))
            })
            .collect();
        let ic = ic?;
        let public = object.get("nPublic")?.as_u64();
        if public.and_then(|public| public.checked_add(1)) != Some(ic.len() as u64) {
            let detail = format!("is {}, and there are {} points IC", object.get("nPublic")?, ic.len());
            return Err(object.error("nPublic", detail));
        }
        let key: ArkVerifyingKey<Bn254> = ArkVerifyingKey {
            alpha_g1: object.g1("vk_alpha_1")?,
            beta_g2: object.g2("vk_beta_2")?,
            gamma_g2: object.g2("vk_gamma_2")?,
            delta_g2: object.g2("vk_delta_2")?,
            gamma_abc_g1: ic,
        };
        // With such a gamma, a proof would be valid for all public inputs.
        let infinite = [
            ("vk_alpha_1", key.alpha_g1.is_zero()),
            ("vk_beta_2", key.beta_g2.is_zero()),
            ("vk_gamma_2", key.gamma_g2.is_zero()),
            ("vk_delta_2", key.delta_g2.is_zero()),
        ];
        if let Some((name, _)) = infinite.iter().find(|(_, is_infinite)| *is_infinite) {
            return Err(object.error(name, "is the point at infinity"));
        }
        if key.gamma_g2 == key.delta_g2 && !allow_unsafe {
            return Err(Error::UnsafeKey { file: name.to_owned() });
        }
        Ok(key.into())
    }

    /// Returns the key as JSON for snarkjs, without the pairing of alpha and beta, which it does not read.
    pub fn to_json(&self) -> Value {
        let key = self.ark();
        json!({
            "protocol": PROTOCOL,
            "curve": CURVE,
            "nPublic": self.public(),
            "vk_alpha_1": g1_json(&key.alpha_g1),
            "vk_beta_2": g2_json(&key.beta_g2),
            "vk_gamma_2": g2_json(&key.gamma_g2),
            "vk_delta_2": g2_json(&key.delta_g2),
            "IC": key.gamma_abc_g1.iter().map(g1_json).collect::<Vec<_>>(),
        })
    }
}

impl Proof {
    /// Reads snarkjs' `proof.json`. Errors call it `name`.
    pub fn from_json(name: &str, json: &[u8]) -> Result<Proof> {
        let object = Object::parse(name, json)?;
        object.check_kind()?;
        Ok(Proof { a: object.g1("pi_a")?, b: object.g2("pi_b")?, c: object.g1("pi_c")? })
    }

    /// Returns the proof as JSON for snarkjs.
    pub fn to_json(&self) -> Value {
        json!({
            "pi_a": g1_json(&self.a),
            "pi_b": g2_json(&self.b),
            "pi_c": g1_json(&self.c),
            "protocol": PROTOCOL,
            "curve": CURVE,
        })
    }
}

/// Reads snarkjs' `public.json`. Errors call it `name`.
pub fn public_from_json(name: &str, json: &[u8]) -> Result<Vec<Fr>> {
    let fail = |part: String, detail: String| Error::Format { file: name.to_owned(), part, detail };
    let value: Value = serde_json::from_slice(json)
        .map_err(|error| fail("public inputs".into(), format!("is not JSON: {error}")))?;
    let Some(list) = value.as_array() else {
        return Err(fail("public inputs".into(), "is not a list".into()));
    };
    let input = |(index, value)| {
        number::<Fr>(value).map_err(|flaw| flaw.error(name, format!("public input {index}")))
    };
    list.iter().enumerate().map(input).collect()
}

/// Returns public inputs as JSON for snarkjs.
pub fn public_to_json(public: &[Fr]) -> Value {
    public.iter().map(|value| value.to_string()).collect()
}

/// A JSON object of a file.
struct Object<'a> {
    file: &'a str,
    values: Map<String, Value>,
}

impl<'a> Object<'a> {
    fn parse(file: &'a str, json: &[u8]) -> Result<Self> {
        let fail = |detail: String| Error::Format { file: file.to_owned(), part: "JSON".into(), detail };
        match serde_json::from_slice(json) {
            Ok(Value::Object(values)) => Ok(Object { file, values }),
            Ok(_) => Err(fail("is not an object".into())),
            Err(error) => Err(fail(error.to_string())),
        }
    }

    fn error(&self, key: &str, flaw: impl Into<Flaw>) -> Error {
        flaw.into().error(self.file, format!("`{key}`"))
    }

    fn get(&self, key: &str) -> Result<&Value> {
        self.values.get(key).ok_or_else(|| self.error(key, "is missing"))
    }

    fn list(&self, key: &str) -> Result<&[Value]> {
        let list = self.get(key)?.as_array();
        list.map(Vec::as_slice).ok_or_else(|| self.error(key, "is not a list"))
    }

    fn g1(&self, key: &str) -> Result<G1Affine> {
        g1(self.get(key)?).map_err(|flaw| self.error(key, flaw))
    }

    fn g2(&self, key: &str) -> Result<G2Affine> {
        g2(self.get(key)?).map_err(|flaw| self.error(key, flaw))
    }

    /// Fails if protocol or curve are named, and others than Groth16 and BN254. snarkjs does not look at them in a proof, and
    /// its old versions write no curve.
    fn check_kind(&self) -> Result<()> {
        for (key, expected) in [("protocol", PROTOCOL), ("curve", CURVE)] {
            match self.values.get(key) {
                None => {}
                Some(Value::String(found)) if found == expected => {}
                Some(found) => {
                    return Err(self.error(key, format!("is {found}, and \"{expected}\" is expected")));
                }
            }
        }
        Ok(())
    }
}

/// What is wrong with a part of a file.
#[derive(Debug, PartialEq, Eq)]
struct Flaw {
    detail: String,
    /// Whether the part has the right form, and its value belongs to no field or group.
    is_value: bool,
}

impl Flaw {
    fn of_value(detail: impl Into<String>) -> Flaw {
        Flaw { detail: detail.into(), is_value: true }
    }

    /// Says which element of the part it is.
    fn of(self, element: &str) -> Flaw {
        Flaw { detail: format!("{element} {}", self.detail), ..self }
    }

    fn error(self, file: &str, part: String) -> Error {
        let (file, detail) = (file.to_owned(), self.detail);
        match self.is_value {
            true => Error::InvalidValue { file, part, detail },
            false => Error::Format { file, part, detail },
        }
    }
}

impl<S: Into<String>> From<S> for Flaw {
    fn from(detail: S) -> Self {
        Flaw { detail: detail.into(), is_value: false }
    }
}

/// Returns the number in a decimal string.
fn number<F: PrimeField<BigInt = BigInt<4>>>(value: &Value) -> Result<F, Flaw> {
    let shown = || value.to_string().chars().take(90).collect::<String>();
    let digits =
        value.as_str().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(digits) = digits else {
        return Err(format!("{} is not a decimal number in quotes", shown()).into());
    };
    let mut limbs = [0u64; 4];
    for digit in digits.bytes() {
        let mut carry = u128::from(digit - b'0');
        for limb in &mut limbs {
            carry += u128::from(*limb) * 10;
            *limb = carry as u64;
            carry >>= 64;
        }
        if carry > 0 {
            return Err(Flaw::of_value(format!("{} {NOT_REDUCED}", shown())));
        }
    }
    F::from_bigint(BigInt(limbs)).ok_or_else(|| Flaw::of_value(format!("{} {NOT_REDUCED}", shown())))
}

fn triple<F: Field>(
    value: &Value,
    coordinate: fn(&Value) -> Result<F, Flaw>,
) -> Result<Option<(F, F)>, Flaw> {
    let Some([x, y, z]) = value.as_array().map(Vec::as_slice) else {
        return Err("is not a list of three coordinates".into());
    };
    let (x, y, z) = (coordinate(x)?, coordinate(y)?, coordinate(z)?);
    match z {
        // Arkworks' form of the point at infinity, which has one form only in these files.
        _ if x.is_zero() && y.is_zero() => Err(Flaw::of_value("is not on the curve")),
        _ if z.is_one() => Ok(Some((x, y))),
        _ if z.is_zero() => Ok(None),
        _ => Err("has a third coordinate other than 1 and 0".into()),
    }
}

fn g1(value: &Value) -> Result<G1Affine, Flaw> {
    let Some((x, y)) = triple(value, number::<Fq>)? else { return Ok(G1Affine::zero()) };
    let point = G1Affine::new_unchecked(x, y);
    if point.is_on_curve() { Ok(point) } else { Err(Flaw::of_value("is not on the curve")) }
}

fn g2(value: &Value) -> Result<G2Affine, Flaw> {
    let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([c0, c1]) => Ok(Fq2::new(number(c0)?, number(c1)?)),
        _ => Err(Flaw::from("has a coordinate that is not a pair")),
    };
    let Some((x, y)) = triple(value, pair)? else { return Ok(G2Affine::zero()) };
    let point = G2Affine::new_unchecked(x, y);
    match point.is_on_curve() {
        false => Err(Flaw::of_value("is not on the curve")),
        true if !point.is_in_correct_subgroup_assuming_on_curve() => {
            Err(Flaw::of_value("is not in the subgroup of prime order"))
        }
        true => Ok(point),
    }
}

fn g1_json(point: &G1Affine) -> Value {
    match point.xy() {
        Some((x, y)) => json!([x.to_string(), y.to_string(), "1"]),
        None => json!(["0", "1", "0"]),
    }
}

fn g2_json(point: &G2Affine) -> Value {
    let pair = |value: Fq2| json!([value.c0.to_string(), value.c1.to_string()]);
    let (x, y, z) = match point.xy() {
        Some((x, y)) => (x, y, Fq2::one()),
        None => (Fq2::zero(), Fq2::one(), Fq2::zero()),
    };
    json!([pair(x), pair(y), pair(z)])
}

#[cfg(test)]
mod test {
    use ark_ec::CurveGroup;

    use super::*;

    #[test]
    fn numbers_are_read_exactly_and_only_below_the_modulus() {
        let read = |text: &str| number::<Fr>(&json!(text));
        assert_eq!(read("0"), Ok(Fr::zero()));
        assert_eq!(read(&(-Fr::one()).to_string()), Ok(-Fr::one()));
        assert!(read(&Fr::MODULUS.to_string()).unwrap_err().detail.contains("not less than the modulus"));
        assert!(read(&"9".repeat(90)).is_err());
        for text in ["", "-1", "0x10", "1 ", "1e3", "½"] {
            assert!(read(text).unwrap_err().detail.contains("not a decimal number"), "{text}");
        }
        assert!(number::<Fr>(&json!(5)).is_err());
    }

    #[test]
    fn points_are_read_as_they_were_written() {
        for scalar in [Fr::zero(), Fr::one(), Fr::from(77)] {
            let (one, two) = (G1Affine::generator() * scalar, G2Affine::generator() * scalar);
            assert_eq!(g1(&g1_json(&one.into_affine())), Ok(one.into_affine()));
            assert_eq!(g2(&g2_json(&two.into_affine())), Ok(two.into_affine()));
        }
        assert_eq!(g1(&json!(["1", "3", "1"])), Err(Flaw::of_value("is not on the curve")));
        assert!(g1(&json!(["1", "2", "2"])).is_err());
    }
}

//! Proofs on each device, and of other provers.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use evener_device::Device;
use evener_schedule::{Pool, Resident};
use evener_zk::groth16::{GpuEngine, Proof, Prover, ProvingKey, Split, Witness, Worker};

use super::{
    Bench, Part,
    circuit::{ArkProver, Circuit, pool, proof_secrets},
    section::{Operation, Row, Section},
    snarkrs::Files,
    timing::{median, median_of, timed},
};
use crate::{
    options::is_gpu,
    output::{format_count, format_time},
};

/// Shared proofs before the measured ones.
const SHARED_WARM_UPS: usize = 20;

/// The time after which warm-ups end.
const SHARED_WARM_UP_TIME: Duration = Duration::from_secs(20);

impl Bench<'_> {
    /// Measures proofs of all sizes, and starts with the smallest one.
    pub(super) fn proofs(&mut self) -> Result<()> {
        let logs = self.sizes.circuits.clone();
        for (index, &log) in logs.iter().enumerate() {
            let is_start = index == 0 && self.has(Part::Start);
            if !is_start && !self.has(Part::Groth16) {
                continue;
            }
            let circuit = Circuit::new(log, &self.progress)?;
            let is_compared = self.snarkrs.is_some() && self.has(Part::Groth16);
            let files = match is_start || is_compared {
                true => Some(Files::write(&circuit, &self.progress)?),
                false => None,
            };
            if self.has(Part::Groth16) {
                self.groth16(&circuit, files.as_ref().filter(|_| is_compared))?;
            }
            if let (true, Some(files)) = (is_start, &files) {
                self.start(log, files)?;
            }
        }
        Ok(())
    }

    fn groth16(&mut self, circuit: &Circuit, files: Option<&Files>) -> Result<()> {
        let constraints = format_count(circuit.key.constraints() as u64);
        let title = format!("Groth16 proofs of {constraints} constraints, dense witness, with verification");
        let mut section = Section::new("groth16", Some(circuit.log), title);

        self.progress.step(format!("2^{}: ark-groth16", circuit.log));
        let ark = ArkProver::new(circuit)?;
        let (witness, secrets) = (circuit.witness(0)?, proof_secrets());
        let expected = ark.prove(&witness, secrets)?;
        let public = &witness.values()[1..=circuit.key.public()];
        let host = median_of(self.rounds(), || {
            let (result, took) = timed(|| -> Result<()> {
                let proof = ark.prove(&witness, secrets)?;
                Ok(circuit.key.verifying_key().verify(&proof, public)?)
            });
            result.map(|()| took)
        })?;
        drop(ark);
        let verification = median_of(self.rounds(), || {
            let (result, took) = timed(|| circuit.key.verifying_key().verify(&expected, public));
            result?;
            Ok(took)
        })?;

        for device in &self.devices {
            self.progress.step(format!("2^{}: proofs on {}", circuit.log, device.id()));
            section.add(device, self.prove_on(device, circuit, &expected).map(|row| vec![row]));
        }
        if self.devices.len() > 1 {
            match pool(&self.devices) {
                Ok(pool) => {
                    self.progress.step(format!("2^{}: proofs that all devices share", circuit.log));
                    section.rows.push(self.share(&pool, circuit, &expected)?);
                }
                // The same hardware through two APIs, for example.
                Err(error) => section.notes.push(format!("no shared proofs: {error:#}")),
            }
        }
        section.rows.push(Row::of_peer("ark-groth16").median(host));
        let set_up = format_time(circuit.set_up.as_secs_f64());
        section.notes.push(format!(
            "verification takes {} of each; the set-up of the key took {set_up}",
            format_time(verification.as_secs_f64())
        ));
        if let Some(files) = files {
            self.compare_through_files(circuit, files, &mut section)?;
        }
        self.add(section)
    }

    /// Measures this project's prover on a device. The first proof has the secrets of the expected one, and is compared.
    fn prove_on(&self, device: &Device, circuit: &Circuit, expected: &Proof) -> Result<Row> {
        let [r, s] = proof_secrets();
        let witness = circuit.witness(0)?;
        let (first, first_time) = timed(|| -> Result<_> {
            let prover = Prover::load(&pool(std::slice::from_ref(device))?, circuit.key.clone());
            let proved = prover.prove_with_secrets(witness, r, s)?;
            Ok((prover, proved))
        });
        let (prover, proved) = first?;
        if proved.proof != *expected {
            bail!("the proof differs from that of ark-groth16 with the same secrets");
        }
        let mut row = Row::of(device).median(self.time_proofs(&prover, |number| circuit.witness(number))?);
        row.first_s = Some(first_time.as_secs_f64());
        drop(prover);
        if is_gpu(device) {
            row.operations = self.operations(device, circuit)?;
        }
        Ok(row)
    }

    /// Measures proofs that all devices make together, one after the other.
    fn share(&self, pool: &Pool, circuit: &Circuit, expected: &Proof) -> Result<Row> {
        let prover = Prover::load(pool, circuit.key.clone()).split(Split::Shared);
        let [r, s] = proof_secrets();
        let prove = || -> Result<Duration> {
            let witness = circuit.witness(0)?;
            let (proved, took) = timed(|| prover.prove_with_secrets(witness, r, s));
            match proved?.proof == *expected {
                true => Ok(took),
                false => bail!("the shared proof differs from that of ark-groth16 with the same secrets"),
            }
        };
        // Devices that are still being prepared take part in later proofs, and their rates are learned.
        let (start, first) = (Instant::now(), prove()?);
        for round in 1..SHARED_WARM_UPS {
            if round >= 4 && start.elapsed() > SHARED_WARM_UP_TIME {
                break;
            }
            prove()?;
        }
        let mut row = Row::of_all().median(median_of(self.rounds(), prove)?);
        row.first_s = Some(first.as_secs_f64());
        Ok(row)
    }

    /// Returns the median time of a proof with its verification, each of another witness.
    fn time_proofs(&self, prover: &Prover, witness: impl Fn(u64) -> Result<Witness>) -> Result<Duration> {
        let mut number = 0;
        median_of(self.rounds(), || {
            number += 1;
            let witness = witness(number)?;
            let (proved, took) = timed(|| prover.prove(witness));
            proved?;
            Ok(took)
        })
    }

    fn operations(&self, device: &Device, circuit: &Circuit) -> Result<Vec<Operation>> {
        let mut worker = Worker::new(GpuEngine::new(device)?, &circuit.key, &Resident::default())?;
        let witness = circuit.witness(0)?;
        worker.time_operations(&circuit.key, &witness)??;
        let mut times: Vec<(&'static str, Vec<Duration>)> = Vec::new();
        for _ in 0..self.rounds() {
            for (index, (name, time)) in
                worker.time_operations(&circuit.key, &witness)??.into_iter().enumerate()
            {
                match times.get_mut(index) {
                    Some((_, all)) => all.push(time),
                    None => times.push((name, vec![time])),
                }
            }
        }
        let operation = |(name, all)| Operation { name, median_s: median(all).as_secs_f64() };
        Ok(times.into_iter().map(operation).collect())
    }

    /// Measures snarkrs with the files of the circuit, and this project's prover with the same files.
    fn compare_through_files(
        &mut self,
        circuit: &Circuit,
        files: &Files,
        section: &mut Section,
    ) -> Result<()> {
        self.progress.step(format!("2^{}: reading the .zkey", circuit.log));
        let key = std::sync::Arc::new(ProvingKey::read(files.zkey())?);
        for device in &self.devices {
            self.progress.step(format!("2^{}: proofs on {} from the .zkey", circuit.log, device.id()));
            let prove = || -> Result<Row> {
                let prover = Prover::load(&pool(std::slice::from_ref(device))?, key.clone());
                let (first, first_time) = timed(|| prover.prove(Witness::read(files.wtns())?));
                first?;
                let median = self.time_proofs(&prover, |_| Ok(Witness::read(files.wtns())?))?;
                let mut row = Row::of(device).median(median).variant(".zkey");
                row.first_s = Some(first_time.as_secs_f64());
                Ok(row)
            };
            section.add(device, prove().map(|row| vec![row]));
        }
        drop(key);
        let (rounds, progress) = (self.rounds(), self.progress.clone());
        if let Some(snarkrs) = &mut self.snarkrs {
            section.rows.append(&mut snarkrs.measure(files, circuit.log, rounds, &progress)?);
            section.notes.push("snarkrs verifies outside of the measured time".into());
        }
        Ok(())
    }
}

// The page's model without a page: deltas lead where a snapshot would.

import assert from "node:assert/strict";
import { test } from "node:test";
import { GeneratedProgram } from "./generated.mjs";
import { loadModel } from "./served.mjs";

const { Programs, MAX_GONE, MAX_QUARANTINES } = loadModel();

/** What a program is, as plain data. */
function plain(program) {
  const bars = ({ bars: it }) => Array.from({ length: it.length }, (_, age) => {
    const at = it.index(age);
    return [it.kind[at], it.until[at], it.first[at], it.items[at]];
  });
  const runs = program.runs.map((run) => ({
    summary: run.summary,
    devices: run.devices.map(({ id, totals, throughput, lanes }) => ({ id, totals, throughput,
      lanes: lanes.map((lane) => ({ state: lane.state, inHand: lane.inHand, bars: bars(lane) })) })),
  }));
  const log = program.log.map(({ number, ...line }) => line);
  return JSON.parse(JSON.stringify({ pid: program.pid, version: program.version, runs, past: program.past, log }));
}

const copy = (it) => JSON.parse(JSON.stringify(it));

test("deltas lead to what a snapshot has, whatever fails", () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    const generated = new GeneratedProgram({ seed, devices: 1 + (seed % 5), lanes: 1 + (seed % 3), runS: 6, failures: 0.05 });
    const followed = new Programs();
    followed.snapshot(copy(generated.snapshot()));
    for (let step = 0; step < 400; step += 1) {
      assert.notEqual(followed.delta(copy(generated.step(0.1))), null);
      if (step % 37 !== 0) continue;
      const fresh = new Programs();
      fresh.snapshot(copy(generated.snapshot()));
      assert.deepEqual(plain(followed.byPid.get(4711)), plain(fresh.byPid.get(4711)), `seed ${seed}, step ${step}`);
    }
    assert.ok(generated.past.length >= 1);
  }
});

test("a delta to another version is refused", () => {
  const generated = new GeneratedProgram({});
  const programs = new Programs();
  generated.step(0.1);
  programs.snapshot(copy(generated.snapshot()));
  const missed = generated.step(0.1);
  assert.equal(programs.delta(copy(generated.step(0.1))), null);
  assert.notEqual(programs.delta(copy(missed)), null);
  assert.equal(programs.delta({ pid: 1, delta: {} }), null);
});

test("a quarantine has a beginning and an end, also if it fell between two updates", () => {
  const generated = new GeneratedProgram({ devices: 1, failures: 0 });
  generated.step(0.1);
  const programs = new Programs();
  programs.snapshot(copy(generated.snapshot()));
  const state = { is: "healthy" };
  const { delta } = generated.step(0.1);
  delta.runs[0].devices = [{ device: 0, totals: generated.runs[0].devices[0].totals, throughput: [], lanes: [{ lane: 0, state, in_hand: [],
    bars: [{ kind: "failure", first: 0, items: 5, from_s: 0.1, until_s: 0.2 }, { kind: "canary", first: 0, items: 5, from_s: 0.3, until_s: 0.35 }] }] }];
  programs.delta({ pid: 4711, delta: copy(delta) });
  const { lane } = programs.run("4711/1").lanes[0];
  assert.deepEqual(copy(lane.quarantines), [{ from: 0.2, until: 0.35, end: 0.35, retired: false }]);
  for (let i = 0; i < 100; i += 1) {
    lane.setState({ is: "quarantined", until_s: i + 2 }, i + 1);
    assert.equal(lane.quarantines.at(-1).end, null);
    lane.setState({ is: "healthy" }, i + 1.5);
    assert.equal(lane.quarantines.at(-1).end, i + 1.5);
  }
  assert.equal(lane.quarantines.length, MAX_QUARANTINES);
});

test("programs that have gone are kept for a while, and not for ever", () => {
  const programs = new Programs();
  for (let pid = 1; pid <= 50; pid += 1) {
    const generated = new GeneratedProgram({ pid });
    generated.step(0.1);
    programs.snapshot(copy(generated.snapshot()));
    programs.gone(pid);
  }
  assert.deepEqual([...programs.byPid.keys()], Array.from({ length: MAX_GONE }, (_, i) => 51 - MAX_GONE + i));
});

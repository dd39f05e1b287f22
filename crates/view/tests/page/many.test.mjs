// The page under load, for a long time, and without a connection: driven by generated events.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { findings, launch, open, privateMemory, textOf, until } from "./browser.mjs";
import { GeneratedProgram, HARDWARE } from "./generated.mjs";
import { serve } from "./served.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** Sends the events of a program as time passes. */
function inRealTime(program) {
  return (send) => {
    send("hello", { version: "0", host: "test" });
    send("snapshot", program.snapshot());
    send("hardware", HARDWARE);
    const updates = setInterval(() => send("delta", program.step(0.1)), 100);
    const hardware = setInterval(() => send("hardware", HARDWARE), 1000);
    return () => [updates, hardware].forEach(clearInterval);
  };
}

async function measured(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await session.send("HeapProfiler.enable");
  return {
    async heapAfterCollection() {
      for (let i = 0; i < 3; i += 1) await session.send("HeapProfiler.collectGarbage");
      const { metrics } = await session.send("Performance.getMetrics");
      const get = (name) => metrics.find((it) => it.name === name).value;
      return { heap: get("JSHeapUsedSize"), nodes: get("Nodes"), elements: await page.evaluate(() => document.querySelectorAll("*").length) };
    },
  };
}

test("a thousand devices and a million chunks are drawn above 20 frames a second, in under 200 MB", async (t) => {
  const program = new GeneratedProgram({ devices: 1000, chunkS: 0.01, runS: 600, failures: 0.0001, seed: 2 });
  const server = await serve(inRealTime(program));
  const page = await open(browser, server.url);
  await until(page, "the lanes", () => document.getElementById("lanes").frames > 5);
  const frames = () => page.evaluate(() => [document.getElementById("lanes").frames, performance.now()]);
  const [first, from] = await frames();
  while (program.chunksEnded < 1_000_000) {
    await page.waitForTimeout(250);
    // A user scrolls meanwhile.
    await page.evaluate(() => (document.getElementById("lanes-scroll").scrollTop += 200));
  }
  const [last, end] = await frames();
  const perSecond = ((last - first) * 1000) / (end - from);
  const memory = await privateMemory(browser);
  const { elements } = await (await measured(page)).heapAfterCollection();
  t.diagnostic(`${perSecond.toFixed(1)} frames a second over ${((end - from) / 1000).toFixed(0)} s, ${(memory / 1e6).toFixed(0)} MB private, ` +
    `${elements} elements, ${program.chunksEnded} chunks`);
  assert.ok(perSecond > 20, `${perSecond} frames a second`);
  assert.ok(memory < 200e6, `${memory} bytes`);
  assert.ok(elements < 1500, `${elements} elements`);
  assert.equal(await textOf(page, "devices-count"), "1,000");
  await page.fill("#filter", "node7/");
  await until(page, "the filter", () => document.getElementById("filtered").textContent === "8 of 1,000 devices");
  assert.deepEqual(page.complaints, []);
  await page.close();
  await server.close();
});

test("a page that is left open does not grow", async (t) => {
  const program = new GeneratedProgram({ devices: 4, lanes: 2, chunkS: 2, runS: 60, failures: 0.01, seed: 4 });
  let response;
  let send;
  const server = await serve((sendTo, to) => {
    [send, response] = [sendTo, to];
    send("hello", { version: "0", host: "test" });
    send("snapshot", program.snapshot());
  });
  const page = await open(browser, server.url);
  await until(page, "the connection", () => document.getElementById("connection").textContent === "live");
  const hours = async (number) => {
    for (let second = 0; second < number * 3600; second += 0.5) {
      send("delta", program.step(0.5));
      if (second % 10 === 0) send("hardware", HARDWARE);
      if (response.writableNeedDrain) await new Promise((resolve) => response.once("drain", resolve));
    }
    const { id } = program.runs.at(-1).summary;
    await until(page, "the last run", (it) => document.getElementById("about").textContent.includes(` ${it} of`), id);
    return (await measured(page)).heapAfterCollection();
  };
  const early = await hours(1);
  const late = await hours(5);
  t.diagnostic(`after 1 h: ${JSON.stringify(early)}, after 6 h: ${JSON.stringify(late)}, ${program.nextRun - 1} runs`);
  assert.ok(program.nextRun > 300);
  assert.ok(late.heap < early.heap * 1.2 + 1e6, "the heap grows");
  assert.ok(late.elements <= early.elements + 60, "the elements grow");
  assert.ok(late.nodes <= early.nodes * 1.3 + 500, "nodes are kept that are not shown");
  assert.deepEqual(page.complaints, []);
  await page.close();
  await server.close();
});

test("a lost connection is said, and mended", async () => {
  const program = new GeneratedProgram({ failures: 0 });
  const first = await serve(inRealTime(program));
  const page = await open(browser, first.url);
  await until(page, "the run", () => document.getElementById("task").textContent === "hash");
  await first.close();
  await until(page, "the loss", () => document.getElementById("connection").textContent === "connection lost, retrying");
  await until(page, "the banner", () => !document.getElementById("banner").hidden);
  assert.equal(await textOf(page, "task"), "hash", "what was known stays");
  const second = await serve(inRealTime(program), first.port);
  await until(page, "the recovery", () => document.getElementById("connection").textContent === "live" && document.getElementById("banner").hidden);
  const done = () => page.evaluate(() => document.getElementById("progress").value);
  const before = await done();
  await until(page, "progress", (it) => document.getElementById("progress").value > it, before);
  await page.close();
  await second.close();
});

test("an update that does not follow on the last one makes the page ask for everything again", async () => {
  const program = new GeneratedProgram({ failures: 0 });
  let connections = 0;
  const server = await serve((send) => {
    connections += 1;
    const updates = inRealTime(program)(send);
    if (connections === 1) setTimeout(() => { program.step(0.1); }, 500);
    return updates;
  });
  const page = await open(browser, server.url);
  const end = Date.now() + 20_000;
  while (connections < 2 && Date.now() < end) await page.waitForTimeout(50);
  assert.ok(connections >= 2);
  await until(page, "the run", () => document.getElementById("connection").textContent === "live");
  await page.close();
  await server.close();
});

test("without a program the page says how to start one; names of programs are only text", async () => {
  const name = '<img src=x onerror="document.title=1"><b>hash</b>';
  const program = new GeneratedProgram({ task: name, name, ids: [name, name, name], leftOut: [{ id: name, reason: name }], failures: 0.2 });
  let send;
  const server = await serve((to) => {
    send = to;
    send("hello", { version: "0", host: name });
  });
  const page = await open(browser, server.url);
  await until(page, "the host", () => document.getElementById("host").textContent !== "");
  assert.match(await textOf(page, "empty"), /No program is running.*EVENER_VIEW=1.*--serve/s);
  assert.ok(await page.isVisible("#empty"));
  assert.deepEqual(await findings(page), []);
  for (let i = 0; i < 100; i += 1) program.step(0.1);
  send("snapshot", program.snapshot());
  await until(page, "the run", () => !document.getElementById("shown").hidden);
  assert.equal(await textOf(page, "task"), name);
  assert.equal(await page.evaluate(() => document.querySelectorAll("img, #devices b").length), 0);
  send("gone", { pid: program.pid });
  await until(page, "the end", () => document.getElementById("run-state").textContent === "program has ended");
  assert.deepEqual(page.complaints, []);
  await page.close();
  await server.close();
});

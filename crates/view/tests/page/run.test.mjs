// The page of a real run, in which a device fails and comes back: it agrees with the run's own report.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { findings, launch, open, textOf, until } from "./browser.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** Starts the program, and gives its address at once and its report at the end. */
async function startRun() {
  const program = spawn(process.env.EVENER_TEST_FAILING_RUN, ["127.0.0.1:0"], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: program.stdout });
  const line = (word) => new Promise((resolve, reject) => {
    lines.on("line", (it) => it.startsWith(`${word} `) && resolve(it.slice(word.length + 1)));
    program.on("exit", (code) => reject(new Error(`the program has ended with ${code}`)));
  });
  const [url, report] = [line("URL"), line("REPORT").then(JSON.parse)];
  report.catch(() => {});
  return { program, url: await url, report };
}

/** The rows of the table of devices, by column. */
const rows = (page) => page.evaluate(() => [...document.querySelectorAll("#devices tr")].map((row) => ({
  id: row.children[0].textContent,
  state: row.querySelector(".chip").textContent,
  more: row.querySelector(".health .sub").textContent,
  share: row.querySelector(".share span").textContent,
  ...Object.fromEntries([...row.querySelectorAll("td[data-name]")].map((cell) => [cell.dataset.name, cell.textContent])),
})));

/** How much of each lane's row has the colour of a kind of bar. */
const painted = (page, colour) => page.evaluate((name) => {
  const canvas = document.getElementById("lanes");
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(--${name})`;
  const wanted = getComputedStyle(probe).color.match(/\d+/g).map(Number);
  probe.remove();
  const [axis, row] = [24, 36];
  return Array.from({ length: Math.floor((canvas.height - axis) / row) }, (_, lane) => {
    const { data } = context.getImageData(160, axis + lane * row, canvas.width - 160, row);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) if (wanted.every((it, c) => Math.abs(it - data[i + c]) < 6)) count += 1;
    return count;
  });
}, colour);

async function shoot(page, name) {
  const folder = process.env.EVENER_TEST_PAGE_SHOTS;
  if (!folder) return;
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
}

const grouped = (number) => number.toLocaleString("en");

test("a device that fails and comes back is on the page, which agrees with the run's report", async (t) => {
  const { program, url, report: coming } = await startRun();
  t.after(() => program.kill());
  const page = await open(browser, url, { colorScheme: "light" });
  await until(page, "the run", () => document.getElementById("run-state").textContent === "running");
  await page.click("#lanes-words summary");

  await until(page, "the quarantine", () => [...document.querySelectorAll("#devices .chip")].some((it) => it.textContent === "quarantined"));
  const during = await rows(page);
  await until(page, "the quarantine in words", () => document.querySelector("#lanes-table tr")?.textContent.includes("quarantined"));
  assert.equal(during[0].state, "quarantined");
  assert.match(await textOf(page, "devices-trouble"), /1 quarantined/);
  const isDrawn = async () => (await painted(page, "quarantine"))[0] > 200;
  for (let tries = 0; !(await isDrawn()); tries += 1) {
    assert.ok(tries < 50, "the quarantine is drawn");
    await page.waitForTimeout(50);
  }
  await shoot(page, "real-failing-1280-light");
  assert.deepEqual(await findings(page), []);

  await until(page, "the return", () => [...document.querySelectorAll("#devices .chip")].every((it) => it.textContent === "healthy"));
  assert.match((await rows(page))[0].more, /was out/);

  await until(page, "the end", () => document.getElementById("run-state").textContent === "finished");
  const report = await coming;
  await page.waitForTimeout(500);
  const work = await painted(page, "work");
  assert.equal(work.length, report.devices.length);
  assert.ok(work.every((it) => it > 500), `the lanes are drawn: ${work}`);
  assert.ok((await painted(page, "failure"))[0] > 20, "the failure is marked");
  assert.equal(await textOf(page, "efficiency"), report.efficiency.toFixed(3));
  assert.equal(await textOf(page, "bound"), `guaranteed ≥ ${(Math.floor(report.bound * 1e3) / 1e3).toFixed(3)}`);
  assert.equal(await textOf(page, "items-of"), `of ${grouped(report.items)}`);
  assert.equal(await textOf(page, "progress-text"), "100.0 %");
  assert.equal(await textOf(page, "left"), `${report.wall_s.toFixed(1)} s`);
  const shown = await rows(page);
  assert.equal(shown.length, report.devices.length);
  report.devices.forEach((device, i) => {
    const expected = { id: device.id, state: device.state, share: `${((device.items / report.done) * 100).toFixed(1)} %`, Items: grouped(device.items), "In hand": "0",
      Chunks: grouped(device.chunks), Dropped: grouped(device.dropped), Retries: grouped(device.retries),
      Rescues: grouped(device.speculative + device.steals) };
    const { more, Busy, ...seen } = shown[i];
    assert.deepEqual(seen, expected);
  });
  assert.ok(report.devices[0].quarantines > 0 && report.devices[0].retries > 0);
  const log = await textOf(page, "log");
  for (const words of ["card:0 quarantined for", "card:0 is back", "paced done in"]) assert.ok(log.includes(words), log);
  assert.match(await textOf(page, "announcement"), /card:0|paced/);

  await page.click("#past summary");
  const opened = await until(page, "the report", () => document.querySelector("#past .report")?.textContent);
  assert.ok(opened.includes(`efficiency ${report.efficiency.toFixed(3)}`) && opened.includes(grouped(report.devices[1].items)), opened);
  const trace = await page.evaluate(async () => (await fetch(document.getElementById("trace").href)).json());
  assert.ok((trace.traceEvents ?? trace).length > 10);

  for (const width of [1280, 390]) {
    for (const theme of ["light", "dark"]) {
      await page.setViewportSize({ width, height: 844 });
      await page.emulateMedia({ colorScheme: theme });
      await page.waitForTimeout(400);
      await shoot(page, `real-finished-${width}-${theme}`);
      assert.deepEqual(await findings(page), [], `${width}, ${theme}`);
      const [needed, there] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      assert.ok(needed <= there, `the page is ${needed} wide, of ${there}`);
    }
  }
  assert.deepEqual(page.complaints, []);
  program.stdin.end();
  await until(page, "the loss", () => document.getElementById("connection").textContent === "connection lost, retrying");
  assert.equal(await textOf(page, "run-state"), "finished");
});

test("everything can be done by the keyboard", async (t) => {
  const { program, url } = await startRun();
  t.after(() => program.kill());
  const page = await open(browser, url);
  await until(page, "the run", () => document.getElementById("run-state").textContent === "running");
  const focused = () => page.evaluate(() => {
    const { activeElement: it } = document;
    const outline = getComputedStyle(it).outlineStyle;
    return { id: it.id || it.className || it.tagName, isMarked: outline !== "none" || it.type === "radio" };
  });
  const visited = [];
  for (let i = 0; i < 40; i += 1) {
    await page.keyboard.press("Tab");
    const it = await focused();
    if (it.id === "BODY") break;
    assert.ok(it.isMarked, `${it.id} shows no focus`);
    visited.push(it.id);
  }
  for (const id of ["skip", "theme", "follow", "run", "trace", "pause", "lanes-scroll", "sort", "log-run", "log-failures"]) {
    assert.ok(visited.includes(id), `${id} is not reached: ${visited}`);
  }
  await page.focus("#lanes-scroll");
  await page.keyboard.press("Space");
  assert.equal(await textOf(page, "pause"), "Paused");
  const frames = () => page.evaluate(() => document.getElementById("lanes").frames);
  await page.waitForTimeout(300);
  await page.keyboard.press("ArrowLeft");
  await page.waitForTimeout(300);
  const before = await frames();
  await page.keyboard.press("Space");
  await until(page, "frames", (it) => document.getElementById("lanes").frames > it, before);
  await page.focus('input[name="window"]:checked');
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.querySelector('input[name="window"]:checked').value), "60");
  await page.focus("#follow");
  await page.keyboard.press("Space");
  assert.equal(await page.isChecked("#follow"), false);
  await page.focus(".run");
  await page.keyboard.press("Enter");
  await until(page, "the choice", () => document.querySelector(".run").getAttribute("aria-current") === "true");
  await page.focus("#theme");
  for (const expected of ["light", "dark"]) {
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), expected);
  }
  assert.deepEqual(page.complaints, []);
});

test("the chart stands still for who asks for less motion", async (t) => {
  const { program, url } = await startRun();
  t.after(() => program.kill());
  const page = await open(browser, url, { reducedMotion: "reduce" });
  await until(page, "the run", () => document.getElementById("run-state").textContent === "running");
  await page.waitForTimeout(2000);
  const moves = await page.evaluate(() => document.getElementById("lanes").moves);
  assert.ok(moves >= 1 && moves <= 5, `moved ${moves} times in two seconds`);
});

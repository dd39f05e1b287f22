// The page of a simulated run of a thousand devices in real time, through the real server: `evener sim --real-time --serve`.
//
// `EVENER_TEST_PAGE_SECONDS=130` follows it to its end, a million chunks later.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { launch, open, privateMemory, textOf, until } from "./browser.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const command = process.env.EVENER_TEST_EVENER;
const seconds = Number(process.env.EVENER_TEST_PAGE_SECONDS ?? 8);

test("a simulation of a thousand devices is drawn above 20 frames a second, in under 200 MB", { skip: !command && "no `evener` was built" }, async (t) => {
  const scenario = new URL("../../../../scenarios/million-chunks.toml", import.meta.url).pathname;
  const program = spawn(command, ["sim", scenario, "--real-time", "--serve", "127.0.0.1:0", "--keep-serving"], { stdio: ["ignore", "ignore", "pipe"] });
  t.after(() => program.kill());
  const url = await new Promise((resolve, reject) => {
    let said = "";
    program.stderr.on("data", (data) => {
      said += data;
      const [address] = said.match(/http:\/\/\S+/) ?? [];
      if (address) resolve(address);
    });
    program.on("exit", (code) => reject(new Error(`evener has ended with ${code}: ${said}`)));
  });
  const page = await open(browser, url);
  await until(page, "the lanes", () => document.getElementById("lanes").frames > 5);
  assert.equal(await textOf(page, "devices-count"), "1,000");
  const frames = () => page.evaluate(() => [document.getElementById("lanes").frames, performance.now()]);
  const [first, from] = await frames();
  let memory = 0;
  for (const end = Date.now() + seconds * 1000; Date.now() < end;) {
    await page.waitForTimeout(500);
    await page.evaluate(() => (document.getElementById("lanes-scroll").scrollTop += 400));
    memory = Math.max(memory, await privateMemory(browser));
    if ((await textOf(page, "run-state")) !== "running") break;
  }
  const [last, end] = await frames();
  const perSecond = ((last - first) * 1000) / (end - from);
  const state = `${await textOf(page, "progress-text")}, ${await textOf(page, "run-state")}`;
  t.diagnostic(`${perSecond.toFixed(1)} frames a second over ${((end - from) / 1000).toFixed(0)} s, at most ${(memory / 1e6).toFixed(0)} MB private; ${state}`);
  assert.ok(perSecond > 20, `${perSecond} frames a second`);
  assert.ok(memory < 200e6, `${memory} bytes`);
  assert.deepEqual(page.complaints, []);
  if (process.env.EVENER_TEST_PAGE_SHOTS) {
    await page.evaluate(() => (document.getElementById("lanes-scroll").scrollTop = 0));
    await page.waitForTimeout(300);
    await page.screenshot({ path: `${process.env.EVENER_TEST_PAGE_SHOTS}/real-thousand-1280-light.png`, fullPage: true });
  }
});

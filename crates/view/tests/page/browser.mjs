// Chromium for the tests, and what they have in common.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

/** The folder where npm has put the packages, and the browser: `scripts/view/page` sets both. */
const packages = createRequire(`${process.env.EVENER_TEST_PAGE_PACKAGES}/`);
const { chromium } = packages("playwright-core");
const axe = packages.resolve("axe-core/axe.min.js");

export function launch() {
  return chromium.launch({
    executablePath: process.env.EVENER_TEST_CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--js-flags=--expose-gc"],
  });
}

/** Opens a page whose console must stay silent. */
export async function open(browser, url, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(error.stack));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.complaints.push(message.text());
  });
  page.on("requestfailed", (request) => page.complaints.push(`${request.url()} ${request.failure()?.errorText}`));
  await page.goto(url);
  return page;
}

/** Serious and critical findings of axe-core. The page's policy lets no script in, so it is evaluated by the debugger. */
export async function findings(page) {
  await page.evaluate(readFileSync(axe, "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target.join(" ")} (${node.failureSummary})`).join("; ")}`);
}

/** Waits until a function of the page answers something that is true, and returns it. */
export async function until(page, what, condition, argument, seconds = 40) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const answer = await page.evaluate(condition, argument);
    if (answer) return answer;
    if (Date.now() > end) throw new Error(`${what}: not seen in ${seconds} s`);
    await page.waitForTimeout(40);
  }
}

export const textOf = (page, id) => page.evaluate((it) => document.getElementById(it).textContent, id);

/** The memory that the page's process has for itself, in bytes. */
export async function privateMemory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const sizes = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => {
    const lines = readFileSync(`/proc/${id}/smaps_rollup`, "utf8").matchAll(/^Private_\w+:\s+(\d+) kB/gm);
    return [...lines].reduce((sum, [, kilobytes]) => sum + Number(kilobytes) * 1024, 0);
  });
  return Math.max(...sizes);
}

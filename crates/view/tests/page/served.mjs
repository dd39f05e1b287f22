// Serves the page from its source, put together as the server does it, with events of generated programs.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const PAGE = new URL("../../src/web/page/", import.meta.url);
/** The parts of the script, in their order: as `src/web/page.rs` has them. */
export const SCRIPTS = ["format.js", "model.js", "marks.js", "chart.js", "run.js", "lists.js", "script.js"];

const read = (name) => readFileSync(new URL(name, PAGE), "utf8");

export function pageFile() {
  const script = SCRIPTS.map(read).join("");
  return read("index.html")
    .replace('<link rel="stylesheet" href="style.css">', () => `<style>${read("style.css")}</style>`)
    .replace('<script type="module" src="script.js"></script>', () => `<script type="module">${script}</script>`);
}

/** Starts a server. `follow(send)` is called for each page that connects, and returns what ends it. */
export async function serve(follow, port = 0) {
  const open = new Set();
  const server = createServer((request, response) => {
    if (request.url === "/events") {
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      open.add(response);
      const send = (event, data) => response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
      const end = follow(send, response);
      response.on("close", () => {
        open.delete(response);
        end?.();
      });
    } else if (request.url === "/") {
      response.writeHead(200, { "content-type": "text/html; charset=utf-8" });
      response.end(pageFile());
    } else {
      response.writeHead(404);
      response.end();
    }
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const close = () => {
    open.forEach((response) => response.destroy());
    return new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${server.address().port}/`, port: server.address().port, close };
}

/** The model without a page. */
export function loadModel() {
  const names = "{ Programs, MAX_GONE, MAX_QUARANTINES }";
  return new Function("performance", `${read("format.js")}${read("model.js")}; return ${names};`)(performance);
}

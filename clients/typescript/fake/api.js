// An API over logs in memory, which breaks as it is told to.
import { once } from "node:events";
import { createServer } from "node:http";

const apiPath = "/api/v1/agent";

export async function startFake(t) {
  const api = new FakeAPI();
  const server = createServer((req, res) => api.serve(req, res));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(async () => {
    api.changed(); // streams see that their clients have gone
    server.closeAllConnections();
    server.close();
    await once(server, "close");
  });
  api.url = `http://127.0.0.1:${server.address().port}`;
  return api;
}

export function problem(res, status, document, headers = {}) {
  res.writeHead(status, { "Content-Type": "application/problem+json", ...headers });
  res.end(JSON.stringify(document));
}

export function frame(event) {
  return `id: ${event.sequence_number}\nevent: ${event.event_type}\ndata: ${JSON.stringify(event)}\n\n`;
}

class FakeAPI {
  logs = new Map();
  asked = [];
  /** Answers a request in the API's stead when it gives true, or a promise of that. */
  refuse = () => false;
  #waiting = [];

  changed() {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  #change() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  log(id) {
    if (!this.logs.has(id)) this.logs.set(id, { events: [], oldest: 1, idle: false, cuts: [], joins: [] });
    return this.logs.get(id);
  }

  add(id, ...events) {
    const log = this.log(id);
    for (const e of events) {
      const sequence_number = log.events.length + 1;
      log.events.push({ event_type: "progress", run_id: "r", created_at: "2026-11-21T12:00:00Z", data: {}, ...e, conversation_id: id, sequence_number });
    }
    this.changed();
  }

  idle(id) {
    this.log(id).idle = true;
    this.changed();
  }

  async serve(req, res) {
    const url = new URL(req.url, "http://fake");
    const path = url.pathname.slice(apiPath.length);
    this.asked.push({ path, accept: req.headers.accept, query: url.search, authorization: req.headers.authorization });
    if (await this.refuse(req, res, path)) return;
    const [, id, what] = /^\/conversations\/([^/]+)\/([^/]+)$/.exec(path) ?? [];
    const log = this.logs.get(id);
    if (log === undefined) return problem(res, 404, { type: "/problems/not-found", detail: "there is no such conversation" });
    const json = (document) => res.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(document));
    if (what === "execution-status") {
      return json({ is_running: !log.idle, last_sequence: log.events.length, current_message_id: null });
    }
    if (what === "messages") {
      const after = Number(url.searchParams.get("after") ?? 0);
      const rest = log.events.slice(after);
      return json({ messages: rest.slice(0, 1000).map((e) => ({ sequence_number: e.sequence_number, content: "hi" })), has_more: rest.length > 1000 });
    }
    let next = Number(url.searchParams.get("from_sequence") ?? 0);
    if (next > 0 && next < log.oldest) return problem(res, 410, { type: "/problems/position-gone", oldest_sequence: log.oldest });
    next = Math.max(next, log.oldest);
    if (req.headers.accept !== "text/event-stream") {
      const limit = Number(url.searchParams.get("limit"));
      const rest = log.events.slice(next - 1);
      return json({ events: rest.slice(0, limit), has_more: rest.length > limit });
    }
    await this.#stream(res, log, next);
  }

  // A stream breaks off in the middle of a frame after each of cuts frames in turn.
  async #stream(res, log, next) {
    if (log.idle && next > log.events.length) return void res.writeHead(204).end();
    const cut = log.cuts.shift() ?? -1;
    res.writeHead(200, { "Content-Type": "text/event-stream; charset=utf-8" });
    res.write(`: ${" ".repeat(2048)}\n\nretry: 1\n\n`);
    let joins = log.joins;
    for (let sent = 0; !res.destroyed; ) {
      for (; next <= log.events.length; next++, sent++) {
        const text = frame(log.events[next - 1]);
        if (sent === cut) {
          return void res.write(text.slice(0, text.length / 2), () => res.destroy()); // when it is on its way
        }
        res.write(text);
      }
      for (const j of joins) res.write(j);
      joins = [];
      if (log.idle) return void res.end();
      await this.#change();
    }
  }
}

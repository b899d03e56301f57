// Follows runs with the package "eventsource", as pages do with what browsers have built in, many at once. TestStreamsInChaos starts it,
// says in a file who follows what, and judges what it writes into another.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { MODULES, ASSIGNMENT, RESULTS } = process.env;
const { EventSource } = await import(pathToFileURL(`${MODULES}/node_modules/eventsource/dist/index.js`).href);
const { url, followers, tales } = JSON.parse(readFileSync(ASSIGNMENT, "utf8"));

// A page names the events that it wants. These want all of them, with or without a name.
class Source extends EventSource {
  dispatchEvent(event) {
    this.heard?.(event);
    return super.dispatchEvent(event);
  }
}

// What waits for a run to get somewhere.
const waiting = new Map();
function arrived(run) {
  for (const begin of waiting.get(run) ?? []) begin();
  waiting.delete(run);
}

class Follower {
  numbers = [];
  texts = {}; // by command: {attempt, chunk, text, state}
  wrong = [];
  pieces = 0;
  discarded = 0;
  reconnects = 0;
  fetched = 0;
  #pending = []; // texts that are too long for their event

  constructor(task) {
    this.task = task;
    this.opened = new Promise((resolve) => (this.open = resolve));
    this.done = new Promise((resolve) => (this.finish = resolve));
    if (!task.late) this.connect();
    else waiting.set(task.run, [...(waiting.get(task.run) ?? []), () => this.connect()]);
  }

  connect() {
    const address = new URL(this.task.path, url);
    if (this.numbers.length > 0) address.searchParams.set("after", this.numbers.at(-1)); // a page that knows where it was
    const source = new Source(address);
    this.source = source;
    source.heard = (event) => {
      if (this.source !== source) return; // it was left
      if (event.type === "open") this.open();
      else if (event.type === "error") this.error(event);
      else this.message(JSON.parse(event.data), event.lastEventId);
    };
  }

  async error(event) {
    if (this.source.readyState !== EventSource.CLOSED) {
      this.reconnects++;
      return;
    }
    if (event.code !== 204) this.wrong.push(`the stream was ended by ${event.code} ${event.message} after ${this.numbers.at(-1)}`);
    this.source = null;
    await Promise.all(this.#pending);
    this.finish();
  }

  message(e, id) {
    if (id === "") {
      this.delta(e);
      return;
    }
    if (Number(id) !== e.sequence_number) this.wrong.push(`id ${id} has number ${e.sequence_number}`);
    this.numbers.push(e.sequence_number);
    const said = this.texts[e.command_id];
    switch (e.event_type) {
      case "attempt_discarded":
        if (said === undefined || said.attempt > e.attempt) break;
        this.discarded++;
        this.texts[e.command_id] = { attempt: e.attempt + 1, chunk: 0, text: "", state: "arriving" };
        break;
      case "chat_completed":
        this.#pending.push(this.commit(e));
        break;
      case "step_started":
        if (e.node_id === "b" && !this.task.late) arrived(this.task.run);
        break;
    }
    if (this.task.leaves === this.numbers.length) {
      this.source.close();
      this.connect();
    }
  }

  // Model output while it arrives: a text up to a chunk replaces what there is, a later attempt discards an earlier one.
  delta(e) {
    const { chunk, through, text, channel } = e.data;
    if (channel !== "text") this.wrong.push(`output on channel ${channel}`);
    let said = this.texts[e.command_id];
    if (said && (said.state === "committed" || e.attempt < said.attempt)) {
      this.wrong.push(`${e.command_id}: attempt ${e.attempt} after ${said.attempt}, ${said.state}`);
      return;
    }
    if (!said || e.attempt > said.attempt) said = this.texts[e.command_id] = { attempt: e.attempt, chunk: 0, text: "", state: "arriving" };
    if (through) said.text = text;
    else if (chunk > said.chunk) said.text += text;
    said.chunk = through ?? Math.max(said.chunk, chunk);
    this.pieces++;
    if (!tales[this.task.run + e.command_id][e.attempt - 1].startsWith(said.text)) {
      this.wrong.push(`${e.command_id}, attempt ${e.attempt}, chunk ${chunk}, through ${through}: ${JSON.stringify(said.text.slice(-60))}`);
    }
  }

  // What is on record replaces what has arrived.
  async commit(e) {
    const said = { attempt: e.attempt, text: e.data.output.json, state: "committed" };
    this.texts[e.command_id] = said;
    while (typeof said.text !== "string") {
      try {
        const response = await fetch(new URL(e.data.output.href, url), { signal: AbortSignal.timeout(10_000) });
        if (!response.ok) throw new Error(`${response.status}`);
        said.text = (await response.json()).result.text;
        this.fetched++;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
    }
  }
}

const all = followers.map((task) => new Follower(task));
const early = all.filter((f) => !f.task.late);
let opened = 0;
early.forEach((f) => f.opened.then(() => ++opened === early.length >> 1 && console.log("half of them follow")));
await Promise.all(all.map((f) => f.done));
writeFileSync(RESULTS, JSON.stringify(all.map(({ numbers, texts, wrong, pieces, discarded, reconnects, fetched }) => ({ numbers, texts, wrong, pieces, discarded, reconnects, fetched }))));
process.exit(0); // what connections are kept for does not matter any more

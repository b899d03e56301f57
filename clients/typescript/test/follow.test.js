import assert from "node:assert/strict";
import test from "node:test";
import { ApiError, Client, ConversationView, GoneError, Timeline, UnreadableError } from "../dist/index.js";
import { frame, problem, startFake } from "../fake/api.js";

const numbers = (n) => Array.from({ length: n }, (_, i) => ({ data: { i } }));
const range = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
const stream = "text/event-stream";

/** Follows a log to its end, and keeps what came. */
async function read(client, log, options, each = () => {}) {
  const got = { numbers: [], outputs: [], oldest: [], live: 0, status: undefined };
  for await (const u of client.updates(log, options)) {
    if (u.status) got.status = u.status;
    if (u.event) got.numbers.push(u.event.sequence_number);
    if (u.output) got.outputs.push(u.output);
    if (u.oldest !== undefined) got.oldest.push(u.oldest);
    if (u.live) got.live++;
    each(u, got);
  }
  return got;
}

test("a conversation is replayed in pages, then followed to its end", async (t) => {
  const api = await startFake(t);
  const client = new Client({ url: `${api.url}/`, token: async () => "secret" });
  api.add("a", ...numbers(25));
  const got = await read(client, { conversationId: "a" }, { pageSize: 10, profile: "run" }, (u, got) => {
    if (u.live) {
      assert.deepEqual(got.numbers, range(1, 25));
      api.add("a", ...numbers(5));
    }
    if (got.numbers.length === 30) api.idle("a");
  });
  assert.deepEqual(got.numbers, range(1, 30));
  assert.deepEqual(got.status, { is_running: true, last_sequence: 25, current_message_id: null });
  assert.equal(got.live, 1);
  const json = "application/json";
  assert.deepEqual(api.asked.map(({ path, accept, query }) => [path, accept, query]), [
    ["/conversations/a/execution-status", json, ""],
    ["/conversations/a/events", json, "?from_sequence=0&profile=run&limit=10"],
    ["/conversations/a/events", json, "?from_sequence=11&profile=run&limit=10"],
    ["/conversations/a/events", json, "?from_sequence=21&profile=run&limit=10"],
    ["/conversations/a/events", stream, "?from_sequence=26&profile=run&until=idle"],
    ["/conversations/a/events", stream, "?from_sequence=31&profile=run&until=idle"],
  ]);
  assert.ok(api.asked.every((a) => a.authorization === "Bearer secret"));
});

test("connections that break in the middle of frames lose nothing and repeat nothing", async (t) => {
  const api = await startFake(t);
  api.add("a");
  api.log("a").cuts = [0, 1, 3, 0, 2, 7];
  const got = await read(new Client({ url: api.url }), { conversationId: "a" }, {}, (u) => {
    if (!u.live) return;
    api.add("a", ...numbers(40));
    api.idle("a");
  });
  assert.deepEqual(got.numbers, range(1, 40));
  assert.equal(api.asked.filter((a) => a.accept === stream).length, 8);
});

test("handlers hear of each thing, and of the end", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(3));
  api.idle("a");
  const heard = [];
  const subscription = new Client({ url: api.url }).follow({ conversationId: "a" }, {
    onStatus: (s) => heard.push(["status", s.last_sequence]),
    onEvent: (e) => heard.push(["event", e.sequence_number]),
    onLive: () => heard.push(["live"]),
    onComplete: () => heard.push(["complete"]),
    onError: (error) => assert.fail(error),
  });
  await subscription.ended;
  subscription.close();
  assert.deepEqual(heard, [["status", 3], ["event", 1], ["event", 2], ["event", 3], ["live"], ["complete"]]);
});

test("after close nothing is heard, and the connection is gone", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(5));
  const gone = new Promise((resolve) => {
    api.refuse = (req, res) => {
      if (req.headers.accept === stream) res.on("close", resolve);
      return false;
    };
  });
  const heard = [];
  const fail = (error) => assert.fail(error);
  const client = new Client({ url: api.url });
  const live = client.follow({ conversationId: "a" }, { onLive: () => live.close(), onComplete: fail, onError: fail });
  await live.ended;
  const first = client.follow({ conversationId: "a" }, {
    onEvent: (e) => {
      heard.push(e.sequence_number);
      first.close();
    },
    onComplete: fail,
    onError: fail,
  });
  await first.ended;
  assert.deepEqual(heard, [1]);
  const waiting = client.follow({ conversationId: "a" }, { onError: fail, onComplete: fail });
  while (!api.asked.some((a) => a.accept === stream)) await new Promise(setImmediate);
  waiting.close();
  await waiting.ended;
  await gone;
});

test("what a handler throws ends the subscription, and is told", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(2));
  const errors = [];
  const boom = new Error("boom");
  await new Client({ url: api.url }).follow({ conversationId: "a" }, {
    onEvent: () => {
      throw boom;
    },
    onError: (error) => errors.push(error),
  }).ended;
  assert.deepEqual(errors, [boom]);
});

test("A, then B, then A again shows A, whatever is late", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(7));
  api.add("b", ...numbers(3));
  let release;
  const held = new Promise((resolve) => (release = resolve));
  let asked;
  const pageAsked = new Promise((resolve) => (asked = resolve));
  let first = true;
  api.refuse = async (req) => {
    if (!req.url.includes("/a/events") || !first) return false;
    first = false;
    asked();
    await held; // the first page of the first visit comes when A is shown for the second time
    return false;
  };
  const shown = [];
  let changed = () => {};
  const view = new ConversationView(new Client({ url: api.url }), {
    onChange: (timeline, id) => {
      shown.push(id);
      changed(timeline);
    },
    onError: (error) => assert.fail(error),
  });
  const until = (condition) => new Promise((resolve) => (changed = (timeline) => condition(timeline) && resolve(timeline)));
  const a1 = view.show("a");
  await pageAsked;
  const bIsShown = until((timeline) => timeline.live);
  const b = view.show("b");
  assert.equal(await bIsShown, b);
  const aIsDone = until((timeline) => timeline.complete);
  const a2 = view.show("a");
  release();
  api.add("a", ...numbers(5));
  api.idle("a");
  assert.equal(await aIsDone, a2);
  assert.deepEqual(a1.events, []);
  assert.deepEqual(b.events.map((e) => e.conversation_id), ["b", "b", "b"]);
  assert.deepEqual(a2.events.map((e) => e.sequence_number), range(1, 12));
  assert.ok(a2.events.every((e) => e.conversation_id === "a"));
  const turns = shown.filter((id, i) => id !== shown[i - 1]); // of the first visit, at most its status was told
  assert.match(turns.join(" "), /^(a )?b a$/);
  view.close();
});

test("a page of events is told at once", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(1000));
  api.idle("a");
  let told = 0;
  await new Promise((resolve, reject) => {
    const view = new ConversationView(new Client({ url: api.url }), {
      onChange: (timeline) => {
        told++;
        if (timeline.complete) resolve(assert.deepEqual(timeline.events.map((e) => e.sequence_number), range(1, 1000)));
      },
      onError: reject,
    });
    view.show("a");
  });
  assert.ok(told < 10, `told ${told} times`);
});

test("what is gone is said, or begun anew", async (t) => {
  const api = await startFake(t);
  const client = new Client({ url: api.url });
  api.add("a", ...numbers(20));
  api.idle("a");
  api.log("a").oldest = 12;
  await assert.rejects(read(client, { conversationId: "a" }, { from: 5 }), (error) => {
    assert.ok(error instanceof GoneError);
    assert.deepEqual([error.from, error.oldest], [5, 12]);
    return true;
  });
  const got = await read(client, { conversationId: "a" }, { from: 5, restart: true });
  assert.deepEqual(got.oldest, [12]);
  assert.deepEqual(got.numbers, range(12, 20));
  assert.deepEqual((await read(client, { conversationId: "a" }, {})).numbers, range(12, 20));
  assert.deepEqual((await read(client, { conversationId: "a" }, { from: 21 })).numbers, []);
});

test("an answer that says no is final, and says why", async (t) => {
  for (const status of [400, 401, 403, 404]) {
    const api = await startFake(t);
    api.add("a", ...numbers(3));
    api.refuse = (req, res) => {
      if (req.headers.accept !== stream) return false;
      problem(res, status, { type: "/problems/x", detail: "because" });
      return true;
    };
    const got = [];
    await assert.rejects(read(new Client({ url: api.url }), { conversationId: "a" }, {}, (u) => u.event && got.push(u.event.sequence_number)), (error) => {
      assert.ok(error instanceof ApiError);
      assert.equal(error.message, `GET /conversations/a/events: ${status}: because`);
      assert.equal(error.type, "/problems/x");
      return true;
    });
    assert.deepEqual(got, range(1, 3));
  }
  assert.throws(() => new Client(), TypeError);
  assert.throws(() => new Client({ url: "127.0.0.1:8080" }), TypeError);
  assert.throws(() => new Client({ url: "ftp://x" }), TypeError);
});

test("a server that is away is waited for, for as long as it says and we like", async (t) => {
  const api = await startFake(t);
  const client = new Client({ url: api.url });
  api.add("a", ...numbers(3));
  api.idle("a");
  let times = 0;
  api.refuse = (req, res) => {
    if (times++ > 0) return false;
    problem(res, 503, {}, { "Retry-After": "1" });
    return true;
  };
  const began = Date.now();
  assert.deepEqual((await read(client, { conversationId: "a" }, {})).numbers, range(1, 3));
  assert.ok(Date.now() - began >= 1000);
  times = -1000;
  api.refuse = (req, res) => (problem(res, 503, { detail: "closed today" }), true);
  await assert.rejects(read(client, { conversationId: "a" }, { patience: 1 }), /closed today/);
});

test("silence is a broken connection", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(3));
  let streams = 0;
  api.refuse = (req, res) => {
    if (req.headers.accept !== stream || streams++ > 0) return false;
    api.idle("a");
    res.writeHead(200, { "Content-Type": stream });
    res.write("retry: 1\n\n"); // and nothing more
    return true;
  };
  const got = await read(new Client({ url: api.url, silence: 100 }), { conversationId: "a" }, {});
  assert.deepEqual(got.numbers, range(1, 3));
  assert.equal(streams, 2);
});

test("what makes no sense is asked for again, but not for ever", async (t) => {
  for (const answer of [
    frame({ sequence_number: 3, event_type: "x", data: {} }), // a gap
    'id: 1\ndata: {"sequence_nu\n\n',
    "id: 1\ndata: {}\n\n",
    "data: [\n\n",
    undefined, // no stream
  ]) {
    const api = await startFake(t);
    api.add("a", ...numbers(1));
    let asked = 0;
    api.refuse = (req, res) => {
      if (req.headers.accept !== stream) return false;
      asked++;
      res.writeHead(200, { "Content-Type": answer === undefined ? "text/html" : stream });
      res.end(`retry: 1\n\n${answer}`);
      return true;
    };
    // Without a hint the pauses are seconds: three tries are two pauses.
    await assert.rejects(read(new Client({ url: api.url }), { conversationId: "a" }, {}), UnreadableError);
    assert.equal(asked, 3);
  }
});

test("a text that is too long for its event is read whole", async (t) => {
  const api = await startFake(t);
  const long = "word ".repeat(2000);
  api.add("a", { event_type: "command_emitted", command_id: "main#1" });
  const delta = { run_id: "r", node_id: "main", command_id: "main#1", attempt: 1, data: { channel: "text", chunk: 1, text: "wo" } };
  api.log("a").joins = [`event: chat_delta\ndata: ${JSON.stringify(delta)}\n\n`];
  api.refuse = (req, res, path) => {
    if (path !== "/runs/r/commands/main%231") return false;
    res.writeHead(200).end(JSON.stringify({ result: { text: long } }));
    return true;
  };
  const timeline = new Timeline();
  for await (const u of new Client({ url: api.url }).updates({ conversationId: "a" })) {
    timeline.apply(u);
    if (u.output?.state !== "arriving") continue;
    assert.equal(timeline.said("r", "main#1").text, "wo");
    api.add("a", { event_type: "chat_completed", command_id: "main#1", attempt: 1, data: { kind: "llm", output: { bytes: 10002, preview: '"word…' } } });
    api.idle("a");
  }
  assert.equal(timeline.said("r", "main#1").text, long);
  assert.equal(timeline.said("r", "main#1").state, "committed");
});

test("messages come in pages", async (t) => {
  const api = await startFake(t);
  api.add("a", ...numbers(2500));
  const messages = await new Client({ url: api.url }).messages("a");
  assert.deepEqual(messages.map((m) => m.sequence_number), range(1, 2500));
});

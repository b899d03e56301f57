import assert from "node:assert/strict";
import test from "node:test";
import { FrameParser } from "../dist/frames.js";
import { Outputs } from "../dist/outputs.js";
import { Pace, retryAfter } from "../dist/pace.js";
import { Timeline } from "../dist/view.js";

const parse = (parts) => {
  const parser = new FrameParser();
  return parts.flatMap((p) => parser.push(p)).map(({ id, event, data, retry }) => ({ id, event, data, retry }));
};
const f = (data, rest = {}) => ({ id: "", event: "", data, retry: -1, ...rest });

test("frames, however they are cut", () => {
  for (const [text, want] of [
    ["id: 7\nevent: a\ndata: {}\n\n", [f("{}", { id: "7", event: "a" })]],
    ["id:7\nevent:a\ndata:{}\n\n", [f("{}", { id: "7", event: "a" })]],
    ["data:  x\n\n", [f(" x")]],
    ["data: a\ndata\ndata: b\n\n", [f("a\n\nb")]],
    ["id: 1\r\ndata: a\r\n\r\ndata: b\r\n\r\n", [f("a", { id: "1" }), f("b")]],
    ["id: 1\rdata: a\r\rdata: b\r\r", [f("a", { id: "1" }), f("b")]],
    ["id: 1\rdata: a\n\r\ndata: b\r\n\n", [f("a", { id: "1" }), f("b")]],
    [": x\n\n:\ndata: a\n: y\n\n", [f("a")]],
    ["id: 1\nevent: a\n\ndata: b\n\n", [f("b")]],
    ["data: a\n\ndata: b\n", [f("a")]],
    ["data: a", []],
    ["retry: 1500\n\ndata: a\n\n", [f("", { retry: 1500 }), f("a")]],
    ["retry: 1s\nretry: -1\ndata: a\n\n", [f("a")]],
    ["id: 1\u00002\ndata: a\n\n", [f("a")]],
    ["Data: a\nx\ndata : b\n\n", []],
    ["", []],
  ]) {
    assert.deepEqual(parse([text]), want, JSON.stringify(text));
    assert.deepEqual(parse([...text]), want, `${JSON.stringify(text)} in pieces`);
    for (let at = 0; at <= text.length; at++) assert.deepEqual(parse([text.slice(0, at), "", text.slice(at)]), want);
  }
});

const piece = (attempt, channel, chunk, through, text) => ({
  run_id: "r", node_id: "n", command_id: "c", attempt, data: { channel, chunk, ...(through > 0 ? { through } : {}), text },
});
const of = (event_type, attempt, data = {}) => ({ sequence_number: 1, event_type, run_id: "r", node_id: "n", command_id: "c", attempt, data });
const said = (attempt, channel, text, added, replaces, state) => ({ runId: "r", nodeId: "n", commandId: "c", attempt, channel, text, added, replaces, state });

test("what a model says, in the order in which a client may hear of it", () => {
  const o = new Outputs();
  assert.deepEqual(o.add(piece(1, "thinking", 1, 0, "hm")), said(1, "thinking", "hm", "hm", false, "arriving"));
  assert.deepEqual(o.add(piece(1, "text", 2, 0, "He")), said(1, "text", "He", "He", false, "arriving"));
  assert.deepEqual(o.add(piece(1, "text", 3, 0, "llo")), said(1, "text", "Hello", "llo", false, "arriving"));
  assert.equal(o.add(piece(1, "text", 2, 0, "He")), undefined);
  assert.deepEqual(o.add(piece(1, "text", 5, 5, "Hello you")), said(1, "text", "Hello you", " you", false, "arriving"));
  assert.deepEqual(o.add(piece(1, "text", 6, 6, "Hallo")), said(1, "text", "Hallo", "", true, "arriving"));
  assert.equal(o.add(piece(1, "text", 4, 4, "Hell")), undefined);
  assert.deepEqual(o.add(piece(2, "text", 1, 0, "B")), said(2, "text", "B", "", true, "arriving"));
  assert.equal(o.add(piece(1, "text", 7, 0, "!")), undefined);
  assert.deepEqual(o.note(of("attempt_discarded", 2)), { output: said(2, "", "", "", true, "discarded") });
  assert.equal(o.add(piece(2, "text", 3, 3, "BC")), undefined);
  assert.deepEqual(o.add(piece(3, "text", 1, 0, "The")), said(3, "text", "The", "The", false, "arriving"));
  assert.deepEqual(o.note(of("chat_completed", 3, { kind: "llm", output: { json: "The end" } })), { output: said(3, "text", "The end", " end", false, "committed") });
  assert.equal(o.add(piece(4, "text", 1, 0, "late")), undefined);
  for (const junk of [null, 1, "x", {}, { command_id: 1 }, { command_id: "c", data: null }]) assert.equal(new Outputs().add(junk), undefined);
});

test("what ends without an answer is taken away", () => {
  for (const name of ["command_failed", "command_aborted", "command_in_doubt", "command_resolved"]) {
    const o = new Outputs();
    assert.deepEqual(o.note(of(name, 0)), {});
    o.add(piece(1, "text", 1, 0, "He"));
    assert.deepEqual(o.note(of(name, 0)), { output: said(1, "", "", "", true, "discarded") });
    assert.equal(o.add(piece(1, "text", 2, 0, "llo")), undefined);
    assert.notEqual(o.add(piece(2, "text", 1, 0, "Again")), undefined);
  }
});

test("texts on record", () => {
  const whole = { output: said(1, "text", "Hi", "", true, "committed") };
  for (const name of ["chat_completed", "thought", "command_committed"]) {
    assert.deepEqual(new Outputs().note(of(name, 1, { kind: "llm", output: { json: "Hi" } })), whole);
  }
  for (const e of [of("command_committed", 1, { kind: "plan", output: { json: "Hi" } }), of("tool_completed", 1, { output: { json: "Hi" } }), of("chat_completed", 1, { output: { preview: "H" } })]) {
    assert.deepEqual(new Outputs().note(e), {});
  }
  const o = new Outputs();
  o.add(piece(1, "text", 1, 0, "He"));
  assert.deepEqual(o.note(of("chat_completed", 1, { output: { preview: '"Hello\\n…' } })), { output: said(1, "text", "Hello\n…", "", true, "committed"), cut: true });
  for (const [preview, text] of [['"391\\…', "391…"], ['"391\\u003…', "391…"], ['"391\\u003c…', "391<…"], ['{"sum": 391, "of…', '{"sum": 391, "of…'], ["", ""]]) {
    const o = new Outputs();
    o.add(piece(1, "text", 1, 0, "3"));
    assert.equal(o.note(of("chat_completed", 1, { output: { preview } })).output.text, text);
  }
});

test("a timeline shows the last word of each command", () => {
  const timeline = new Timeline();
  const say = (...args) => timeline.apply({ output: said(...args) });
  say(1, "thinking", "hm", "hm", false, "arriving");
  say(1, "text", "a", "a", false, "arriving");
  assert.equal(timeline.said("r", "c", "thinking").text, "hm");
  say(2, "text", "b", "", true, "arriving");
  assert.equal(timeline.said("r", "c", "thinking"), undefined, "an earlier attempt's");
  assert.equal(timeline.said("r", "c").text, "b");
  say(2, "", "", "", true, "discarded");
  assert.equal(timeline.outputs.size, 0);
  say(3, "thinking", "hm", "hm", false, "arriving");
  timeline.apply({ event: of("chat_completed", 3), output: said(3, "text", "c", "c", false, "committed") });
  assert.deepEqual([...timeline.outputs.values()].map((o) => o.text), ["c"]);
  assert.equal(timeline.events.length, 1);
  timeline.apply({ oldest: 9 });
  assert.deepEqual([timeline.events.length, timeline.outputs.size], [0, 0]);
});

test("pauses grow, keep to what the server says, and are spread", () => {
  const pace = new Pace(() => 0);
  assert.deepEqual(Array.from({ length: 7 }, () => pace.next(0)), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
  pace.connected();
  assert.equal(pace.next(7000), 7000);
  pace.hint = 45_000;
  assert.equal(pace.next(0), 45_000, "the server's word is more than ours");
  pace.progress();
  pace.hint = 2000;
  assert.equal(pace.next(0), 2000);
  assert.equal(new Pace(() => 0.999).next(4000), 4000 + 2000 * 0.999);
  assert.equal(retryAfter("3"), 3000);
  assert.equal(retryAfter("99999999999"), 3_600_000);
  const pause = retryAfter(new Date(Date.now() + 60_000).toUTCString());
  assert.ok(pause > 50_000 && pause <= 60_000);
  for (const none of [null, "", "soon", "-5"]) assert.equal(retryAfter(none), 0);
});

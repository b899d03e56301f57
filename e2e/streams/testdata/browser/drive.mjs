// Looks at page.html in a real browser while a run is at work. TestBrowser starts it and says where everything is.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { MODULES, CHROMIUM, PAGE, TOKEN, A, B, RUN, API, FRIEND, STRANGER } = process.env;
const { chromium } = createRequire(`${MODULES}/`)("playwright-core");
const timeout = 60_000;
const half = "It is 391, ";
const whole = "It is 391, as anybody can see.";

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(timeout);
  page.on("pageerror", (error) => {
    console.log(`the page failed: ${error}`);
    process.exitCode = 1;
  });
  const timeline = () => page.locator("#events li").allTextContents();
  // Waits until the conversation is shown in a state, with an event in its timeline, and looks at all of the page at one moment.
  const shows = (id, state, event = "") =>
    page.waitForFunction(
      ([id, state, event]) => {
        const at = (name) => document.getElementById(name);
        const items = [...document.querySelectorAll("#events li")];
        if (at("error").textContent) throw new Error(at("error").textContent);
        if (at("shown").textContent !== id || at("shown").dataset.state !== state || !items.some((i) => i.textContent.endsWith(event))) return null;
        if (items.some((i) => i.dataset.conversation !== id)) throw new Error("an event of another conversation is shown");
        return items.map((i) => i.textContent);
      },
      [id, state, event],
      { timeout },
    ).then((handle) => handle.jsonValue());
  const answers = (state, text) =>
    page.waitForFunction(
      ([state, text]) => {
        const p = document.getElementById("answer");
        return p.dataset.state === state && p.textContent === text;
      },
      [state, text],
      { timeout },
    );
  const click = (id) => page.getByRole("button", { name: id }).click();
  const whole1n = (lines) => lines.forEach((line, i) => assert.equal(Number.parseInt(line, 10), i + 1, `${lines.join("\n")}`));
  const post = async (url, body) => {
    const res = await fetch(url, { method: "POST", headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    assert.ok(res.ok, `POST ${url}: ${res.status} ${await res.text()}`);
  };

  // Pages of other origins ask the API itself, with a token, for what follows the first event of A.
  const asks = async (origin, token) => {
    const other = await browser.newPage();
    await other.goto(origin);
    return other.evaluate(
      async ([url, token]) => {
        const answers = async (after) => {
          const res = await fetch(url, { headers: { Accept: "text/event-stream", Authorization: `Bearer ${token}`, "Last-Event-ID": after } });
          return [res.status, res.headers.get("X-Request-Id") !== null, await res.text()];
        };
        try {
          const [status, says, text] = await answers("1");
          const ids = [...text.matchAll(/^id: (\d+)$/gm)].map((match) => match[1]);
          return { status, says, ids, after: ids.length > 0 ? (await answers(ids.at(-1)))[0] : 0 };
        } catch (error) {
          return { failed: String(error) };
        }
      },
      [`${API}/api/v1/agent/runs/${RUN}/events`, token],
    );
  };
  const friend = asks(FRIEND, TOKEN); // follows A to its end
  assert.deepEqual(await asks(FRIEND, "wrong"), { status: 401, says: true, ids: [], after: 0 });
  assert.deepEqual(await asks(STRANGER, TOKEN), { failed: "TypeError: Failed to fetch" });
  console.log("a page of an origin that the API does not know is refused");

  // A waits for its signal. A page that is reloaded shows what it showed.
  await page.goto(`${PAGE}/?${new URLSearchParams([["token", TOKEN], ["conversation", A], ["conversation", B]])}#${A}`);
  const waiting = await shows(A, "live", "command_emitted go");
  whole1n(waiting);
  assert.equal(waiting[0], "1 run_started");
  await page.reload();
  assert.deepEqual(await shows(A, "live", "command_emitted go"), waiting);
  console.log(`the timeline is whole after a reload: ${waiting.length} events`);

  // A answers, and is in the middle of it. That is there after a reload, too.
  await post(`${PAGE}/api/v1/agent/runs/${RUN}/signal`, { name: "go", value: true });
  await answers("arriving", half);
  const answering = await timeline();
  whole1n(answering);
  assert.ok(answering.length > waiting.length);
  await page.reload();
  assert.deepEqual(await shows(A, "live", "command_emitted say"), answering);
  await answers("arriving", half);
  console.log("half of the answer is there after a reload");

  // A, B, A: each is what it is.
  await click(B);
  const other = await shows(B, "complete", "run_completed");
  whole1n(other);
  await post(`${PAGE}/left/${A}`, {}); // the page has let go of A: nothing late can come of it
  await click(A);
  assert.deepEqual(await shows(A, "live", "command_emitted say"), answering);
  await answers("arriving", half);

  // A goes on while B is shown.
  await click(B);
  assert.deepEqual(await shows(B, "complete", "run_completed"), other);
  await post(`${PAGE}/release`, {});
  await click(A);
  const done = await shows(A, "complete", "run_completed");
  whole1n(done);
  assert.deepEqual(done.slice(0, answering.length), answering);
  await answers("committed", whole);
  await page.reload();
  assert.deepEqual(await shows(A, "complete", "run_completed"), done);
  await answers("committed", whole);

  // The page shows what the record has.
  const res = await fetch(`${PAGE}/api/v1/agent/conversations/${A}/events`, { headers: { Authorization: `Bearer ${TOKEN}` } });
  const { events } = await res.json();
  assert.deepEqual(done, events.map((e) => [e.sequence_number, e.event_type, e.command_id ?? e.node_id ?? ""].join(" ").trim()));
  console.log(`A -> B -> A shows A: ${done.length} events`);

  assert.deepEqual(await friend, { status: 200, says: true, ids: events.slice(1).map((e) => `${e.sequence_number}`), after: 204 });
  console.log("a page of an origin that the API knows has followed A");

  // Without a token the page says why it shows nothing.
  await page.goto(`${PAGE}/?token=wrong#${A}`);
  await page.waitForFunction(() => /ApiError.* 401/.test(document.getElementById("error").textContent), undefined, { timeout });
  console.log("the browser is done");
} finally {
  await browser.close();
}

import type { LogEvent, Output } from "./types.js";

/** A frame of model output. */
interface Delta {
  readonly run_id?: unknown;
  readonly node_id?: unknown;
  readonly command_id?: unknown;
  readonly attempt?: unknown;
  readonly data?: { readonly channel?: unknown; readonly chunk?: unknown; readonly through?: unknown; readonly text?: unknown };
}

interface Channel {
  text: string;
  chunk: number;
}

/** What one attempt of a command has said. */
interface Saying {
  attempt: number;
  channels: Map<string, Channel>;
}

/** Puts together what models say while they say it. */
export class Outputs {
  readonly #open = new Map<string, Saying>();
  /** The attempts up to which nothing counts any more, by the record. Another server process may be behind that. */
  readonly #over = new Map<string, number>();

  /** Takes in a piece of output, and gives what that makes of the channel; undefined when the piece is no news. */
  add(frame: unknown): Output | undefined {
    const delta = (frame ?? {}) as Delta;
    const chunk = number(delta.data?.chunk);
    const attempt = number(delta.attempt);
    const [runId, commandId, channelName] = [string(delta.run_id), string(delta.command_id), string(delta.data?.channel)];
    const key = keyOf(runId, commandId);
    if (commandId === "" || chunk < 1 || attempt <= (this.#over.get(key) ?? 0)) return undefined;
    let saying = this.#open.get(key);
    let replaces = false;
    if (saying === undefined || attempt > saying.attempt) {
      replaces = saying !== undefined;
      saying = { attempt, channels: new Map() };
      this.#open.set(key, saying);
    } else if (attempt < saying.attempt) return undefined;
    let channel = saying.channels.get(channelName);
    if (channel === undefined) {
      channel = { text: "", chunk: 0 };
      saying.channels.set(channelName, channel);
    }
    if (chunk <= channel.chunk) return undefined;
    channel.chunk = chunk;
    let added = string(delta.data?.text);
    if (number(delta.data?.through) > 0) {
      if (added.startsWith(channel.text)) added = added.slice(channel.text.length);
      else {
        channel.text = "";
        replaces = true;
      }
    }
    channel.text += added;
    return {
      runId,
      nodeId: string(delta.node_id),
      commandId,
      attempt,
      channel: channelName,
      text: channel.text,
      added: replaces ? "" : added,
      replaces,
      state: "arriving",
    };
  }

  /**
   * Takes in what an event says of a command's output, and gives what that makes of it. `cut`: the event has only the beginning of
   * a text that was shown while it arrived.
   */
  note(event: LogEvent): { output?: Output; cut?: true } {
    const key = keyOf(string(event.run_id), string(event.command_id));
    const shown = this.#open.get(key);
    const attempt = number(event.attempt);
    switch (event.event_type) {
      case "chat_completed":
      case "thought":
      case "command_committed":
        this.#end(key, Infinity);
        return committed(event, shown);
      case "command_failed":
      case "command_aborted":
      case "command_in_doubt":
      case "command_resolved":
      case "attempt_discarded": {
        const through = event.event_type === "attempt_discarded" ? attempt : Math.max(attempt, shown?.attempt ?? 0);
        this.#end(key, through);
        if (shown === undefined || shown.attempt > through) return {};
        return { output: { ...placeOf(event), attempt: shown.attempt, channel: "", text: "", added: "", replaces: true, state: "discarded" } };
      }
    }
    return {};
  }

  /** Nothing counts that a command has said up to an attempt. */
  #end(key: string, through: number): void {
    const shown = this.#open.get(key);
    if (shown !== undefined && shown.attempt <= through) this.#open.delete(key);
    this.#over.set(key, Math.max(this.#over.get(key) ?? 0, through));
  }
}

/** What a model's command has put on record. Those of other kinds say nothing. */
function committed(event: LogEvent, shown: Saying | undefined): { output?: Output; cut?: true } {
  if (event.event_type === "command_committed" && event.data["kind"] !== "llm") return {};
  const value = (event.data["output"] ?? {}) as { readonly json?: unknown; readonly preview?: unknown };
  const output = { ...placeOf(event), attempt: number(event.attempt), channel: "text", added: "", replaces: true, state: "committed" } as const;
  if (typeof value.json === "string") {
    const before = shown?.channels.get("text")?.text;
    if (before === undefined || !value.json.startsWith(before)) return { output: { ...output, text: value.json } };
    return { output: { ...output, text: value.json, added: value.json.slice(before.length), replaces: false } };
  }
  if (shown === undefined) return {};
  return { output: { ...output, text: beginning(string(value.preview)) }, cut: true };
}

/** How much an escape may have lost that the end of a preview has cut: \uABCD without its last digit. */
const cutEscape = 5;

/** The text whose JSON begins as in a preview. */
function beginning(preview: string): string {
  const cut = preview.replace(/…$/, "");
  for (let n = 0; n <= Math.min(cutEscape, cut.length); n++) {
    try {
      return `${String(JSON.parse(`${cut.slice(0, cut.length - n)}"`))}…`;
    } catch {
      // an escape is cut, or it is no string
    }
  }
  return preview;
}

function placeOf(event: LogEvent): { runId: string; nodeId: string; commandId: string } {
  return { runId: string(event.run_id), nodeId: string(event.node_id), commandId: string(event.command_id) };
}

function keyOf(runId: string, commandId: string): string {
  return `${runId}/${commandId}`;
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

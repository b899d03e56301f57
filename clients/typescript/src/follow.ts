import { ApiError, GoneError, UnreadableError } from "./errors.js";
import { FrameParser, type Frame } from "./frames.js";
import { Outputs } from "./outputs.js";
import { Pace } from "./pace.js";
import { Watch, type Transport } from "./transport.js";
import type { ExecutionStatus, FollowOptions, Log, LogEvent, Update } from "./types.js";

const defaultPageSize = 500;
/** How many milliseconds a connection must have held for its end not to count as one more failure. */
const settled = 10_000;
/** As many unreadable answers in a row are no accident. */
const mostUnreadable = 3;

/** The names of the events that end a run, in all profiles. */
const terminal = new Set(["run_completed", "run_failed", "run_cancelled", "complete"]);

type Updates<T> = AsyncGenerator<Update, T, undefined>;

/** One reader's way through a log. */
export class Follower {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #conversation: boolean;
  readonly #options: FollowOptions;
  readonly #signal: AbortSignal;
  readonly #pace = new Pace();
  #outputs = new Outputs();
  /** The number of the event that comes next, 0 for the oldest kept. */
  #next: number;
  /** The last event has ended a run, so that there may be nothing more. */
  #ended = false;

  constructor(transport: Transport, log: Log, options: FollowOptions, signal: AbortSignal) {
    this.#transport = transport;
    this.#options = options;
    this.#signal = signal;
    this.#next = options.from ?? 0;
    this.#conversation = "conversationId" in log;
    this.#path = "conversationId" in log ? `/conversations/${encodeURIComponent(log.conversationId)}` : `/runs/${encodeURIComponent(log.runId)}`;
  }

  async *run(live: boolean): Updates<void> {
    this.#signal.throwIfAborted();
    if (this.#conversation) {
      yield { status: await this.#patiently<ExecutionStatus>(() => this.#transport.document(`${this.#path}/execution-status`, {}, this.#signal)) };
    }
    for (;;) {
      try {
        yield* this.#replay();
        if (!live) return;
        yield { live: true };
        return yield* this.#live();
      } catch (error) {
        if (!(error instanceof GoneError) || this.#options.restart !== true || error.oldest <= this.#next) throw error;
        this.#next = error.oldest;
        this.#outputs = new Outputs();
      }
      yield { oldest: this.#next };
    }
  }

  /** Reads pages until none follows. */
  async *#replay(): Updates<void> {
    for (;;) {
      const query = { ...this.#query(), limit: String(this.#options.pageSize ?? defaultPageSize) };
      const page = await this.#patiently(() =>
        this.#transport.document<{ events: LogEvent[]; has_more: boolean }>(`${this.#path}/events`, query, this.#signal),
      );
      const before = this.#next;
      try {
        if (!Array.isArray(page.events)) throw new UnreadableError(`GET ${this.#path}/events: the answer is no page`);
        for (const event of page.events) yield* this.#event(event);
        if (!page.has_more) return;
        if (this.#next === before) throw new UnreadableError("there is more after a page that has nothing new");
      } catch (error) {
        if (!(error instanceof UnreadableError)) throw error;
        await this.#wait(error);
      }
    }
  }

  /** Reads streams, one after the other, until the server says that nothing follows. */
  async *#live(): Updates<void> {
    for (;;) {
      const began = Date.now();
      let failure: unknown = new Error("the stream has ended");
      try {
        if (yield* this.#stream()) return;
        if (this.#ended) {
          this.#ended = false; // whether that was all, the next answer tells: there is nothing to wait for
          continue;
        }
      } catch (error) {
        failure = error;
      }
      if (Date.now() - began >= settled) this.#pace.connected();
      await this.#wait(failure);
    }
  }

  /** Reads one stream to its end, and tells whether nothing can follow. */
  async *#stream(): Updates<boolean> {
    const watch = new Watch(this.#signal, this.#transport.silence);
    try {
      const query: Record<string, string> = this.#query();
      if (this.#conversation && this.#options.stay !== true) query["until"] = "idle";
      const response = await this.#transport.get(`${this.#path}/events`, query, "text/event-stream", watch.signal);
      if (response.status === 204) return true;
      const kind = response.headers.get("Content-Type") ?? "";
      if (response.body === null || !/^text\/event-stream\s*(;|$)/i.test(kind)) {
        throw new UnreadableError(`GET ${this.#path}/events gave ${JSON.stringify(kind)}, not a stream`);
      }
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      const parser = new FrameParser();
      for (;;) {
        watch.start();
        const { done, value } = await reader.read();
        watch.stop(); // a reader who takes his time is no silence
        if (done) return false;
        for (const frame of parser.push(decoder.decode(value, { stream: true }))) yield* this.#frame(frame);
      }
    } finally {
      watch.close();
    }
  }

  async *#frame(frame: Frame): Updates<void> {
    if (frame.retry >= 0) this.#pace.hint = frame.retry;
    if (frame.data === "") return;
    let object: unknown;
    try {
      object = JSON.parse(frame.data);
    } catch {
      throw new UnreadableError(`frame after event ${this.#next - 1}: its data is not JSON`);
    }
    if (frame.id !== "") {
      yield* this.#event(object as LogEvent);
      return;
    }
    // A frame without a number is model output while it arrives.
    this.#pace.connected();
    const output = this.#outputs.add(object);
    if (output !== undefined) yield { output };
  }

  /** Takes in the next event of the log, or one that is known. */
  async *#event(event: LogEvent): Updates<void> {
    const n: unknown = Object(event).sequence_number;
    if (typeof n !== "number" || n < 1 || (this.#conversation && this.#next > 0 && n > this.#next)) {
      throw new UnreadableError(`event ${String(n)} came where ${this.#next} is next`);
    }
    if (n < this.#next) return;
    const { output, cut } = this.#outputs.note(event);
    let whole = output;
    if (output !== undefined && cut === true) {
      try {
        const text = await this.#patiently(() => this.#transport.said(output.runId, output.commandId, this.#signal));
        if (text !== "") whole = { ...output, text }; // else the API no longer has it
      } catch (error) {
        if (!(error instanceof ApiError)) throw error; // else its beginning is all that can be had
      }
    }
    this.#next = n + 1;
    this.#ended = terminal.has(event.event_type);
    this.#pace.progress();
    yield whole === undefined ? { event } : { event, output: whole };
  }

  #query(): Record<string, string> {
    const query: Record<string, string> = { from_sequence: String(this.#next) };
    if (this.#options.profile !== undefined) query["profile"] = this.#options.profile;
    return query;
  }

  /** Does something until it succeeds, or fails in a way that another try does not mend. */
  async #patiently<T>(act: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const result = await act();
        this.#pace.connected();
        return result;
      } catch (error) {
        await this.#wait(error);
      }
    }
  }

  /** Waits before the next try, or throws what it was given, if that is the end. */
  async #wait(error: unknown): Promise<void> {
    this.#signal.throwIfAborted();
    let asked = 0;
    if (error instanceof ApiError) {
      if (error.status === 410 && error.oldest > 0) throw new GoneError(this.#next, error.oldest);
      if (!error.passes) throw error;
      asked = error.retryAfter;
    }
    if (error instanceof UnreadableError && ++this.#pace.unreadable >= mostUnreadable) throw error;
    const pause = this.#pace.next(asked);
    const { patience } = this.#options;
    if (patience !== undefined && Date.now() - this.#pace.since + pause > patience) throw error;
    await sleep(pause, this.#signal);
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", leave);
      resolve();
    }, ms);
    signal.addEventListener("abort", leave, { once: true });
  });
}

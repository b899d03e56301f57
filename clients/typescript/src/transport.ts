import { ApiError, UnreadableError } from "./errors.js";
import { retryAfter } from "./pace.js";
import type { ClientOptions } from "./types.js";

const apiPath = "/api/v1/agent";
const defaultSilence = 30_000;

/** Asks an API, with what every request needs. */
export class Transport {
  readonly #url: string;
  readonly #token: ClientOptions["token"];
  readonly #fetch: typeof globalThis.fetch;
  /** How many milliseconds nothing may come. */
  readonly silence: number;

  constructor(options: ClientOptions) {
    const url = options.url ?? "";
    // An address that no try will reach is said at once.
    if (url === "" ? !("location" in globalThis) : !/^https?:$/.test(new URL(url).protocol)) {
      throw new TypeError(`the URL of the API: ${JSON.stringify(url)}: want http://HOST or https://HOST`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init)); // browsers want it called on their global object
    this.silence = options.silence ?? defaultSilence;
  }

  /** The whole text that a model's command has committed. */
  async said(runId: string, commandId: string, signal: AbortSignal): Promise<string> {
    const path = `/runs/${encodeURIComponent(runId)}/commands/${encodeURIComponent(commandId)}`;
    const command = await this.document<{ result?: { text?: unknown } }>(path, {}, signal);
    return typeof command.result?.text === "string" ? command.result.text : "";
  }

  /** Reads a JSON document within the time that a connection may be silent. */
  async document<T>(path: string, query: Record<string, string>, signal?: AbortSignal): Promise<T> {
    const watch = new Watch(signal, this.silence);
    try {
      const response = await this.get(path, query, "application/json", watch.signal);
      const text = await response.text();
      try {
        return JSON.parse(text) as T;
      } catch {
        throw new UnreadableError(`GET ${path}: the answer is not JSON`);
      }
    } finally {
      watch.close();
    }
  }

  /** Asks for something that the API has. Rejects with an {@link ApiError} for every answer but 200 and 204. */
  async get(path: string, query: Record<string, string>, accept: string, signal: AbortSignal): Promise<Response> {
    const search = new URLSearchParams(query).toString();
    const headers: Record<string, string> = { Accept: accept };
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token !== undefined && token !== "") headers["Authorization"] = `Bearer ${token}`;
    const response = await this.#fetch(this.#url + apiPath + path + (search === "" ? "" : `?${search}`), { headers, signal, cache: "no-store" });
    if (response.status === 200 || response.status === 204) return response;
    let problem: { type?: unknown; detail?: unknown; oldest_sequence?: unknown } = {};
    try {
      problem = Object(await response.json());
    } catch {
      // no problem document: the status says it all
    }
    throw new ApiError(
      `GET ${path}`,
      response.status,
      typeof problem.type === "string" ? problem.type : "",
      typeof problem.detail === "string" ? problem.detail : "",
      retryAfter(response.headers.get("Retry-After")),
      typeof problem.oldest_sequence === "number" ? problem.oldest_sequence : 0,
    );
  }
}

/** Aborts what takes too long while it is waited for, or when a signal says so. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #parent: AbortSignal | undefined;
  readonly #limit: number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(parent: AbortSignal | undefined, limit: number) {
    this.#parent = parent;
    this.#limit = limit;
    if (parent?.aborted) this.#abort();
    parent?.addEventListener("abort", this.#abort);
    this.start();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** The time that is waited begins, anew. */
  start(): void {
    this.stop();
    this.#timer = setTimeout(() => this.#controller.abort(new Error(`nothing came for ${this.#limit} ms`)), this.#limit);
  }

  /** Nothing is waited for. */
  stop(): void {
    clearTimeout(this.#timer);
  }

  /** Lets go of the timer, the signal and whatever is still open. */
  close(): void {
    this.stop();
    this.#parent?.removeEventListener("abort", this.#abort);
    this.#controller.abort();
  }

  readonly #abort = (): void => this.#controller.abort(this.#parent?.reason);
}

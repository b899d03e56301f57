import { Follower } from "./follow.js";
import { Transport } from "./transport.js";
import type { ClientOptions, ExecutionStatus, FollowOptions, Log, LogEvent, Message, Output, Update } from "./types.js";

const messagesPerPage = 1000;

/** What a follower calls. After {@link Subscription.close} nothing is called any more. */
export interface Handlers {
  /** Whatever comes next, before the function for just that. */
  onUpdate?(update: Update): void;
  /** How the conversation stood in the beginning. */
  onStatus?(status: ExecutionStatus): void;
  /** The next event: each number once, in order. */
  onEvent?(event: LogEvent): void;
  /** What a model's command has said so far; after the event that decided the command, where one did. */
  onOutput?(output: Output): void;
  /** The replay is over. */
  onLive?(): void;
  /** The events before `oldest` are no longer kept, and some were never given: begin the timeline anew. Only with `restart`. */
  onRestart?(oldest: number): void;
  /** The run has ended, or no run of the conversation is queued or at work, and everything was given. */
  onComplete?(): void;
  /** The end: an {@link ApiError} when the API says no, a {@link GoneError}, or what a handler threw. */
  onError(error: unknown): void;
}

/** A log that is being followed. */
export interface Subscription {
  /** Ends it. Whatever is still on its way reaches nobody. Closing twice is fine. */
  close(): void;
  /** Resolves when it has ended: completed, failed or closed. It never rejects. */
  readonly ended: Promise<void>;
}

/** Reads from one API. */
export class Client {
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
  }

  /** Whether a conversation is at work, and how far its log goes. Rejects with an {@link ApiError} when the API says no. */
  executionStatus(conversationId: string, signal?: AbortSignal): Promise<ExecutionStatus> {
    return this.#transport.document(`/conversations/${encodeURIComponent(conversationId)}/execution-status`, {}, signal);
  }

  /** The messages of a conversation, the oldest first. Rejects with an {@link ApiError} when the API says no. */
  async messages(conversationId: string, signal?: AbortSignal): Promise<Message[]> {
    const all: Message[] = [];
    const path = `/conversations/${encodeURIComponent(conversationId)}/messages`;
    const query: Record<string, string> = { limit: String(messagesPerPage) };
    for (;;) {
      const page = await this.#transport.document<{ messages: Message[]; has_more: boolean }>(path, query, signal);
      all.push(...page.messages);
      const last = page.messages.at(-1);
      if (!page.has_more || last === undefined) return all;
      query["after"] = String(last.sequence_number);
    }
  }

  /**
   * Gives all of a log that is kept, or what follows `options.from`, and then what is added to it until the run has ended, or until
   * no run of the conversation is queued or at work: then the iteration ends. Broken connections and servers that are away are
   * borne, with growing pauses. Throws an {@link ApiError} when the API says no, a {@link GoneError}, or the signal's reason.
   */
  updates(log: Log, options: FollowOptions = {}, signal?: AbortSignal): AsyncGenerator<Update, void, undefined> {
    return new Follower(this.#transport, log, options, signal ?? new AbortController().signal).run(true);
  }

  /** {@link Client.updates} without what is added later. */
  replay(log: Log, options: FollowOptions = {}, signal?: AbortSignal): AsyncGenerator<Update, void, undefined> {
    return new Follower(this.#transport, log, options, signal ?? new AbortController().signal).run(false);
  }

  /** {@link Client.updates} with a function for each thing that can come. */
  follow(log: Log, handlers: Handlers, options: FollowOptions = {}): Subscription {
    const controller = new AbortController();
    const { signal } = controller;
    const ended = (async () => {
      try {
        for await (const update of this.updates(log, options, signal)) {
          for (const tell of told(handlers, update)) {
            if (signal.aborted) return; // closed by a handler, or while this was on its way
            tell();
          }
        }
        if (!signal.aborted) handlers.onComplete?.();
      } catch (error) {
        if (!signal.aborted) handlers.onError(error);
      }
    })().catch((error: unknown) =>
      queueMicrotask(() => {
        throw error; // onError itself has thrown: it is the environment's, as with any event handler
      }),
    );
    return { close: () => controller.abort(), ended };
  }
}

/** The calls that an update makes. */
function told(handlers: Handlers, update: Update): (() => void)[] {
  const { status, event, output, live, oldest } = update;
  const calls = [() => handlers.onUpdate?.(update)];
  if (status !== undefined) calls.push(() => handlers.onStatus?.(status));
  if (oldest !== undefined) calls.push(() => handlers.onRestart?.(oldest));
  if (event !== undefined) calls.push(() => handlers.onEvent?.(event));
  if (output !== undefined) calls.push(() => handlers.onOutput?.(output));
  if (live !== undefined) calls.push(() => handlers.onLive?.());
  return calls;
}

import type { Client, Subscription } from "./client.js";
import type { ExecutionStatus, FollowOptions, LogEvent, Output, Update } from "./types.js";

/** What is known of a conversation or a run: the state behind a page that shows it. */
export class Timeline {
  /** Undefined until the conversation has answered, and for a run. */
  status: ExecutionStatus | undefined;
  /** The events, by number. */
  events: LogEvent[] = [];
  /** The last word of each command on each channel. */
  readonly outputs = new Map<string, Output>();
  /** The replay is over. */
  live = false;
  /** Nothing is at work, and everything is shown. */
  complete = false;

  /** The text that a command has said on a channel; undefined for none. */
  said(runId: string, commandId: string, channel = "text"): Output | undefined {
    return this.outputs.get(outputKey(runId, commandId, channel));
  }

  /** Takes in an update. */
  apply(update: Update): void {
    if (update.status) this.status = update.status;
    if (update.oldest !== undefined) {
      this.events = [];
      this.outputs.clear();
    }
    if (update.event) this.events.push(update.event);
    if (update.live) this.live = true;
    if (update.output) this.#say(update.output);
  }

  #say(output: Output): void {
    for (const [key, other] of this.outputs) {
      const same = other.runId === output.runId && other.commandId === output.commandId;
      if (same && (output.state !== "arriving" || other.attempt < output.attempt)) this.outputs.delete(key);
    }
    if (output.state !== "discarded") this.outputs.set(outputKey(output.runId, output.commandId, output.channel), output);
  }
}

function outputKey(runId: string, commandId: string, channel: string): string {
  return JSON.stringify([runId, commandId, channel]);
}

/** What a {@link ConversationView} tells. */
export interface ViewHandlers {
  /**
   * The timeline of the conversation that is shown has changed. It is the same object until another is shown. What comes together,
   * such as a page of the replay, is told together.
   */
  onChange(timeline: Timeline, conversationId: string): void;
  /** The conversation that is shown cannot be followed any further. */
  onError(error: unknown, conversationId: string): void;
}

/** Shows one conversation at a time. Switching replays it from the record, so that what happened in between is there. */
export class ConversationView {
  readonly #client: Client;
  readonly #handlers: ViewHandlers;
  readonly #options: FollowOptions;
  #shown: Subscription | undefined;

  constructor(client: Client, handlers: ViewHandlers, options: FollowOptions = {}) {
    this.#client = client;
    this.#handlers = handlers;
    this.#options = options;
  }

  /** Shows a conversation in place of the one before, of which nothing is told any more, whatever is still on its way. */
  show(conversationId: string): Timeline {
    this.close();
    const timeline = new Timeline();
    let due = false;
    const changed = (): void => {
      if (due) return;
      due = true;
      setTimeout(() => {
        due = false;
        if (this.#shown === shown) this.#handlers.onChange(timeline, conversationId);
      });
    };
    const shown = this.#client.follow(
      { conversationId },
      {
        onUpdate: (update) => {
          timeline.apply(update);
          changed();
        },
        onComplete: () => {
          timeline.complete = true;
          changed();
        },
        onError: (error) => this.#handlers.onError(error, conversationId),
      },
      this.#options,
    );
    this.#shown = shown;
    return timeline;
  }

  /** Shows nothing any more. */
  close(): void {
    this.#shown?.close();
    this.#shown = undefined;
  }
}

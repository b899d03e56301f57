/** Where the API is, and how to speak to it. */
export interface ClientOptions {
  /** As in `https://agents.example`, without the path of the API itself. Empty, the default: where the page comes from. */
  url?: string;
  /** Sent as a bearer token. A function is asked before every request, so that a token can be renewed. */
  token?: string | (() => string | Promise<string>);
  /** How many milliseconds nothing at all may come, heartbeats included, before a connection counts as broken; 30,000 unless set. */
  silence?: number;
  /** The environment's own fetch unless set. */
  fetch?: typeof globalThis.fetch;
}

/** An event of a conversation's log, as a profile shows it. */
export interface LogEvent {
  /** The position in the conversation's log, from 1. */
  readonly sequence_number: number;
  /** The name under which the profile shows the event, such as `step_started`. */
  readonly event_type: string;
  readonly conversation_id: string;
  readonly run_id?: string;
  readonly root_run_id?: string;
  readonly message_id?: string;
  readonly node_id?: string;
  readonly command_id?: string;
  /** Which execution of the command the event speaks of. */
  readonly attempt?: number;
  readonly created_at: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** How a conversation stands. */
export interface ExecutionStatus {
  readonly is_running: boolean;
  readonly last_sequence: number;
  readonly current_message_id: string | null;
}

/** A message of a conversation. */
export interface Message {
  readonly message_id: string;
  readonly run_id: string;
  readonly role: string;
  readonly content: string;
  readonly tool_calls?: unknown;
  readonly tool_call_id?: string;
  readonly tool_name?: string;
  readonly command_id?: string;
  readonly sequence_number: number;
  readonly created_at: string;
}

/** What a model's command has said so far, on one channel. */
export interface Output {
  readonly runId: string;
  readonly nodeId: string;
  readonly commandId: string;
  /** The execution of the command that said it. What an earlier one said no longer counts, on any channel. */
  readonly attempt: number;
  /** `text`, `thinking` or `tool_args`; empty where state is `discarded`. */
  readonly channel: string;
  /** All of it. */
  readonly text: string;
  /** What is new of it, unless `replaces` says that `text` does not go on from what was given before. */
  readonly added: string;
  readonly replaces: boolean;
  /**
   * `arriving` text may be replaced. `committed` text is on record and replaces what the command said on channel `text`; its
   * other channels are over. `discarded` output is to be shown no longer, on no channel.
   */
  readonly state: "arriving" | "committed" | "discarded";
}

/** The next thing that is known of a log. An output comes with the event that decided its command, or alone. */
export interface Update {
  /** How the conversation stood in the beginning. It comes first, and of conversations only. */
  readonly status?: ExecutionStatus;
  readonly event?: LogEvent;
  readonly output?: Output;
  /** The replay is over: what comes from here on is new, or was written while the replay went on. */
  readonly live?: true;
  /** The events before this number are no longer kept, and some of them were never given. A timeline begins anew. */
  readonly oldest?: number;
}

/** What can be followed: all of a conversation, or one run of it with its child runs. */
export type Log = { readonly conversationId: string } | { readonly runId: string };

/** How to read a log. Without any of it: all that is kept, in the profile `run`, until nothing is at work. */
export interface FollowOptions {
  /** The first number wanted: the last that is known, and 1. 0, the default, is the oldest that is kept. */
  from?: number;
  /** The view of the log; the API's default unless set. */
  profile?: string;
  /** Follow a conversation beyond the end of its runs, until closed. A run is always over at its end. */
  stay?: boolean;
  /** Where the next event is kept no longer, go on with the oldest that is. Otherwise that is a {@link GoneError}. */
  restart?: boolean;
  /** How many milliseconds the API may be away before that is an error; without it, for as long as it takes. */
  patience?: number;
  /** How many events are asked for at once in the replay, 500 unless set; the API gives 10,000 at most. */
  pageSize?: number;
}

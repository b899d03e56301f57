export { Client, type Handlers, type Subscription } from "./client.js";
export { ApiError, GoneError, UnreadableError } from "./errors.js";
export type { ClientOptions, ExecutionStatus, FollowOptions, Log, LogEvent, Message, Output, Update } from "./types.js";
export { ConversationView, Timeline, type ViewHandlers } from "./view.js";

/** An answer of the API that says no: a problem document, or what stood between the client and the API. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  constructor(
    /** What was asked for. */
    readonly operation: string,
    readonly status: number,
    /** Stable, as in `/problems/not-found`; empty when the answer was no problem document. */
    readonly type: string,
    /** For people. */
    readonly detail: string,
    /** How many milliseconds the server wants to be left alone, 0 if it did not say. */
    readonly retryAfter: number,
    /** Where a client may begin whose position is no longer kept, else 0. */
    readonly oldest: number,
  ) {
    super(`${operation}: ${status}${detail === "" ? "" : `: ${detail}`}`);
  }

  /** Whether asking again may be answered otherwise. */
  get passes(): boolean {
    return this.status === 408 || this.status === 425 || this.status === 429 || this.status >= 500;
  }
}

/** The event with number `from` is no longer kept. The log can be read from number `oldest` on. */
export class GoneError extends Error {
  override readonly name = "GoneError";
  constructor(
    readonly from: number,
    readonly oldest: number,
  ) {
    super(`event ${from} is no longer kept; the oldest is ${oldest}`);
  }
}

/** An answer that says neither yes nor no: half a document, a frame without sense, a number left out. */
export class UnreadableError extends Error {
  override readonly name = "UnreadableError";
}

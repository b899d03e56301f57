/** The pause after a broken connection until the server says another, and what pauses grow to, in milliseconds. */
const firstPause = 1000;
const longestPause = 30_000;
/** What a server can make a client wait. */
const longestRetryAfter = 3_600_000;

/** Says how long to wait before the API is asked again. Times are in milliseconds. */
export class Pace {
  /** The server's own word. */
  hint = firstPause;
  /** What went wrong since something went well, and what could not be read since an event came. */
  failures = 0;
  unreadable = 0;
  /** When the first of these failures was. */
  since = 0;

  /** `random` gives a number from 0 to below 1. */
  constructor(private readonly random: () => number = Math.random) {}

  /**
   * The pause before the next try: the server's hint, doubled with every failure in a row, never less than the server asked for,
   * and up to half as much again, so that the clients of a server that comes back do not come all at once.
   */
  next(retryAfter: number): number {
    let pause = Math.min(this.hint * 2 ** Math.min(this.failures, 30), Math.max(longestPause, this.hint));
    if (this.failures++ === 0) this.since = Date.now();
    pause = Math.max(pause, retryAfter);
    return pause + (pause / 2) * this.random();
  }

  /** The server has sent something of use, or held a connection for a while. */
  connected(): void {
    this.failures = 0;
  }

  /** The next event has come. */
  progress(): void {
    this.failures = 0;
    this.unreadable = 0;
  }
}

/** Reads the header Retry-After: seconds, or a date. */
export function retryAfter(value: string | null): number {
  if (value === null || value === "") return 0;
  const pause = /^[0-9]+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isNaN(pause) ? 0 : Math.min(Math.max(pause, 0), longestRetryAfter);
}

import { UnreadableError } from "./errors.js";

/** One Server-Sent Event, or a retry hint, which may come alone. */
export interface Frame {
  /** The field of that name in this very frame, else empty; an earlier one does not last. */
  id: string;
  event: string;
  data: string;
  hasData: boolean;
  /** The hint in milliseconds that came with the frame or before it, -1 for none. */
  retry: number;
}

/** What one frame may have, in UTF-16 units. The ledger's largest values reach streams as previews. */
const longestFrame = 64 << 20;

/**
 * Reads the event stream format of the HTML standard from decoded text, however it is cut: lines end with LF, CR LF or CR,
 * comments and unknown fields are passed over, and a frame that the stream's end cut off is none.
 */
export class FrameParser {
  #line = "";
  #size = 0;
  #afterCR = false;
  #frame: Frame = empty();

  /** Gives the frames that end in the text. */
  push(text: string): Frame[] {
    const frames: Frame[] = [];
    let from = 0;
    if (this.#afterCR && text !== "") {
      this.#afterCR = false;
      if (text[0] === "\n") from = 1; // belongs to the line that ended before
    }
    while (from < text.length) {
      const at = endOfLine(text, from);
      this.#take(text.slice(from, at < 0 ? text.length : at));
      if (at < 0) return frames;
      from = at + 1;
      if (text[at] === "\r") {
        if (from === text.length) this.#afterCR = true;
        else if (text[from] === "\n") from++;
      }
      const line = this.#line;
      this.#line = "";
      if (line !== "") {
        this.#field(line);
        continue;
      }
      const frame = this.#frame;
      this.#frame = empty();
      this.#size = 0;
      if (frame.hasData || frame.retry >= 0) frames.push(frame);
    }
    return frames;
  }

  #take(part: string): void {
    this.#size += part.length;
    if (this.#size > longestFrame) throw new UnreadableError(`a frame is longer than ${longestFrame} characters`);
    this.#line += part;
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    const frame = this.#frame;
    switch (name) {
      case "id":
        if (!value.includes("\0")) frame.id = value;
        break;
      case "event":
        frame.event = value;
        break;
      case "data":
        frame.data = frame.hasData ? `${frame.data}\n${value}` : value;
        frame.hasData = true;
        break;
      case "retry":
        if (/^[0-9]{1,9}$/.test(value)) frame.retry = Number(value);
        break;
    }
  }
}

function empty(): Frame {
  return { id: "", event: "", data: "", hasData: false, retry: -1 };
}

function endOfLine(text: string, from: number): number {
  for (let i = from; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 10 || c === 13) return i;
  }
  return -1;
}

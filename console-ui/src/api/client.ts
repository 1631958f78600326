// Calls of the REST API. One place that knows the key, the error envelope and how the event stream is held.

import { backoff } from "../lib/backoff";
import { EventReader, type ServerEvent } from "../lib/events";

// Where the API is, seen from the page: the page itself may be served under a prefix.
export const BASE = new URL(".", document.baseURI).href.replace(/\/$/, "");

const KEY = "lifeboat.admin-key";

// The key is kept for this tab only, and never put into a URL.
export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

export function hasKey(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
  }

  get needsKey(): boolean {
    return this.status === 401 || this.status === 403;
  }
}

function headers(more: Record<string, string> = {}): Record<string, string> {
  const key = sessionStorage.getItem(KEY);
  return key === null ? more : { ...more, authorization: `Bearer ${key}` };
}

async function open(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`${BASE}${path}`, init);
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new ApiError(0, "Lifeboat does not answer.", "Is it running? Try `lifeboat status` in a terminal.");
  }
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => null);
  const error = (body as { error?: { message?: string; hint?: string | null } } | null)?.error;
  throw new ApiError(response.status, error?.message ?? `The server answered ${response.status}.`, error?.hint ?? null);
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, headers: headers() };
  if (body !== undefined) {
    init.headers = headers({ "content-type": "application/json" });
    init.body = JSON.stringify(body);
  }
  const response = await open(path, init);
  const text = await response.text();
  return (text === "" ? null : JSON.parse(text)) as T;
}

export interface Follower {
  onEvent(event: ServerEvent): void;
  // Called on every (re)connection: what was missed meanwhile has to be read again.
  onConnect(): void;
  onLost(error: unknown): void;
}

// Holds the event stream open until the signal aborts, with growing pauses between tries. Done over fetch,
// because EventSource cannot send a key.
export async function follow(follower: Follower, signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    try {
      const response = await open("/api/events", { headers: headers({ accept: "text/event-stream" }), signal });
      failures = 0;
      follower.onConnect();
      const reader = new EventReader();
      const stream = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const piece = await stream?.read();
        if (piece === undefined || piece.done) break;
        for (const event of reader.push(piece.value)) follower.onEvent(event);
      }
      follower.onLost(null);
    } catch (error) {
      if (signal.aborted) return;
      follower.onLost(error);
    }
    failures += 1;
    await pause(backoff(failures, Math.random()), signal);
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

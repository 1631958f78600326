// What the page knows of the server. Everything here can be read again from the API at any moment; nothing
// is kept that the API or the URL holds better.

import { ApiError, call, follow } from "./api/client";
import type { EngineBuild, Hardware, Model, Server } from "./api/types";

interface List<T> {
  data: T[];
}

// Changes within this time are read together.
const GATHER_MS = 150;
// How often all is read while the event stream is down.
const POLL_MS = 5_000;

export class Lifeboat {
  servers = $state<Server[] | null>(null);
  models = $state<Model[] | null>(null);
  engines = $state<EngineBuild[] | null>(null);
  hardware = $state<Hardware | null>(null);
  connected = $state(false);
  // A key is needed and none is known, or the one that is known is refused.
  locked = $state(false);
  // Why what is shown may be old; gone with the next good read.
  problem = $state<ApiError | null>(null);
  // Why the last button did nothing; gone when it is dismissed or the next one works.
  refusal = $state<ApiError | null>(null);

  private stop: AbortController | null = null;
  private gather: ReturnType<typeof setTimeout> | null = null;
  private poll: ReturnType<typeof setInterval> | null = null;

  start(): void {
    this.end();
    this.locked = false;
    this.stop = new AbortController();
    void this.read();
    void follow(
      {
        onConnect: () => {
          this.connected = true;
          this.later();
        },
        onEvent: () => this.later(),
        onLost: (error) => {
          this.connected = false;
          this.note(error);
        },
      },
      this.stop.signal,
    );
    this.poll = setInterval(() => {
      if (!this.connected) this.later();
    }, POLL_MS);
  }

  end(): void {
    this.stop?.abort();
    this.stop = null;
    if (this.poll !== null) clearInterval(this.poll);
    if (this.gather !== null) clearTimeout(this.gather);
    this.poll = null;
    this.gather = null;
  }

  // Reads everything again, once, after a short while.
  later(): void {
    this.gather ??= setTimeout(() => {
      this.gather = null;
      void this.read();
    }, GATHER_MS);
  }

  async act(server: Server, action: string): Promise<void> {
    try {
      await call("POST", `/api/servers/${server.id}/${action}`);
      this.refusal = null;
    } catch (error) {
      this.refusal = asApiError(error);
    }
    this.later();
  }

  private async read(): Promise<void> {
    try {
      const [servers, models, engines, hardware] = await Promise.all([
        call<List<Server>>("GET", "/api/servers?limit=1000"),
        call<List<Model>>("GET", "/api/models?limit=1000"),
        call<List<EngineBuild>>("GET", "/api/engines?limit=1000"),
        this.hardware ?? call<Hardware>("GET", "/api/hardware/profile"),
      ]);
      this.servers = servers.data;
      this.models = models.data;
      this.engines = engines.data;
      this.hardware = hardware;
      this.problem = null;
    } catch (error) {
      this.note(error);
    }
  }

  private note(error: unknown): void {
    if (error === null) return;
    const problem = asApiError(error);
    if (problem.needsKey) {
      this.end();
      this.locked = true;
    } else {
      this.problem = problem;
    }
  }
}

function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, String(error), null);
}

// Which buttons a row has in which state: the one table. The server decides in the end; this only keeps
// buttons away that would be answered with a refusal or change nothing.

export type Action = "start" | "stop" | "restart";
export type State = "stopped" | "sleeping" | "downloading" | "starting" | "ready" | "draining" | "failed";

const TABLE: Record<State, readonly Action[]> = {
  stopped: ["start"],
  sleeping: ["start", "stop"],
  downloading: ["stop"],
  starting: ["restart", "stop"],
  ready: ["restart", "stop"],
  draining: [],
  failed: ["restart", "stop"],
};

// A row of a server somebody else runs is only taken in or out of service.
export function actionsFor(state: State, managed: boolean): readonly Action[] {
  return managed ? TABLE[state] : TABLE[state].filter((action) => action !== "restart");
}

// The view is in the URL, behind `#/`, so that a reload, a link and the back button all keep it.

export const VIEWS = ["servers", "models", "engines", "host"] as const;
export type View = (typeof VIEWS)[number];

export function viewOf(hash: string): View {
  const name = hash.replace(/^#\/?/, "").split(/[/?]/, 1)[0];
  return VIEWS.find((view) => view === name) ?? "servers";
}

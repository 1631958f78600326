// Names for what the generated types call by path.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Server = Schemas["Server"];
export type Model = Schemas["LocalModel"];
export type EngineBuild = Schemas["InstalledBuild"];
export type Hardware = Schemas["HostFacts"];

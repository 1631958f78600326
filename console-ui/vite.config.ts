import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// Asset paths are relative and views live behind `#`, so the console works under any prefix.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: { target: "es2022", sourcemap: false },
  server: {
    proxy: Object.fromEntries(["/api", "/v1", "/health", "/ready"].map((path) => [path, "http://127.0.0.1:4180"])),
  },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});

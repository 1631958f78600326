// What the checks of limits share: the slots in use, and calls that have to be refused.

import assert from "node:assert/strict";

// A client that left frees its slot within a second; two are waited for.
export const waitForSlots = async (base, key, wanted) => {
  const end = Date.now() + 2000;
  for (;;) {
    const reply = await fetch(`${base}/api/servers`, { headers: { authorization: `Bearer ${key}` } });
    const used = (await reply.json()).data.reduce((sum, row) => sum + row.slots_in_use, 0);
    if (used === wanted) return;
    assert(Date.now() < end, `${used} slots are in use, not ${wanted}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

// The error of a call that has to be refused with exactly this class.
export const refused = async (wanted, call) => {
  const error = await call().then(() => assert.fail(`served, but ${wanted.name} was expected`), (refusal) => refusal);
  assert.equal(error.constructor, wanted, String(error));
  return error;
};

import { inWorld } from '/work/main/bench/world.js';
import { compare } from '/work/main/bench/compare.js';
import { bareSide, holdfastSide } from '/work/main/bench/sides.js';
const signal = new AbortController().signal;
const say = (l: string) => console.log(((performance.now()/1000)).toFixed(1), l);
await inWorld({ lengths: [5], say, signal }, async (world) => {
  const sides = { holdfast: await holdfastSide(world), bare: bareSide(world) };
  try {
  const c = await compare(world, sides, { rounds: 2, secondsABlock: 4, levels: [1, 20], say, signal });
  console.log(JSON.stringify(c, null, 1));
  say('end');
  } finally { await sides.holdfast.close(); }
});
say('stopped');

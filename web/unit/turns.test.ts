import { expect, it } from "vitest";
import { inTurn } from "../src/api/turns";

/** Tasks that begin and end when they are told to, and what they did. */
function tasks(count: number) {
  const done: string[] = [];
  const all = Array.from({ length: count }, (_, i) => {
    let [begin, end] = [() => {}, () => {}];
    const run = (begun: () => void) => {
      done.push(`start ${i}`);
      begin = begun;
      return new Promise<void>((resolve) => {
        end = resolve;
      });
    };
    return { run, begin: () => begin(), end: () => end() };
  });
  return { done, all, runs: all.map((one) => one.run) };
}

const soon = () => new Promise((resolve) => setTimeout(resolve));

it("a task starts once the one before has begun", async () => {
  const { done, all, runs } = tasks(3);
  const together = inTurn(runs, 3);
  await soon();
  expect(done).toEqual(["start 0"]);
  all[0]?.begin();
  await soon();
  expect(done).toEqual(["start 0", "start 1"]);
  all[1]?.end(); // such as an error, before it has begun
  await soon();
  expect(done).toEqual(["start 0", "start 1", "start 2"]);
  for (const one of all) one.end();
  await together;
});

it("no more than so many run at a time", async () => {
  const { done, all, runs } = tasks(2);
  const together = inTurn(runs, 1);
  all[0]?.begin();
  await soon();
  expect(done).toEqual(["start 0"]);
  all[0]?.end();
  await soon();
  expect(done).toEqual(["start 0", "start 1"]);
  all[1]?.end();
  await together;
});

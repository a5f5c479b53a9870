/** Requests that follow each other, so that each finds the prompt which the one before it has prefilled. */

export type Task = (begun: () => void) => Promise<void>;

/** Start tasks in order, each once the one before has begun or ended, and at most so many at a time. */
export async function inTurn(tasks: readonly Task[], together: number): Promise<void> {
  const started = new Set<Promise<void>>();
  for (const task of tasks) {
    if (started.size >= together) await Promise.race(started);
    await new Promise<void>((begun) => {
      const ended = task(begun).then(() => {
        started.delete(ended);
        begun();
      });
      started.add(ended);
    });
  }
  await Promise.all(started);
}

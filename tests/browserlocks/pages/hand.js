/* A worker of the tests: it runs the code that the page sends, and answers with what came of it. */
import { WorkerMutex } from "/distlock-worker.js";

const AsyncFunction = (async () => {}).constructor;
let mutex;
let memory; // counter, hands inside, overlaps; the others are for one case each

const naive = () => {
  const seen = memory[0];
  for (let step = 0, sum = 0; step < 20; step += 1) sum += step;
  memory[0] = seen + 1;
};

/* The external judge: the number of hands inside the section. */
const guarded = () => {
  if (Atomics.add(memory, 1, 1)) Atomics.add(memory, 2, 1);
  naive();
  Atomics.sub(memory, 1, 1);
};

const count = (times, naively) => {
  for (let done = 0; done < times; done += 1) naively ? naive() : mutex.withLock(guarded);
};

/* What the mutex says of the one before, and how many others are inside. */
const section = (timeout) => {
  mutex.lock(timeout);
  const found = [mutex.abandoned, Atomics.load(memory, 1)];
  mutex.unlock();
  return found;
};

self.onmessage = async ({ data: { number, shared, words, code } }) => {
  try {
    mutex ??= await WorkerMutex.join(shared);
    memory ??= new Int32Array(words);
    const value = await new AsyncFunction("mutex", "memory", "count", "section", code)(mutex, memory, count, section);
    self.postMessage({ number, value });
  } catch (error) {
    self.postMessage({ number, error: `${error.name}: ${error.message}` });
  }
};

/* A worker of the tests: it does what the page says and answers with what came of it. */
import { WorkerMutex } from "/distlock-worker.js";

let mutex;
let memory; // counter, hands inside, overlaps, -, -, beats, place, -, promised, settle

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

const commands = {
  join: async ({ shared, words }) => {
    mutex = await WorkerMutex.join(shared);
    memory = new Int32Array(words);
  },
  count: ({ times, naively }) => {
    for (let done = 0; done < times; done += 1) naively ? naive() : mutex.withLock(guarded);
  },
  /* Takes and gives for ever, and touches nothing inside: what it leaves behind when it ends is only the mutex. */
  spin: () => {
    for (;;) mutex.withLock(() => 0);
  },
  hold: () => mutex.lock(),
  unlock: () => mutex.unlock(),
  tryLock: ({ timeout }) => mutex.tryLock(timeout),
  lock: ({ timeout }) => mutex.lock(timeout),
  /* What the mutex says of the one before, and how many others are inside. */
  section: ({ timeout }) => {
    mutex.lock(timeout);
    const found = [mutex.abandoned, Atomics.load(memory, 1)];
    mutex.unlock();
    return found;
  },
  /* As which one, counted from 0, this hand came in. */
  place: () => mutex.withLock(() => Atomics.add(memory, 6, 1)),
  /* Until somebody ends this worker: beats are written while it lives. */
  holdForEver: () => {
    mutex.lock();
    for (;;) Atomics.add(memory, 5, 1);
  },
  /* `self.close()` lets the running task go on; it must not let anybody else in. */
  closeInside: ({ ms }) => {
    mutex.lock();
    self.close();
    const end = performance.now() + ms;
    Atomics.add(memory, 1, 1);
    while (performance.now() < end);
    Atomics.sub(memory, 1, 1);
  },
  /* A promise that is settled when the page says so. */
  promise: () =>
    mutex.withLock(async () => {
      Atomics.store(memory, 8, 1);
      while (!Atomics.load(memory, 9)) await new Promise((resolve) => setTimeout(resolve, 5));
      return "settled";
    }),
  raise: () => mutex.withLock(() => { throw new RangeError("of the section"); }),
  close: () => mutex.close(),
};

self.onmessage = async ({ data: { number, command, ...rest } }) => {
  try {
    self.postMessage({ number, value: await commands[command](rest) });
  } catch (error) {
    self.postMessage({ number, error: `${error.name}: ${error.message}` });
  }
};

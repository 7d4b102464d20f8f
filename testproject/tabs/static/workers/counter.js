/* A worker that counts, or holds the mutex until somebody ends it. memory: counter, begun, steps of each worker */
let mutex;
let memory;

const work = () => {
  let sum = 0;
  for (let step = 0; step < 200; step += 1) sum += step;
  return sum;
};
const step = () => {
  const seen = memory[0];
  work();
  memory[0] = seen + 1;
};

self.onmessage = async ({ data }) => {
  if (data.join) {
    const { WorkerMutex } = await import(data.module);
    mutex = await WorkerMutex.join(data.join);
    memory = new Int32Array(data.memory);
  }
  if (data.count) {
    Atomics.wait(memory, 1, 0); // all begin together
    for (let done = 0; done < data.count; done += 1) {
      data.safely ? mutex.withLock(step) : step();
      memory[2 + data.hand] = done + 1;
    }
  }
  if (data.section) {
    mutex.lock();
    const { abandoned } = mutex;
    mutex.unlock();
    return self.postMessage({ abandoned });
  }
  if (data.stay) {
    mutex.lock();
    self.postMessage({ inside: true });
    for (;;) work();
  }
  self.postMessage({ done: true });
};

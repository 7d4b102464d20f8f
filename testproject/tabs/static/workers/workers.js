/* Eight workers, one counter. */
const root = document.querySelector("#workers");
const { WorkerMutex, checkWorkerScript } = await import(root.dataset.module);

const [hands, times] = [Number(root.dataset.hands), Number(root.dataset.times)];
const number = (value) => value.toLocaleString("en");
const say = (text, state = "") => {
  const answer = document.querySelector("#answer");
  answer.textContent = text;
  answer.dataset.state = state;
};

/* A worker as a function that sends a message and waits for the answer. */
const start = () => {
  const worker = new Worker(root.dataset.worker, { type: "module" });
  const ask = (message) =>
    new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => reject(new Error(event.message ?? "A worker did not start."));
      worker.postMessage(message);
    });
  return { worker, ask };
};

const crew = async (size, mutex, memory) => {
  const all = Array.from({ length: size }, start);
  const join = { join: mutex.shared, memory: memory.buffer, module: new URL(root.dataset.module, location.href).href };
  await Promise.all(all.map(({ ask }) => ask(join)));
  return all;
};

const count = async (way) => {
  const memory = new Int32Array(new SharedArrayBuffer(4 * (2 + hands)));
  const mutex = WorkerMutex.create();
  const all = await crew(hands, mutex, memory);
  say(`${hands} workers count ${way} the mutex ...`);
  const through = all.map(({ ask }, hand) => ask({ count: times, hand, safely: way === "with" }));
  const began = performance.now();
  Atomics.store(memory, 1, 1);
  Atomics.notify(memory, 1);
  await Promise.race(through);
  memory.slice(2).forEach((steps, hand) => (document.querySelector(`#share-${hand + 1}`).value = steps));
  await Promise.all(through);
  const ms = performance.now() - began;
  for (const { worker } of all) worker.terminate();
  mutex.close();
  const lost = hands * times - memory[0];
  const cells = document.querySelectorAll(`#${way} td`);
  [number(hands * times), number(memory[0]), number(lost), `${number(Math.round(ms))} ms`].forEach((text, at) => (cells[at].textContent = text));
  cells[2].classList.toggle("lost", lost > 0);
  say(lost ? `${number(lost)} of ${number(hands * times)} steps were lost.` : `Not one of ${number(hands * times)} steps was lost.`, lost ? "bad" : "good");
};

const end = async () => {
  const mutex = WorkerMutex.create();
  const [victim, heir] = await crew(2, mutex, new Int32Array(new SharedArrayBuffer(64)));
  await victim.ask({ stay: true });
  say("Worker 1 holds the mutex. Worker 2 waits. Worker 1 is ended ...");
  const next = heir.ask({ section: true });
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const began = performance.now();
  victim.worker.terminate();
  const { abandoned } = await next;
  const ms = Math.round(performance.now() - began);
  say(`Worker 2 got the mutex ${ms} ms after the end of worker 1${abandoned ? ", and knows that its work was not finished" : ""}.`, "good");
  heir.worker.terminate();
  mutex.close();
};

const buttons = [...root.querySelectorAll("[data-run]")];
const disable = (disabled) => buttons.forEach((button) => button.setAttribute("aria-disabled", String(disabled)));
root.addEventListener("click", async ({ target }) => {
  const { run } = target.dataset;
  if (!run || target.getAttribute("aria-disabled") === "true") return;
  disable(true);
  try {
    await checkWorkerScript(root.dataset.worker);
    await (run === "end" ? end() : count(run));
  } catch (error) {
    say(error.message, "bad");
  }
  disable(false);
});
disable(false); // the module has come: a click before that would have done nothing

/* What the tests put into the page: a mutex, and hands that share it. */
const { WorkerMutex, checkWorkerScript } = await import("/distlock-worker.js");

class Hand {
  constructor() {
    this.worker = new Worker("/hand.js", { type: "module" });
    this.answers = [];
    this.worker.onmessage = ({ data: { number, value, error } }) => {
      const { resolve, reject } = this.answers[number];
      error ? reject(new Error(error)) : resolve(value);
    };
  }

  ask(command, rest = {}) {
    return new Promise((resolve, reject) => {
      const number = this.answers.push({ resolve, reject }) - 1;
      this.worker.postMessage({ number, command, ...rest });
    });
  }
}

const table = {
  WorkerMutex,
  checkWorkerScript,
  memory: new Int32Array(new SharedArrayBuffer(64)),
  mutex: null,
  hands: [],
  sleep: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
  hand: async () => {
    const hand = new Hand();
    await hand.ask("join", { shared: table.mutex.shared, words: table.memory.buffer });
    table.hands.push(hand);
    return hand;
  },
  begin: (options) => (table.mutex = WorkerMutex.create(options)),
  /* How many wait: the first word of each member's 64 bytes is its ticket, and 0 once it waits no longer. */
  waiting: () => new Int32Array(table.mutex.shared).filter((word, at) => at >= 16 && at % 16 === 0 && word).length,
  /* Until the condition is true. */
  until: async (condition) => {
    while (!condition()) await table.sleep(1);
  },
  /* The answers of all hands. */
  all: (command, rest) => Promise.all(table.hands.map((hand) => hand.ask(command, rest))),
};
table.begin();
window.table = table;

/* What the tests put into the page: a mutex, and hands that share it. */
const { WorkerMutex, checkWorkerScript } = await import("/distlock-worker.js");

class Hand {
  constructor() {
    this.worker = new Worker("/hand.js", { type: "module" });
    this.asked = 0;
    this.answers = new Map();
    this.worker.onmessage = ({ data: { number, value, error } }) => {
      const { resolve, reject } = this.answers.get(number);
      error ? reject(new Error(error)) : resolve(value);
    };
  }

  ask(command, rest = {}) {
    const number = (this.asked += 1);
    return new Promise((resolve, reject) => {
      this.answers.set(number, { resolve, reject });
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
  clear: (options) => {
    for (const hand of table.hands.splice(0)) hand.worker.terminate();
    table.mutex?.close();
    table.memory.fill(0);
    table.mutex = WorkerMutex.create(options);
  },
  /* How many wait: the first word of each member's 64 bytes is its ticket, and 0 once it waits no longer. */
  waiting: () => new Int32Array(table.mutex.shared).filter((word, at) => at >= 16 && at % 16 === 0 && word).length,
  /* The answers of all hands. */
  all: (command, rest) => Promise.all(table.hands.map((hand) => hand.ask(command, rest))),
};
table.clear();
window.table = table;

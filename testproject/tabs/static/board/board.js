/* A piece that is picked up is locked for this hand. Each step is a request that the server checks. */
const board = document.querySelector("#board");
const { LockManager } = await import(board.dataset.distlock);

const locks = new LockManager({ endpoint: "/distlock/" });
const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
const { me } = board.dataset;
const [columns, rows] = [Number(board.dataset.columns), Number(board.dataset.rows)];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
let hand = null; // { piece, lock }
let picking = false;

const say = (text) => (document.querySelector("#answer").textContent = text);
const square = (piece) => `${"ABCDEFGH"[piece.dataset.column - 1]}${piece.dataset.row}`;

const describe = (piece, holder) => {
  const own = hand?.piece === piece;
  piece.setAttribute("aria-pressed", String(own));
  piece.toggleAttribute("data-busy", Boolean(holder) && !own);
  piece.querySelector(".holder").textContent = own ? "you" : (holder ?? "");
  const where = own ? ", in your hand" : holder ? `, in the hand of ${holder}` : "";
  piece.querySelector(".label").textContent = `${piece.dataset.name} on ${square(piece)}${where}`;
};

const pickUp = async (piece) => {
  if (picking) return;
  picking = true;
  try {
    const lock = await locks.hold(piece.dataset.grant, { ifAvailable: true });
    if (!lock) {
      await refresh();
      const holder = piece.querySelector(".holder").textContent;
      return say(`${piece.dataset.name}: ${holder || "somebody else"} has it.`);
    }
    hand = { piece, lock };
    lock.signal.addEventListener("abort", () => {
      if (hand?.lock === lock) hand = null;
      describe(piece, null);
      say(`${piece.dataset.name} was lost: ${lock.signal.reason.message}`);
    });
    describe(piece, me);
    say(`${piece.dataset.name} is in your hand.`);
  } catch (error) {
    say(error.message);
  } finally {
    picking = false;
  }
};

const putDown = () => {
  const { piece, lock } = hand;
  hand = null;
  lock.release();
  describe(piece, null);
  say(`${piece.dataset.name} is on ${square(piece)}.`);
};

const move = async (column, row) => {
  if (column < 1 || row < 1 || column > columns || row > rows) return;
  const { piece, lock } = hand;
  Object.assign(piece.dataset, { column, row });
  describe(piece, me);
  const answer = await fetch(piece.dataset.move, {
    method: "POST",
    headers: { "X-CSRFToken": token, ...lock.headers },
    body: new URLSearchParams({ column, row }),
  });
  say(answer.ok ? `${piece.dataset.name} to ${square(piece)}.` : `Refused with ${answer.status}: this piece is not in your hand any more.`);
  await refresh();
};

const refresh = async () => {
  const answer = await fetch(board.dataset.state);
  if (!answer.ok) return;
  const { pieces, moves } = await answer.json();
  for (const { pk, column, row, holder } of pieces) {
    const piece = board.querySelector(`[data-pk="${pk}"]`);
    if (hand?.piece !== piece) Object.assign(piece.dataset, { column, row });
    describe(piece, holder);
  }
  document.querySelector("#moves tbody").replaceChildren(
    ...moves.map((made) => {
      const row = document.createElement("tr");
      for (const text of [made.at, made.by, made.asked, made.fence]) row.insertCell().textContent = text;
      return row;
    }),
  );
};

board.addEventListener("click", (event) => {
  const piece = event.target.closest(".piece");
  if (piece && hand?.piece === piece) return putDown();
  if (piece && !hand) return pickUp(piece);
  if (!hand) return;
  const { left, top, width, height } = board.getBoundingClientRect();
  const column = Math.ceil(((event.clientX - left) / width) * columns);
  const row = Math.ceil(((event.clientY - top) / height) * rows);
  move(column, row);
});

board.addEventListener("keydown", (event) => {
  if (!hand) return;
  if (event.key === "Escape") return putDown();
  const step = STEPS[event.key];
  if (!step) return;
  event.preventDefault();
  const { column, row } = hand.piece.dataset;
  move(Number(column) + step[0], Number(row) + step[1]);
});

refresh();
setInterval(() => refresh().catch(() => {}), 1000);

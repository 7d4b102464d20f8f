// Sphinx's own figures, and one rule more: a guide comes before the reference that names the same thing.
var Scorer = {
  score: ([page, , , , score]) => (["reference/api", "idempotency/settings"].includes(page) ? score - 4 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

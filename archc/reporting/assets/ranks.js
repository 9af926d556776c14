// What each device holds under the chosen ranks, and what fits it: the rules of `archc estimate --serve` for tensors.

const deviceOf = (at) => (at.gpu ? DATA.devices[at.gpu] : null);
const cutOf = (at) => DATA.cuts.findIndex(([tp, ep]) => tp === at.tp && ep === (at.experts ? at.tp : 1));
const splitOf = (at) => DATA.pp.indexOf(at.pp);

function rankProblems(model, at) {
  const { cut_problems: cuts, pp_problems: splits } = model.ranks;
  return [...cuts[cutOf(at)], ...splits[splitOf(at)]];
}

function rankNotes(model, at) {
  const { cut_notes: cuts, pp_notes: splits } = model.ranks;
  return [...new Set([...cuts[cutOf(at)], ...splits[splitOf(at)]])];
}

// Bytes of weights on a rank of each stage.
function rankWeights(model, at) {
  const [cut, split] = [cutOf(at), splitOf(at)];
  const stages = [];
  for (const [dtype, elements, counts] of model.ranks.weights) {
    const bytes = tensorBytes(BigInt(elements[cut]), resolved(dtype, at.dtype || model.dtype));
    counts[split].forEach((count, stage) => { stages[stage] = (stages[stage] || 0n) + bytes * BigInt(count); });
  }
  return stages;
}

function capacityOf(model, length) {
  const multiple = BigInt(model.capacity_multiple);
  return ceilDiv(length + BigInt(model.reserved_rows), multiple) * multiple;
}

// Bytes of the cache on a rank of each stage; `which` is used or allocated.
function rankCache(model, at, which) {
  const [cut, split] = [cutOf(at), splitOf(at)];
  const env = { batch: at.batch, past: 0n, seq: at.length, memory: at.source, capacity: capacityOf(model, at.length) };
  const stages = DATA.pp[split] ? Array(model.ranks.stages[split]).fill(0n) : [];
  for (const state of model.ranks.states) {
    const bytes = tensorBytes(
      evaluate(model.pool, state[which][cut], env), stateDtype(state, at.dtype || model.dtype, at.kvDtype));
    state.counts[split].forEach((count, stage) => { stages[stage] += bytes * BigInt(count); });
  }
  return stages;
}

function rankCosts(model, at) {
  const problems = rankProblems(model, at);
  if (problems.length) return { problems };
  const weights = rankWeights(model, at);
  const used = rankCache(model, at, "used");
  const allocated = rankCache(model, at, "allocated");
  const beside = at.workspace + BigInt(DATA.overhead_bytes);
  const totals = weights.map((bytes, stage) => bytes + allocated[stage] + beside);
  const worst = totals.reduce((most, bytes, stage) => (bytes > totals[most] ? stage : most), 0);
  const found = {
    problems, weights: weights[worst], used: used[worst], allocated: allocated[worst], total: totals[worst] };
  const device = deviceOf(at);
  if (device) {
    found.memory = BigInt(device.memory_bytes);
    found.budget = BigInt(Math.floor(device.memory_bytes * DATA.memory_utilization));
    const fits = (change) => rankCache(model, { ...at, ...change }, "allocated")
      .every((bytes, stage) => weights[stage] + bytes + beside <= found.budget);
    found.maxBatch = largestThatFits((batch) => fits({ batch }));
    // An encoder's tokens stay what they are while the text grows.
    found.maxLength = largestThatFits((length) => fits({ length }));
  }
  return found;
}

const NO_LIMIT = 1n << 60n;

// The largest number from 1 on that fits, 0 where none does, null where none is too large.
function largestThatFits(fits) {
  if (!fits(1n)) return 0n;
  if (fits(NO_LIMIT)) return null;
  let [low, high] = [1n, 2n];
  while (high < NO_LIMIT && fits(high)) [low, high] = [high, high * 2n];
  while (high - low > 1n) {
    const middle = (low + high) / 2n;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

function rankRows(models, found, at) {
  const ranks = models.map((model) => rankCosts(model, at));
  const device = deviceOf(at);
  if (!device && at.tp * at.pp === 1) return { rows: [], ranks };
  const row = (key, name, cell) => ({
    key, name, cells: models.map((_, place) => (ranks[place].problems.length ? "–" : cell(ranks[place]))) });
  const many = at.tp * at.pp;
  const title = `On ${many === 1 ? "one device" : `each of ${many} devices`}${device ? `, ${device.title}` : ""}`;
  const rows = [
    { name: title, cells: [], style: "group" },
    row("rankWeights", "weights", (rank) => bytesCell(rank.weights)),
    row("rankUsed", "cache, used", (rank) => bytesCell(rank.used)),
    row("rankAllocated", "cache, allocated", (rank) => bytesCell(rank.allocated)),
    row("rankTotal", "with workspace and overhead", (rank) => bytesCell(rank.total)),
  ];
  if (device) {
    rows.push(
      row("share", "of the memory it may use", (rank) => ({
        text: `${rank.total <= rank.budget ? "" : "too much: "}${decimal(rank.total * 100n, rank.budget, 1)}%`,
        style: rank.total <= rank.budget ? "good" : "bad" })),
      row("maxBatch", "largest batch at this length", (rank) => limitCell(rank.maxBatch)),
      row("maxLength", "longest at this batch, tokens", (rank) => limitCell(rank.maxLength)),
    );
  }
  return { rows, ranks };
}

const limitCell = (number) => (number === null ? "no limit" : plainCell(number));

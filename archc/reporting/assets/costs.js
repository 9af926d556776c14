// What one model costs at the page's settings: the rules of `archc estimate`, on the closed forms of its graph.

const QUANTITIES = ["perToken", "belowWindows", "perSourceToken", "recurrent", "convolution", "used", "allocated", "paged"];

const tensorBytes = (elements, dtype) => ceilDiv(elements * BigInt(DATA.dtype_bits[dtype]), 8n);
const resolved = (dtype, modelDtype) => (dtype === "model" ? modelDtype : dtype);

function stateDtype(state, modelDtype, kvDtype) {
  return kvDtype && state.role !== "recurrent" ? kvDtype : resolved(state.dtype, modelDtype);
}

function weightBytes(groups, dtype) {
  let total = 0n;
  for (const [elements, own, count] of groups) {
    total += tensorBytes(BigInt(elements), resolved(own, dtype)) * BigInt(count);
  }
  return total;
}

// The quantities of a state in one layer, whole batch where lengths matter and one sequence where they don't.
function stateCosts(model, state, at) {
  const dtype = stateDtype(state, at.dtype || model.dtype, at.kvDtype);
  const pool = model.pool;
  const env = { batch: at.batch, past: 0n, seq: at.length, memory: at.source };
  const block = BigInt(at.block || model.kinds[state.kind].block_size || model.default_block_size);
  const multiple = BigInt(model.capacity_multiple);
  const capacity = ceilDiv(at.length + BigInt(model.reserved_rows), multiple) * multiple;
  const elements = (tokens) => evaluate(pool, state.used, { batch: 1n, past: 0n, seq: tokens, memory: tokens });
  const found = Object.fromEntries(QUANTITIES.map((name) => [name, 0n]));
  const usedBytes = tensorBytes(evaluate(pool, state.used, env), dtype);
  const allocatedEnv = { batch: at.batch, capacity, memory: at.source };
  const allocatedBytes = tensorBytes(evaluate(pool, state.allocated, allocatedEnv), dtype);
  const pagedBytes = state.rows === null
    ? usedBytes
    : tensorBytes(ceilDiv(evaluate(pool, state.rows, env), block) * block * evaluate(pool, state.row, env), dtype);
  for (const each of state.counts) {
    const count = BigInt(each);
    found.used += usedBytes * count;
    found.allocated += allocatedBytes * count;
    found.paged += pagedBytes * count;
    if (state.rows === null) {
      found[state.role === "convolution" ? "convolution" : "recurrent"] += tensorBytes(elements(1n), dtype) * count;
    } else if (state.growth === "source") {
      found.perSourceToken += tensorBytes(elements(1n) * count, dtype);
    } else {
      const long = BigInt(model.long_context);
      const far = tensorBytes((elements(2n * long) - elements(long)) * count, dtype) / long;
      const near = state.growth === "ring" ? tensorBytes((elements(1n) - elements(0n)) * count, dtype) : far;
      found.perToken += far;
      found.belowWindows += near;
    }
  }
  return found;
}

function added(total, more) {
  for (const name of QUANTITIES) total[name] += more[name];
  return total;
}

const nothing = () => Object.fromEntries(QUANTITIES.map((name) => [name, 0n]));

function cacheCosts(model, at) {
  const total = nothing();
  const kinds = model.kinds.map(() => ({ ...nothing(), window: null }));
  const layers = Object.fromEntries(model.layers.map((layer) => [layer.name, { ...nothing(), window: null }]));
  for (const state of model.states) {
    const found = stateCosts(model, state, at);
    added(total, found);
    for (const row of [kinds[state.kind], layers[state.layer]]) {
      if (!row) continue;
      added(row, found);
      if (state.window !== null) row.window = Math.max(row.window || 0, state.window);
    }
  }
  return { total, kinds, layers };
}

// Where each step's formula is evaluated: a prefill of `length` tokens, then one token after `length - 1` cached ones.
function stepEnv(step, at) {
  if (step.startsWith("decode")) {
    return { batch: at.batch, seq: 1n, past: at.length - 1n, source: 0n, memory: at.source };
  }
  return { batch: at.batch, seq: at.length, past: 0n, source: at.source, memory: at.source };
}

function flopsOf(model, forms, at) {
  return Object.fromEntries(
    Object.entries(forms).map(([step, place]) => [step, evaluate(model.pool, place, stepEnv(step, at))]));
}

function costsOf(model, at) {
  return {
    weights: weightBytes(model.weights, at.dtype || model.dtype),
    mtpWeights: weightBytes(model.mtp_weights, at.dtype || model.dtype),
    cache: cacheCosts(model, at),
    flops: flopsOf(model, model.flops, at),
  };
}

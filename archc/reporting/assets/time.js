// How long a prefill and a decode step take under a device's roof: the rules of `archc estimate --time`.

// The peak for a dtype: narrow weights are widened where the device has no products for them.
function peakOf(device, dtype) {
  const wider = DATA.dtype_bits[dtype] <= 16 ? ["bfloat16", "float16"] : [];
  return [dtype, ...wider, "float32"].map((name) => device.peak_flops_per_s[name]).find((peak) => peak) || null;
}

function roofOf(model, at) {
  const device = deviceOf(at);
  const peak = device && peakOf(device, at.dtype || model.dtype);
  if (!peak) return null;
  return {
    device,
    flopsPerSecond: peak * at.computeEfficiency,
    bytesPerSecond: device.bandwidth_bytes_per_s * at.memoryEfficiency,
    wire: (bytes, ranks) =>
      Number(bytes) / ((ranks <= device.link_devices ? device.link_bytes_per_s : device.network_bytes_per_s) * at.linkEfficiency),
  };
}

// Share of experts that some token chooses, where each chooses at random.
const expectedShare = (chosen, tokens) => (chosen >= 1 ? 1 : -Math.expm1(Number(tokens) * Math.log1p(-chosen)));

function opWork(model, op, step, at) {
  const pool = model.pool;
  const cut = cutOf(at);
  const dtype = at.dtype || model.dtype;
  const tp = BigInt(at.tp);
  const env = stepEnv(step, at);
  if (op.last && step === "prefill") env.seq = 1n;
  const isDecode = step === "decode";
  let flops = evaluate(pool, isDecode ? op.few : op.many, env);
  let bytes = 0n;
  for (const [written, read, locals, own, role, passes] of step === "forward" ? [] : op.states) {
    const whole = evaluate(pool, written, env);
    if (whole === 0n) continue;
    const moved = isDecode ? evaluate(pool, read, env) : whole;
    const local = ceilDiv(moved * evaluate(pool, locals[cut], env), whole);
    bytes += tensorBytes(local, stateDtype({ role, dtype: own }, dtype, at.kvDtype)) * (isDecode ? BigInt(passes) : 1n);
  }
  if (flops > 0n) {
    flops = ceilDiv(flops, BigInt(op.ways[cut]));
    const rows = op.weights.some(([, , chosen]) => chosen < 1) ? evaluate(pool, op.rows, env) : 0n;
    for (const [elements, own, chosen] of op.weights) {
      const held = chosen < 1
        ? BigInt(Math.ceil(Number(elements[cut]) * expectedShare(chosen, rows)))
        : BigInt(elements[cut]);
      bytes += tensorBytes(held, resolved(own, dtype));
    }
    for (const [elements, own, isCut] of op.values) {
      const moved = ceilDiv(evaluate(pool, elements, env), isCut ? tp : 1n);
      bytes += tensorBytes(moved, resolved(own, dtype));
    }
  }
  return { flops, bytes, env };
}

// Bytes that one rank sends behind an op, with the ranks of the group.
function* opSends(model, op, env, at) {
  const cut = cutOf(at);
  const tp = BigInt(at.tp);
  for (const [kind, elements, own, times, there] of op.sends) {
    if (!there[cut]) continue;
    const bytes = tensorBytes(evaluate(model.pool, elements, env), resolved(own, at.dtype || model.dtype)) * BigInt(times);
    if (kind === "all_reduce") yield (bytes * 2n * (tp - 1n)) / tp;
    else if (kind === "all_gather") yield (bytes * (tp - 1n)) / tp;
    else yield (((2n * bytes) / tp) * (tp - 1n)) / tp;
  }
}

function stepTime(model, step, at) {
  const roof = roofOf(model, at);
  if (!roof || rankProblems(model, at).length) return null;
  const split = splitOf(at);
  const stages = Array(model.ranks.stages[split]).fill(0);
  const layers = {};
  for (const op of model.steps.ops) {
    const { flops, bytes, env } = opWork(model, op, step, at);
    let sent = 0;
    for (const count of opSends(model, op, env, at)) sent += roof.wire(count, at.tp);
    const row = (layers[op.layer] ||= { seconds: 0, compute: 0 });
    op.counts[split].forEach((count, stage) => {
      const compute = Number(flops * BigInt(count)) / roof.flopsPerSecond;
      const memory = Number(bytes * BigInt(count)) / roof.bytesPerSecond;
      stages[stage] += Math.max(compute, memory) + sent * count;
      row.seconds += Math.max(compute, memory);
      row.compute += compute > memory ? compute : 0;
    });
  }
  const env = stepEnv(step, at);
  model.steps.handed_on[split].forEach((values, stage) => {
    let bytes = 0n;
    for (const [elements, own] of values) {
      bytes += tensorBytes(evaluate(model.pool, elements, env), resolved(own, at.dtype || model.dtype));
    }
    stages[stage] += roof.wire(bytes / BigInt(at.tp), at.tp * at.pp);
  });
  const whole = Object.values(layers).reduce(
    (sum, row) => ({ seconds: sum.seconds + row.seconds, compute: sum.compute + row.compute }), { seconds: 0, compute: 0 });
  const tokens = evaluate(model.pool, model.steps.tokens, env);
  return {
    seconds: stages.reduce((sum, seconds) => sum + seconds, 0),
    tokensPerSecond: Number(tokens) / Math.max(...stages),
    bound: boundOf(whole), layers };
}

const boundOf = (row) => (row.compute * 2 > row.seconds ? "compute" : "memory");
const secondsCell = (time) => ({ text: secondsText(time.seconds), number: time.seconds });

function timeRows(models, at) {
  if (!deviceOf(at)) return [];
  const times = models.map((model) => Object.fromEntries(
    (model.decodes ? ["prefill", "decode"] : ["forward"]).map((step) => [step, stepTime(model, step, at)])));
  const row = (key, name, step, cell) => {
    const cells = times.map((steps) => (steps[step] ? cell(steps[step]) : "–"));
    return times.some((steps) => steps[step]) ? [{ key, name, cells }] : [];
  };
  const rate = (time) => ({ text: siText(BigInt(Math.round(time.tokensPerSecond))), number: time.tokensPerSecond });
  const rows = [
    ...row("prefillTime", "prefill", "prefill", secondsCell),
    ...row("forwardTime", "forward", "forward", secondsCell),
    ...row("decodeTime", "a step of decoding", "decode", secondsCell),
    ...row("decodeRate", "tokens a second, decoding", "decode", rate),
    ...row("decodeBound", "decoding is bound by", "decode", (time) => time.bound),
  ];
  return rows.length ? [{ name: "Time by the roofline: an estimate, not a measurement", cells: [], style: "group" }, ...rows] : [];
}

function timeTable(table, model, at) {
  const steps = (model.decodes ? ["prefill", "decode"] : ["forward"]).map((step) => [step, stepTime(model, step, at)]);
  if (steps.some(([, time]) => !time)) return false;
  const heads = [{ text: "kind", left: true }, ...steps.flatMap(([step]) => [step, "bound by"])];
  const names = Object.keys(steps[0][1].layers).filter((name) => steps.some(([, time]) => time.layers[name].seconds));
  const rows = names.map((name) => ({
    name, key: name,
    cells: steps.flatMap(([, time]) => [secondsCell(time.layers[name]), boundOf(time.layers[name])]) }));
  fillTable(table, heads, rows);
  return true;
}

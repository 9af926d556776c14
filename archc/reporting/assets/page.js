// The page: settings in, tables and charts out.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MODELS = DATA.models.map((model) => ({ ...model, pool: prepared(model) }));
const byId = (id) => document.getElementById(id);
const SETTINGS = {};
for (const [name, value] of Object.entries(DATA.settings)) SETTINGS[name] = value === null ? null : String(value);

// Positions of a logarithmic slider: powers of two, with three steps between.
const atPosition = (position) => {
  const exponent = BigInt(Math.floor(position / 4));
  return ((4n + BigInt(position % 4)) << exponent) / 4n || 1n;
};
const positionOf = (number) => Math.round((log2(number)) * 4);

const NUMBERS = ["batch", "length", "source", "block", "workspace"];
const SHARES = ["computeEfficiency", "memoryEfficiency", "linkEfficiency"];
const CHOICES = ["dtype", "kvDtype", "gpu", "tp", "pp", "experts"];

function settingsNow() {
  const at = {};
  for (const name of NUMBERS) at[name] = SETTINGS[name] ? BigInt(SETTINGS[name]) : null;
  for (const name of CHOICES) at[name] = SETTINGS[name] || null;
  for (const name of SHARES) at[name] = Number(SETTINGS[name]);
  at.length = at.length || 4096n;
  at.batch = at.batch || 1n;
  at.source = at.source || at.length;
  at.tp = Number(at.tp || 1);
  at.pp = Number(at.pp || 1);
  at.workspace = at.workspace || 0n;
  return at;
}

function notesFor(at, ranks) {
  const notes = [];
  MODELS.forEach((model, place) => {
    const most = model.max_position_embeddings;
    if (most && at.length > BigInt(most)) notes.push({ text: `${model.name} states ${grouped(most)} positions, fewer than the length.` });
    for (const problem of ranks[place].problems) notes.push({ text: `${model.name}: ${problem}.`, style: "bad" });
    if (at.tp * at.pp > 1) for (const note of rankNotes(model, at)) notes.push({ text: `${model.name}: ${note}.` });
  });
  return notes;
}

function commandFor(model, place, at) {
  const words = [`archc estimate ${DATA.commands[place]}`, `--batch-size ${at.batch}`, `--max-model-len ${at.length}`];
  if (model.reads_encoder && SETTINGS.source) words.push(`--source-len ${at.source}`);
  if (at.dtype) words.push(`--dtype ${at.dtype}`);
  if (at.kvDtype) words.push(`--kv-cache-dtype ${at.kvDtype}`);
  if (at.block) words.push(`--block-size ${at.block}`);
  if (at.gpu || at.tp * at.pp > 1) {
    words.push("--serve", `--workspace ${at.workspace}`);
    if (at.gpu) words.push(`--gpu ${at.gpu}`);
    if (at.tp > 1) words.push(`--tp ${at.tp}`);
    if (at.pp > 1) words.push(`--pp ${at.pp}`);
    if (at.experts && at.tp > 1) words.push(`--ep ${at.tp}`);
    if (at.gpu) {
      words.push("--time");
      for (const name of SHARES) {
        const flag = `--${name.replace("Efficiency", "-efficiency")}`;
        if (SETTINGS[name] !== DATA.settings[name]) words.push(`${flag} ${SETTINGS[name]}`);
      }
    }
  }
  return words.join(" ");
}

const PREFILL_TITLE = MODELS.every((model) => model.decodes) ? "FLOPs of a prefill"
  : MODELS.some((model) => model.decodes) ? "FLOPs of a prefill or a forward" : "FLOPs of a forward";

const CHARTS = [
  { title: "Cache, used", unit: UNITS.bytes, of: (model, at) => (model.decodes ? cacheUsed(model, at) : null) },
  { title: "FLOPs of a decode step", unit: UNITS.flops, of: (model, at) => stepFlops(model, "decode", at) },
  { title: PREFILL_TITLE, unit: UNITS.flops, of: (model, at) => stepFlops(model, model.decodes ? "prefill" : "forward", at) },
  { title: "Time of a decode step, an estimate", unit: UNITS.ps, step: 0.5, of: (model, at) => stepPicoseconds(model, "decode", at) },
];

function cacheUsed(model, at) {
  let total = 0n;
  const env = { batch: at.batch, past: 0n, seq: at.length, memory: at.source };
  for (const state of model.states) {
    const bytes = tensorBytes(
      evaluate(model.pool, state.used, env), stateDtype(state, at.dtype || model.dtype, at.kvDtype));
    for (const count of state.counts) total += bytes * BigInt(count);
  }
  return total;
}

function stepFlops(model, step, at) {
  const place = model.flops[step];
  return place === undefined ? null : evaluate(model.pool, place, stepEnv(step, at));
}

function stepPicoseconds(model, step, at) {
  const time = model.decodes ? stepTime(model, step, at) : null;
  return time ? BigInt(Math.round(time.seconds * 1e12)) : null;
}

function drawCharts(at) {
  CHARTS.forEach((chart, number) => {
    const svg = byId(`chart-${number}`);
    svg.parentElement.hidden = !MODELS.some((model) => chart.of(model, at));
    if (svg.parentElement.hidden) return;
    const series = MODELS.map((model, index) => ({
      name: model.name, index,
      at: (length) => chart.of(model, { ...at, length, source: SETTINGS.source ? at.source : length }) }));
    drawChart(svg, { series, current: at.length, unit: chart.unit, step: chart.step, label: chart.title });
  });
}

function update() {
  const at = settingsNow();
  const found = MODELS.map((model) => costsOf(model, at));
  const heads = MODELS.map((model, place) => ({ text: model.name, place }));
  const { rows, ranks } = rankRows(MODELS, found, at);
  fillTable(byId("overview-table"), ["", ...heads], [...overviewRows(MODELS, found), ...rows, ...timeRows(MODELS, at)]);
  if (MODELS.length > 1) {
    byId("overview-table").querySelectorAll("thead th:not(:first-child)").forEach((head, place) =>
      head.prepend(element("span", { class: `swatch c${place % 8}`, "aria-hidden": "true" })));
  }
  byId("notes").replaceChildren(...notesFor(at, ranks).map(({ text, style = "" }) => element("li", { class: style }, text)));
  MODELS.forEach((model, place) => {
    layersTable(byId(`layers-${place}`), model, at);
    byId(`cache-${place}-block`).hidden = !model.kinds.length;
    if (model.kinds.length) cacheTable(byId(`cache-${place}`), model, at);
    byId(`time-${place}-block`).hidden = !timeTable(byId(`time-${place}`), model, at);
    flopsTable(byId(`flops-${place}`), model, found[place]);
    byId(`command-${place}`).textContent = commandFor(model, place, at);
  });
  drawCharts(at);
  const dtypes = `${at.dtype || "dtypes of the specs"}${at.kvDtype ? `, cache ${at.kvDtype}` : ""}`;
  const device = deviceOf(at);
  const devices = device ? ` · ${at.tp * at.pp} × ${device.title}` : "";
  byId("summary").textContent = `Batch ${grouped(at.batch)} · ${tokensText(at.length)} tokens · ${dtypes}${devices}`;
  const [short, long] = [tokensText(at.length), grouped(at.length)];
  byId("length-exact").textContent = `${short === long ? "" : `${short} = `}${long} tokens`;
}

// Tables: what each holds, as rows of cells. A cell is a text, or {text, exact, left}.

const STEP_NAMES = { forward: "forward", prefill: "prefill", decode: "decode, one token", train_step: "training step" };

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const bytesCell = (number) => ({ text: bytesText(number), exact: number, unit: "B" });
const countCell = (number) => ({ text: siText(number), exact: number, unit: "" });
const plainCell = (number) => ({ text: grouped(number), value: number });

function cellOf(cell, tag) {
  if (typeof cell === "string") return element(tag, {}, cell);
  const made = element(tag, cell.left ? { class: "left" } : {}, cell.text);
  if (cell.exact !== undefined) {
    made.dataset.exact = String(cell.exact);
    const exact = `${grouped(cell.exact)}${cell.unit ? ` ${cell.unit}` : ""}`;
    if (exact !== cell.text) made.append(element("span", { class: "exact" }, exact));
  } else if (cell.value !== undefined) {
    made.dataset.exact = String(cell.value);
  }
  if (cell.number !== undefined) made.dataset.number = String(cell.number);
  if (cell.style) made.classList.add(cell.style);
  return made;
}

// `rows`: {name, key, cells, style}; a row without cells is a heading.
function fillTable(table, heads, rows) {
  const head = element("tr", {}, ...heads.map((cell) => {
    const made = cellOf(cell, "th");
    made.scope = "col";
    return made;
  }));
  const lines = rows.map((row) => {
    const name = element("th", row.cells.length ? { scope: "row" } : { colspan: heads.length }, row.name);
    const line = element("tr", row.style ? { class: row.style } : {}, name, ...row.cells.map((cell) => cellOf(cell, "td")));
    if (row.key) line.dataset.key = row.key;
    return line;
  });
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
}

function overviewRows(models, found) {
  const row = (key, name, cell, style) => ({ key, name, style, cells: models.map((model, place) => cell(found[place], model)) });
  const count = (name) => (_, model) => countCell(BigInt(model.parameters[name]));
  const has = (test) => models.some((model, place) => test(found[place], model));
  const cached = (name) => (costs, model) => (model.decodes ? bytesCell(costs.cache.total[name]) : "–");
  const flops = (name) => (costs) => (costs.flops[name] === undefined ? "–" : countCell(costs.flops[name]));
  const rows = [
    { name: "Parameters", cells: [], style: "group" },
    row("total", "total", count("total")),
    row("active", "active a token", count("active")),
    ...(has((_, model) => model.parameters.mtp) ? [row("mtp", "extra prediction layers, apart", count("mtp"))] : []),
    { name: "Memory of one copy", cells: [], style: "group" },
    row("weights", "weights", (costs) => bytesCell(costs.weights)),
  ];
  if (has((_, model) => model.decodes)) {
    rows.push(
      row("used", "cache, used", cached("used")),
      row("allocated", "cache, allocated", cached("allocated")),
      row("paged", "cache, paged", cached("paged")),
      { name: "Cache of one sequence", cells: [], style: "group" },
      row("perToken", "growth a token", cached("perToken")),
    );
    if (has((costs) => costs.cache.total.belowWindows !== costs.cache.total.perToken)) {
      rows.push(row("belowWindows", "growth while windows fill", cached("belowWindows")));
    }
    if (has((_, model) => model.reads_encoder)) rows.push(row("perSourceToken", "a token of the encoder", cached("perSourceToken")));
    if (has((costs) => costs.cache.total.recurrent + costs.cache.total.convolution > 0n)) {
      rows.push(row("states", "states of fixed size", (costs, model) =>
        model.decodes ? bytesCell(costs.cache.total.recurrent + costs.cache.total.convolution) : "–"));
    }
  }
  rows.push({ name: "FLOPs", cells: [], style: "group" });
  for (const [step, name] of Object.entries(STEP_NAMES)) {
    if (has((costs) => costs.flops[step] !== undefined)) rows.push(row(step, name, flops(step)));
  }
  return rows;
}

function layersTable(table, model, at) {
  const cache = cacheCosts(model, at).layers;
  const steps = ["forward", "prefill", "decode"].filter((step) => model.flops[step] !== undefined);
  const heads = ["kind", "layers", "parameters", "active",
    ...(model.decodes ? ["cache B/token", "window", "state B/seq", "cache used"] : []),
    ...(model.reads_encoder ? ["B/enc. token"] : []), ...steps.map((step) => `${step} FLOPs`)];
  const rows = model.layers.map((layer) => {
    const kept = cache[layer.name];
    const flops = flopsOf(model, layer.flops, at);
    return {
      name: layer.name, key: layer.name,
      cells: [plainCell(layer.layers), siText(BigInt(layer.parameters)), siText(BigInt(layer.active)),
        ...(model.decodes ? [plainCell(kept.belowWindows), kept.window === null ? "–" : plainCell(kept.window),
          plainCell(kept.recurrent + kept.convolution), bytesCell(kept.used)] : []),
        ...(model.reads_encoder ? [plainCell(kept.perSourceToken)] : []),
        ...steps.map((step) => countCell(flops[step] || 0n))],
    };
  });
  fillTable(table, heads.map((text, place) => ({ text, left: !place })), rows);
}

function cacheTable(table, model, at) {
  const found = cacheCosts(model, at);
  const heads = ["mixer", "layers", "policy", "B/token", "window", "state B/seq", "used", "allocated", "paged"];
  const cells = (kept, window) => [plainCell(kept.belowWindows), window, plainCell(kept.recurrent + kept.convolution),
    bytesCell(kept.used), bytesCell(kept.allocated), bytesCell(kept.paged)];
  const rows = model.kinds.map((kind, place) => {
    const kept = found.kinds[place];
    return {
      name: kind.name, key: kind.part,
      cells: [plainCell(kind.layers), kind.policy || "–",
        ...cells(kept, kept.window === null ? "–" : plainCell(kept.window))],
    };
  });
  if (rows.length > 1) rows.push({ name: "all", key: "all", style: "total", cells: ["", "", ...cells(found.total, "")] });
  fillTable(table, heads.map((text, place) => ({ text, left: !place })), rows);
}

function flopsTable(table, model, costs) {
  const rows = Object.entries(STEP_NAMES)
    .filter(([step]) => costs.flops[step] !== undefined)
    .map(([step, name]) => ({
      name, key: step, cells: [countCell(costs.flops[step]), countCell(costs.flops[`${step}_dense`])] }));
  fillTable(table, [{ text: "step", left: true }, "needed pairs", "dense pairs"], rows);
}

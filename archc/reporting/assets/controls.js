// Settings: sliders and boxes of one number move each other, and the address keeps what differs from the start.

const SLIDERS = { batch: 12 * 4, length: 22 * 4 };

const IS_SIZE = { workspace: true };
const textOf = (name, number) => (number === null ? "" : IS_SIZE[name] ? sizeText(number) : tokensText(number));
const numberFrom = (name, text) => (IS_SIZE[name] ? bytesFrom(text) : countFrom(text));

function setNumber(name, number) {
  SETTINGS[name] = number === null ? null : String(number);
  const box = byId(name);
  const slider = byId(`${name}-slider`);
  if (box && document.activeElement !== box) box.value = textOf(name, number);
  if (slider && document.activeElement !== slider) slider.value = String(positionOf(number));
  if (slider) slider.setAttribute("aria-valuetext", `${grouped(number)} ${slider.dataset.unit}`);
}

const shareFrom = (text) => (/^(0?\.\d+|1(\.0*)?|0)$/.test(text.trim()) && Number(text) > 0 ? text.trim() : null);

function takeShare(name, box) {
  const share = shareFrom(box.value);
  box.setAttribute("aria-invalid", String(share === null));
  byId("problem").textContent = share === null ? `“${box.value.slice(0, 40)}” is no share above 0 and at most 1.` : "";
  if (share === null) return;
  SETTINGS[name] = share;
  changed();
}

function remember() {
  const words = [];
  for (const [name, value] of Object.entries(SETTINGS)) {
    const start = DATA.settings[name];
    if (String(value) !== String(start)) words.push(`${name}=${encodeURIComponent(value === null ? "" : value)}`);
  }
  const address = words.length ? `#${words.join("&")}` : location.pathname + location.search;
  try { history.replaceState(null, "", address); } catch { /* a page in a frame has no address of its own */ }
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, start] of Object.entries(DATA.settings)) {
    const text = given.get(name);
    SETTINGS[name] = start === null ? null : String(start);
    if (text === null) continue;
    if (SHARES.includes(name)) {
      SETTINGS[name] = shareFrom(text) || SETTINGS[name];
    } else if (NUMBERS.includes(name)) {
      const number = numberFrom(name, text);
      if (number !== null) SETTINGS[name] = String(number);
    } else if (byId(name) && [...byId(name).options].some((option) => option.value === text)) {
      SETTINGS[name] = text || null;
    }
  }
}

function changed() {
  update();
  remember();
}

function showSettings() {
  for (const name of NUMBERS) setNumber(name, SETTINGS[name] ? BigInt(SETTINGS[name]) : null);
  for (const name of SHARES) byId(name).value = SETTINGS[name];
  for (const name of CHOICES) if (byId(name)) byId(name).value = SETTINGS[name] || "";
}

function takeText(name, box) {
  const isEmpty = box.value.trim() === "" && box.dataset.optional !== undefined;
  const number = isEmpty ? null : numberFrom(name, box.value);
  const isWrong = number === null && !isEmpty;
  box.setAttribute("aria-invalid", String(isWrong));
  const known = IS_SIZE[name]
    ? "no size: 2GB (2,000,000,000) and 2GiB (2,147,483,648) are"
    : "no count: 4096, 131,072, 128k (131,072) and 1M (1,048,576) are";
  byId("problem").textContent = isWrong ? `“${box.value.slice(0, 40)}” is ${known}.` : "";
  if (isWrong) return;
  setNumber(name, number);
  changed();
}

function connect() {
  for (const name of NUMBERS) {
    const box = byId(name);
    const slider = byId(`${name}-slider`);
    if (box) {
      box.addEventListener("input", () => takeText(name, box));
      box.addEventListener("blur", () => {
        if (box.getAttribute("aria-invalid") === "true") {
          box.setAttribute("aria-invalid", "false");
          byId("problem").textContent = "";
        }
        box.value = textOf(name, SETTINGS[name] ? BigInt(SETTINGS[name]) : null);
      });
    }
    if (slider) {
      slider.max = String(SLIDERS[name]);
      slider.addEventListener("input", () => {
        setNumber(name, atPosition(Number(slider.value)));
        changed();
      });
    }
  }
  for (const name of SHARES) byId(name).addEventListener("input", (event) => takeShare(name, event.target));
  for (const name of CHOICES) {
    const select = byId(name);
    if (!select) continue;
    select.addEventListener("input", () => {
      SETTINGS[name] = select.value || null;
      changed();
    });
  }
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
}

function theme() {
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const isDark = () => (document.documentElement.dataset.theme || (wanted.matches ? "dark" : "light")) === "dark";
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  wanted.addEventListener("change", show);
  show();
}

function start() {
  const figures = CHARTS.map((chart, number) => element("figure", { "data-chart": number }, element("figcaption", {}, chart.title)));
  figures.forEach((figure, number) => shape(figure, "svg", { id: `chart-${number}`, role: "img" }));
  byId("charts").append(...figures);
  if (MODELS.length > 1) {
    MODELS.forEach((model, index) => {
      const item = element("li");
      const sample = shape(item, "svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
      shape(sample, "path", { class: `line c${index % 8}`, d: "M0 5H28", "stroke-dasharray": dashOf(index) });
      item.append(model.name);
      byId("legend").append(item);
    });
  }
  recall();
  connect();
  theme();
  byId("print").addEventListener("click", () => print());
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  if (matchMedia("(max-width: 48rem)").matches) byId("controls").open = false;
  addEventListener("hashchange", () => {
    recall();
    showSettings();
    update();
  });
  showSettings();
  update();
}

start();
